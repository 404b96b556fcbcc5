"""What a trial does: trains its experiments, or calls a function."""

import contextlib
import dataclasses
import gc
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from paxtune.experiment import Tunable
from paxtune.limits import Limit, violation
from paxtune.metrics import join_name
from paxtune.repeats import ORIGIN
from paxtune.reseeding import reseeded
from paxtune.store import TRIALS
from trainer.attempts import take_over
from trainer.derived import resolve
from trainer.directory import JobPath, absolute, job_path, trial_directory_name
from trainer.errors import UserError
from trainer.loop import Interrupted, run
from trainer.overrides import replaced
from trainer.setup import compiled
from trainer.warm_start import WarmStarted, sources_of

if TYPE_CHECKING:
    from paxtune.decisions import Decisions
    from paxtune.search_space import Space
    from paxtune.study import Study
    from paxtune.trial import Trial

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Report:
    """What a trial has to say while it runs.

    Attributes:
        step: steps done, those of the sub-experiments before this one included.
        metrics: by name; with `:<sub-experiment>` behind it where the trial has several.
        checkpoint: the path of the checkpoint of this step, where there is one.
        resumed_from: the step that this process went on from; 0 for a fresh trial.
        is_last: nothing comes after it.
    """

    step: int
    metrics: Mapping[str, float]
    checkpoint: str | None = None
    resumed_from: int = 0
    is_last: bool = False


class Runner:
    """Runs the trials of a study, each to its end."""

    def leading(self) -> AbstractContextManager[None]:
        """Around a whole search. Others may take part in it, who hear here how it ends."""
        return contextlib.nullcontext()

    def prepare(self, study: 'Study', trial: 'Trial') -> str | None:
        """Gets a trial ready, and returns why it is infeasible before it begins; None if not."""
        return None

    def run(
        self,
        study: 'Study',
        trial: 'Trial',
        directory: JobPath | None,
        should_interrupt: Callable[[], bool],
    ) -> Generator[Report, None, None]:
        """Runs a trial.

        Args:
            study: what it belongs to.
            trial: the trial.
            directory: where it writes; None for a study in memory.
            should_interrupt: asked often; on True the trial saves itself and raises
                `trainer.loop.Interrupted`.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def num_devices(self) -> int:
        """On how many devices a trial runs."""
        return 0


def suffixed(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    """Metrics of a sub-experiment under the names that they have in the trial."""
    return {join_name(metric, name or None): value for metric, value in metrics.items()}


class ExperimentRunner(Runner):
    """Trains a trial's experiment, or its sub-experiments one after another."""

    def prepare(self, study: 'Study', trial: 'Trial') -> str | None:
        settle_warm_start(study, trial)
        return Assignment.of(study, trial).refusal(study.space, study.search.limits)

    def run(
        self,
        study: 'Study',
        trial: 'Trial',
        directory: JobPath | None,
        should_interrupt: Callable[[], bool],
    ) -> Generator[Report, None, None]:
        return Assignment.of(study, trial).train(study.space, should_interrupt)

    @property
    def num_devices(self) -> int:
        import jax

        return jax.device_count()


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A trial as what trains it needs to know it: plain data, but for the space.

    Attributes:
        trial: its number.
        decisions: by id.
        directory: of this attempt.
        earlier: the directories of the attempts before it.
        warm_start: the number and the directory of the trial whose weights it begins with.
        repeat: which of the trials of its decisions it is.
    """

    trial: int
    decisions: 'Decisions'
    directory: str
    earlier: Sequence[str] = ()
    warm_start: tuple[int, str] | None = None
    repeat: int = 1

    @classmethod
    def of(cls, study: 'Study', trial: 'Trial') -> 'Assignment':
        """That of a trial.

        Raises:
            ValueError: the study is in memory.
        """
        numbers = range(1, trial.attempt + 1)
        *earlier, own = (str(attempt_directory(study, trial, n)) for n in numbers)
        return cls(trial.id, trial.by_id, own, earlier, _warm_start(study, trial), trial.repeat)

    def experiments(self, space: 'Space') -> dict[str, Tunable]:
        """What it trains, in order, by the name of the sub-experiment ('' without any).

        Raises:
            ValueError: the decisions do not fit together.
            UserError: a sub-experiment names a path that is not there.
        """
        return _begun(parts_of(space, self.decisions), self.warm_start, self.repeat)

    def refusal(self, space: 'Space', limits: list[Limit]) -> str | None:
        """Why it is infeasible before it begins, by what it costs; None if it is not.

        Raises:
            ValueError: the decisions do not fit together.
            UserError: they do not fit the devices.
        """
        from trainer import costs

        parts = self.experiments(space)
        known = static_costs(parts)
        capacity = costs.device_memory_limit()
        reason = violation(limits, known)
        if reason or (capacity is None and not _ask_for_memory(limits, parts)):
            return reason
        for name, part in parts.items():
            memory = costs.memory_cost(part)
            known |= suffixed(memory, name)
            needed = memory['device_memory_bytes']
            if capacity is not None and needed > capacity:
                return (
                    f'it needs {needed / _GIB:.2f} GiB of device memory, '
                    f'and the device has {capacity / _GIB:.2f} GiB'
                )
        return violation(limits, known)

    def train(
        self, space: 'Space', should_interrupt: Callable[[], bool]
    ) -> Generator[Report, None, None]:
        """Trains it, from where its last attempt left off.

        Raises:
            Exception: as `trainer.loop.run`.
        """
        before, left = 0, len(parts := self.experiments(space))
        for name, experiment in parts.items():
            # What a run leaves on the device must be gone before the next one begins.
            gc.collect()
            left -= 1
            steps = experiment.train.num_train_steps
            folder = job_path(self.directory) / name
            if self.earlier:
                take_over([job_path(each) / name for each in self.earlier], folder)
            with contextlib.closing(run(experiment, folder, should_interrupt)) as measurements:
                for each in measurements:
                    yield Report(
                        before + each.step,
                        suffixed(each.metrics, name),
                        each.checkpoint,
                        before + each.resumed_from if each.resumed_from else 0,
                        is_last=not left and each.step == steps,
                    )
            before += steps


def experiments(study: 'Study', trial: 'Trial') -> dict[str, Tunable]:
    """What a trial trains, in order, by the name of the sub-experiment ('' without any).

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    return _begun(parts_of(study.space, trial.by_id), _warm_start(study, trial), trial.repeat)


