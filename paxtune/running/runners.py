import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.running.other_trials import REMEDY, OtherTrialError, require_no_link
from paxtune.running.runner import Runner, RunnerWorkload
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.record import REPLICATE, Costs
from paxtune.study.replicate_seeds import reseeded
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_costs import CostEstimate, estimate_costs, suffixed, wanted_by
from paxtune.study.trial_experiments import shared_parts_of
from paxtune.study.trial_paths import attempt_directories, attempt_directory
from trainer.checkpoints import experiment_record
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.handover import fork_checkpoint, take_over
from trainer.loop.decode_loop import OUTPUTS
from trainer.loop.report import Interrupted, Report
from trainer.loop.train_loop import run
from trainer.program import compile_events
from trainer.program.packing.place import Alone
from trainer.program.setup import compiled
from trainer.runtime import processes
from trainer.runtime.directory import JobPath, absolute, job_path
from trainer.runtime.wall_clock import CHECKPOINTS, INITIALIZATION, during
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import Inheritance


def runner_of(study: StudyView) -> Runner:
    """Makes the runner of a study's trials."""
    return study.value.runner() if isinstance(study.value, RunnerWorkload) else ExperimentRunner()


class ExperimentRunner(Runner):
    """Trains a trial's experiment, or its sub-experiments one after another."""

    def __init__(self, place: Alone | None = None) -> None:
        """Makes a runner; `place`: where it does the train steps, as for `train_loop.train`."""
        self._place = place

    @during(INITIALIZATION)
    def prepare(self, study: Study, trial: RunningTrial) -> str | None:
        compile_events.listen()
        _require_own_experiments(study, trial.view)
        resolve_warm_start(study, trial)
        found = self._estimate_costs(study, TrialSpec.of(study, trial.view))
        trial.set_costs(found.measured)
        return found.refusal

    def _estimate_costs(self, study: Study, spec: 'TrialSpec') -> CostEstimate:
        return spec.estimate_costs(study.space, study.search)

    def run(
        self, study: Study, trial: RunningTrial, should_interrupt: Callable[[], bool]
    ) -> Generator[Report, None, None]:
        return TrialSpec.of(study, trial.view).train(study.space, should_interrupt, self._place)

    @property
    def num_devices(self) -> int:
        import jax

        return jax.device_count()


@dataclasses.dataclass(frozen=True)
class WarmStartSpec:
    """The start of a trial from the weights of another one: plain data.

    Attributes:
        trial: the number of the other trial.
        directory: its directory.
        inherits: adapt its weights to another architecture.
        overrides: changes of the experiment, by path.
    """

    trial: int
    directory: str
    inherits: bool = False
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changes(self, name: str) -> dict[str, Any]:
        """Changes of the experiment, or of its part `name`, by path."""
        path = str(job_path(self.directory) / name / 'checkpoints')
        start = Inheritance(path) if self.inherits else path
        return {**self.overrides, 'train.init_from_checkpoint': start}


@dataclasses.dataclass(frozen=True)
class TrialSpec:
    """The specification of a trial for the processes that train it: plain data.

    Attributes:
        trial: the number of the trial.
        decisions: by id.
        directory: of this attempt.
        earlier: the directories of the attempts before it.
        warm_start: the trial whose weights it begins with.
        repeat: the 1-based replicate index.
        parent_checkpoint: of a fork: the directories of the parent's attempts, newest first,
            and the step.
        forks: the directories of the attempts of the trial's own forks, with their steps.
        measured: costs from before the first step, which each measurement repeats.
    """

    trial: int
    decisions: Decisions
    directory: str
    earlier: Sequence[str] = ()
    warm_start: WarmStartSpec | None = None
    repeat: int = 1
    parent_checkpoint: tuple[Sequence[str], int] | None = None
    forks: Sequence[tuple[Sequence[str], int]] = ()
    measured: Costs = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, study: StudyView, trial: Trial) -> 'TrialSpec':
        """Specifies a trial; raises ValueError where the study is in memory."""
        *earlier, own = attempt_directories(study.directory, trial)
        parent_checkpoint = None
        if trial.lineage.forked_from is not None:
            parent, step = trial.lineage.forked_from
            attempts = attempt_directories(study.directory, study.trial(parent))
            parent_checkpoint = attempts[::-1], step
        forks = [
            (attempt_directories(study.directory, other), origin[1])
            for other in (study.trials if trial.record.pauses else ())
            if (origin := other.lineage.forked_from) is not None and origin[0] == trial.id
            if not other.is_terminal
        ]
        return cls(
            trial.id,
            trial.by_id,
            own,
            earlier,
            _warm_start(study, trial),
            trial.lineage.replicate,
            parent_checkpoint,
            forks,
            trial.record.costs,
        )

    @during(INITIALIZATION)
    def experiments(self, space: Space) -> dict[str, Tunable]:
        """Lists its experiments as `experiments` does."""
        return _begun(shared_parts_of(space, self.decisions), self.warm_start, self.repeat)

    def estimate_costs(self, space: Space, search: Search) -> CostEstimate:
        """Estimates the costs of the trial; raises as `experiments` and `estimate_costs`."""
        parts = self.experiments(space)
        return estimate_costs(parts, search.limits, wanted_by(search, parts), self.measured)

    def train(
        self, space: Space, should_interrupt: Callable[[], bool], place: Alone | None = None
    ) -> Generator[Report, None, None]:
        """Trains the trial from where its last attempt ended; as `train_loop.run`."""
        before, left = 0, len(parts := self.experiments(space))
        for name, experiment in parts.items():
            left -= 1
            folder = self.begin(name)
            training = run(experiment, folder, should_interrupt, place=place)
            with contextlib.closing(training) as reports:
                try:
                    for each in reports:
                        yield dataclasses.replace(
                            each,
                            step=before + each.step,
                            metrics=suffixed({**each.metrics, **self.measured.get(name, {})}, name),
                            resumed_from=before + each.resumed_from if each.resumed_from else 0,
                            is_last=each.is_last and not left,
                        )
                except Interrupted as interrupted:
                    raise Interrupted(before + interrupted.step) from interrupted
            before += experiment.train.num_train_steps

    @during(CHECKPOINTS)
    def begin(self, name: str = '') -> JobPath:
        """Copies the checkpoints that a run and its own forks begin with.

        Args:
            name: of the sub-experiment, where the trial has several.

        Returns:
            The directory of the run.

        Raises:
            CheckpointGoneError: a checkpoint that a fork begins with is missing.
        """
        folder = job_path(self.directory) / name
        if self.earlier:
            take_over([job_path(each) / name for each in self.earlier], folder)
        # Its own forks come first: a trial that continues may delete what they begin with.
        with processes.together():
            if processes.is_first():
                own = [self.directory, *reversed(self.earlier)]
                for attempts, step in self.forks:
                    # A later attempt takes over what an earlier one has, which may be newer.
                    if not any(
                        newest_checkpoint(job_path(each) / 'checkpoints') for each in attempts
                    ):
                        fork_checkpoint(own, step, attempts[-1])
                if self.parent_checkpoint is not None:
                    fork_checkpoint(*self.parent_checkpoint, self.directory)
            processes.agree()  # All processes wait until the checkpoints exist.
        return folder


