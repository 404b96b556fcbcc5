"""A search over several processes: the first owns the study, and all train its trials together.

The first process runs the tuner. It sends the others each trial, each decision of the scheduler
and the end of the search. They follow `ExperimentRunner` there, at the same steps. An error
of a trial in any process fails the trial in all. A lost process ends the attempt
(`LostProcessError`), not the study: the same command resumes it.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Mapping

from absl import logging

from paxtune.config.search import Search
from paxtune.engines.base import Engine, Job
from paxtune.experiment import Tunable
from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.runner import Reports, Runner
from paxtune.running.trial_errors import StudyStoppedError, ends_as_errors, guarded
from paxtune.running.trial_spec import PreparedTrial, TrialSpec
from paxtune.running.tuner import Paused, Tuner
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.loop.report import Interrupted
from trainer.runtime import processes
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import LostProcessError, UserError
from trainer.symbolic.serialization import to_json_text

_ENDS = {'Paused': Paused, 'StudyStoppedError': StudyStoppedError}

_NO_FUNCTION = 'several processes train experiments; a function runs in one process'


def require_same(tunable: Tunable, data: Mapping[str, str]) -> None:
    """Raises UserError unless all processes have the same experiment and the same data."""
    text = hashlib.sha256(to_json_text(tunable).encode()).hexdigest()
    for process, (other_text, other_data) in enumerate(processes.gather([text, dict(data)])):
        if other_text != text:
            raise UserError(f'process {process} has another experiment: give all the same flags')
        for path, found in data.items():
            if other_data.get(path) != found:
                raise UserError(
                    f'{path}: the fingerprint of the data is {found} in process '
                    f'{processes.index()}, and {other_data.get(path)} in process {process}: give '
                    'them the same data'
                )


def require_experiment(value: object) -> None:
    """Raises UserError unless several processes can train the trials of a study together."""
    if not isinstance(value, Tunable):
        raise UserError(_NO_FUNCTION)


class LeadingRunner(ExperimentRunner):
    """Trains trials in the first process, together with the others.

    Attributes:
        interrupted: whether a trial was left because a process was asked to stop.
    """

    def __init__(self, should_interrupt: Callable[[], bool]) -> None:
        """Asks `should_interrupt` of this process, and remembers the others' answers."""
        super().__init__()
        self._asked = should_interrupt
        self.interrupted = False

    def should_interrupt(self) -> bool:
        """Returns True if a process is known to have received a request to stop."""
        return self.interrupted or self._asked()

    def _prepare(
        self, spec: TrialSpec, parts: Mapping[str, Tunable], search: Search
    ) -> PreparedTrial:
        processes.broadcast({'trial': dataclasses.asdict(spec)})
        return _prepared(spec, lambda: parts, search)

    def _train(self, prepared: PreparedTrial, should_interrupt: Callable[[], bool]) -> Reports:
        reports = super()._train(prepared, should_interrupt)
        try:
            with processes.together(), contextlib.closing(reports):
                for report in reports:
                    goes_on = False
                    try:
                        yield report
                        goes_on = True
                    finally:
                        processes.broadcast(goes_on)
        except Interrupted:
            self.interrupted = processes.agree(self._asked())
            raise


def lead(job: Job) -> None:
    """Runs the trials of a study together with a `Follower` in each other process."""
    leader = LeadingRunner(job.should_interrupt)
    try:
        Tuner(job.study, leader, job.callbacks, leader.should_interrupt).run()
    except (Paused, StudyStoppedError) as end:
        processes.broadcast({'end': type(end).__name__, 'reason': str(end)})
        raise
    processes.broadcast({'end': ''})


class Follower:
    """Trains the trials of the first process, in another one: see `Engine.follow`."""

    def __init__(self, space: Space, search: Search, should_interrupt: Callable[[], bool]) -> None:
        self._space, self._search, self._asked = space, search, should_interrupt

    def run(self) -> None:
        """Follows the search of the first process to its end.

        Raises:
            Paused, StudyStoppedError: the search ended so.
            Exception: as `trainer.runtime.processes.agree`.
        """
        while 'trial' in (received := processes.broadcast()):
            spec = TrialSpec(**received['trial'])
            try:
                self._train(spec)
            except LostProcessError:
                raise
            except Exception as error:  # The first process raises and records it, too.
                logging.info('trial %d: %s: %s', spec.trial, type(error).__name__, error)
        if received['end']:
            raise _ENDS[received['end']](received['reason'])

    def _train(self, spec: TrialSpec) -> None:
        prepared = _prepared(spec, lambda: spec.experiments(self._space), self._search)
        if prepared.costs.refusal is not None:
            return
        reports = guarded(prepared.train(self._asked))
        try:
            with processes.together(), contextlib.closing(reports):
                for _ in reports:
                    if not processes.broadcast():
                        break
        except Interrupted:
            processes.agree(self._asked())
            raise


def _prepared(
    spec: TrialSpec, make_parts: Callable[[], Mapping[str, Tunable]], search: Search
) -> PreparedTrial:
    """Prepares a trial. The first process decides for all if its costs make it infeasible."""
    with processes.together(), ends_as_errors():
        found = spec.prepared(make_parts(), search)
    costs = dataclasses.replace(found.costs, refusal=processes.broadcast(found.costs.refusal))
    return dataclasses.replace(found, costs=costs)


@dataclasses.dataclass(frozen=True)
class MultiHost(Engine):
    """Trains each trial in all processes together: see `trainer.runtime.processes.start`.

    The first process has the study; the others follow it, and read the study when it is done.
    """

    @property
    def description(self) -> str:
        return 'in all processes, which train each trial together'

    def require_function(self, runner: Runner) -> None:
        raise UserError(_NO_FUNCTION)

    def follow(
        self, directory: JobPath | None, plan: SearchPlan, should_interrupt: Callable[[], bool]
    ) -> Study | None:
        require_experiment(plan.space.value)
        require_same(plan.space.value, plan.data)
        if processes.is_first():
            return None
        Follower(plan.space, plan.search, should_interrupt).run()
        assert directory is not None
        return self._read(directory)

    def _read(self, directory: JobPath) -> Study:
        return load_study(directory)

    def run(self, job: Job) -> None:
        lead(job)