def _warm_start(study: 'Study', trial: 'Trial') -> tuple[int, str] | None:
    if trial.warm_start is None:
        return None
    parent = study.trial(trial.warm_start)
    return parent.id, str(absolute(attempt_directory(study, parent)))


def _begun(
    parts: dict[str, Tunable], warm_start: tuple[int, str] | None, repeat: int
) -> dict[str, Tunable]:
    """With what a trial begins: the seeds of its repeat, and the weights of another trial."""
    parts = {name: reseeded(part, repeat) for name, part in parts.items()}
    if warm_start is None:
        return parts
    trial, source = warm_start
    return {
        name: replaced(
            part,
            {'train.init_from_checkpoint': str(job_path(source) / name / 'checkpoints')},
            f'warm start from trial {trial}',
        )
        for name, part in parts.items()
    }


def parts_of(space: 'Space', decisions: 'Decisions') -> dict[str, Tunable]:
    """What decisions make of a tunable experiment, by the name of the sub-experiment.

    Derived values follow what a sub-experiment changes.

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = space.decided(decisions).parts()
    return {name: resolve(part) for name, part in parts.items()}


def trial_directory(study: 'Study', trial: 'Trial') -> JobPath:
    """Where a trial's checkpoints, metrics and records are.

    Raises:
        ValueError: the study is in memory.
    """
    if study.directory is None:
        raise ValueError('a study in memory has no directories')
    return study.directory / TRIALS / trial_directory_name(trial.id, trial.decisions)


def attempt_directory(study: 'Study', trial: 'Trial', attempt: int | None = None) -> JobPath:
    """Where an attempt at a trial writes its checkpoints: the trial's own directory for the first.

    Args:
        study: the study.
        trial: the trial.
        attempt: which; the one that counts by default.

    Raises:
        ValueError: the study is in memory.
    """
    number = trial.attempt if attempt is None else attempt
    directory = trial_directory(study, trial)
    return directory if number == 1 else directory / f'attempt_{number}'


def static_costs(parts: Mapping[str, Tunable]) -> dict[str, float]:
    """The costs of sub-experiments that are known without compiling, as metrics of the trial.

    Raises:
        UserError: a model cannot be built.
    """
    from trainer import costs

    found: dict[str, float] = {}
    for name, part in parts.items():
        found |= suffixed(costs.static_costs(part), name)
    return found


def _ask_for_memory(limits: list[Limit], parts: Mapping[str, Tunable]) -> bool:
    names = [join_name('device_memory_bytes', name or None) for name in parts]
    return any(limit.selector.matches(names) for limit in limits)


def settle_warm_start(study: 'Study', trial: 'Trial') -> None:
    """Notes that a trial begins afresh where its parent's weights do not fit it, or are not there.

    That is found out before the first step, so that it holds for each attempt.
    """
    if trial.warm_start is None or trial.origin not in ('algorithm', ORIGIN):
        return
    parts = experiments(study, trial)
    attempts = [attempt_directory(study, trial, n + 1) for n in range(trial.attempt)]
    if any((each / name / 'experiment.json').exists() for each in attempts for name in parts):
        return
    try:
        for name, part in parts.items():
            if sources := sources_of(part, attempts[-1] / name):
                WarmStarted(part, sources, compiled(part)[0])
    except UserError:
        trial.note(warm_start='')


class FunctionRunner(Runner):
    """Calls a function with the trial's values, and with the trial where it takes two arguments.

    It returns a number, which becomes the metric `objective`, or metrics by name. Or it yields
    metrics, each a measurement at the next step, and the trial may be stopped in between.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        parameters = inspect.signature(function).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in parameters if p.kind in positional and p.default is p.empty]
        self._takes_trial = len(required) > 1

    def run(
        self,
        study: 'Study',
        trial: 'Trial',
        directory: JobPath | None,
        should_interrupt: Callable[[], bool],
    ) -> Generator[Report, None, None]:
        args = [trial.materialize(), *([trial] if self._takes_trial else [])]
        returned = self._function(*args)
        if isinstance(returned, Iterator):
            for step, metrics in enumerate(returned, start=1):
                yield Report(step, _named(metrics))
                if should_interrupt():
                    raise Interrupted(step)
        elif returned is not None:
            yield Report(trial.step + 1, _named(returned), is_last=True)


def _named(returned: Any) -> dict[str, float]:
    if isinstance(returned, Mapping):
        return {str(name): float(value) for name, value in returned.items()}
    try:
        return {'objective': float(returned)}
    except (TypeError, ValueError):
        raise TypeError(
            f'the function must return a number or metrics by name, not {returned!r}'
        ) from None