def experiments(study: StudyView, trial: Trial) -> dict[str, Tunable]:
    """Lists the experiments of a trial in order, by sub-experiment ('' without any).

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = shared_parts_of(study.space, trial.by_id)
    return _begun(parts, _warm_start(study, trial), trial.lineage.replicate)


def _warm_start(study: StudyView, trial: Trial) -> WarmStartSpec | None:
    if trial.lineage.warm_start is None:
        return None
    parent = study.trial(trial.lineage.warm_start)
    directory = str(absolute(attempt_directory(study.directory, parent)))
    # A person who names a trial wants exactly its weights.
    inherits = trial.lineage.parent is not None
    return WarmStartSpec(
        parent.id, directory, inherits, dict(study.search.child_overrides) if inherits else {}
    )


def _begun(
    parts: dict[str, Tunable], warm_start: WarmStartSpec | None, repeat: int
) -> dict[str, Tunable]:
    # A child sees its data in another order than its parent, and draws its new units anew.
    seed = repeat + (warm_start.trial if warm_start is not None and warm_start.inherits else 0)
    parts = {name: reseeded(part, seed) for name, part in parts.items()}
    if warm_start is None:
        return parts
    return {
        name: replaced(part, warm_start.changes(name), f'warm start from trial {warm_start.trial}')
        for name, part in parts.items()
    }


def _require_own_experiments(study: Study, trial: Trial) -> None:
    """Checks the directories whose checkpoints a trial begins with; raises OtherTrialError."""
    fork, warm_start = trial.lineage.forked_from, trial.lineage.warm_start
    sources = [fork[0] if fork else None, warm_start]
    for each in [trial, *(study.trial(number) for number in sources if number is not None)]:
        parts = experiments(study, each)
        for number in range(1, each.attempt + 1):
            directory = attempt_directory(study.directory, each, number)
            for name, part in parts.items():
                _require_own_experiment(study, directory / name, each, part)


def _require_own_experiment(study: Study, directory: JobPath, trial: Trial, part: Tunable) -> None:
    """Checks that `experiment.json`, if there is one, is the experiment of this trial.

    Raises:
        OtherTrialError: lists the differences, or names a symbolic link.
    """
    decoded = (f'{OUTPUTS}/{name}' for name in part.decode_inputs)
    written = (directory / name for name in ('checkpoints', 'summaries', *decoded))
    require_no_link(study.directory, *written)
    found = [
        change
        for change in experiment_record.changes(directory, experiment_record.recorded(part))
        # It has the path of a trial, which changes with that of the study.
        if not change.path.startswith('train.init_from_checkpoint')
    ]
    if found:
        raise OtherTrialError(
            f'{directory} holds another experiment than that of trial {trial.id}. There, and in '
            f'the trial:\n' + '\n'.join(map(str, found)) + f'\n{REMEDY}'
        )


def resolve_warm_start(study: Study, trial: RunningTrial) -> None:
    """Records that a trial begins from scratch: its parent's weights are missing or do not fit.

    All attempts use the record, which is made before the first step.
    """
    if trial.lineage.warm_start is None or trial.lineage.origin not in ('algorithm', REPLICATE):
        return
    parts = experiments(study, trial.view)
    attempts = [
        attempt_directory(study.directory, trial.view, n + 1) for n in range(trial.view.attempt)
    ]
    if any((each / name / experiment_record.FILE).exists() for each in attempts for name in parts):
        return
    try:
        for name, part in parts.items():
            if sources := warm_start_sources(part, attempts[-1] / name):
                WarmStartLoader(part, sources, compiled(part)[0])
    except UserError:
        trial.set_warm_start(None)
        return
    parent = study.trial(trial.lineage.warm_start)
    newest = newest_checkpoint(
        attempt_directory(study.directory, parent) / next(iter(parts)) / 'checkpoints'
    )
    if newest is not None:
        trial.set_warm_start(parent.id, int(newest.name))
