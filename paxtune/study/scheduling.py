import bisect
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import pyglove as pg

from paxtune.algorithms import SuggestionContext
from paxtune.algorithms.encoding.points import points_function
from paxtune.objectives.rewards import Reward
from paxtune.schedulers import Fork, Pause, Promote, Scheduler, Stop, TrialCurve, resources
from paxtune.schedulers.base import State, Unit
from paxtune.schedulers.resources import consumed
from paxtune.study.record import Status
from paxtune.study.schedule import Decision
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_table import column
from paxtune.study.workload import RunnerWorkload
from trainer.symbolic.errors import UserError

_STATES: dict[Status, State] = {
    Status.REQUESTED: 'waiting',
    Status.ACTIVE: 'running',
    Status.PAUSED: 'paused',
    Status.COMPLETED: 'completed',
    Status.STOPPED: 'stopped',
}


class TrialScheduling:
    """Shows a scheduler the learning curves of a study's trials."""

    def __init__(
        self,
        scheduler: Scheduler,
        rewards: Sequence[Reward],
        spec: pg.DNASpec,
        max_resource: Callable[[Trial], float | None],
    ) -> None:
        """Computes nothing yet.

        Args:
            spec: the search space.
            max_resource: computes the resource of a trial that trains to its end, in the
                scheduler's unit; None if unknown.
        """
        self.scheduler = scheduler
        self._reward = rewards[0] if len(rewards) == 1 else None
        self._spec, self._find_max_resource = spec, max_resource
        self._curves: dict[int, tuple[object, TrialCurve]] = {}
        self._max_resources: dict[object, float | None] = {}
        self._values: dict[str, Callable[[Trial], Any]] = {}

    def curves(self, trials: Sequence[Trial]) -> list[TrialCurve]:
        """Returns the learning curves that the scheduler compares: of no infeasible trial."""
        return list(_Curves(trials, self))

    def decide_on(self, trial: Trial, step: int, trials: Sequence[Trial]) -> Stop | Pause | None:
        """Decides whether a trial continues after the step that it reported last.

        `trials` are all of the study.
        """
        own = self._read(trial, until=step)
        if not own.measurements:
            return None
        return self.scheduler.decide(own, _Curves(trials, self, trial.id), self._reward)

    def decide(
        self, trials: Sequence[Trial], context: SuggestionContext, may_begin: bool
    ) -> Decision:
        """Decides which action precedes a new suggestion; `trials` are all of the study.

        Raises:
            ValueError: the scheduler promotes or replaces a trial that is not paused, or forks one
                where it was not paused.
        """
        if not self.scheduler.pauses:
            return None
        curves = _Curves(trials, self)
        decision = self.scheduler.next_action(curves, self._reward, context, may_begin)
        if isinstance(decision, Promote | Fork):
            _require_possible(decision, trials)
        return decision

    def column(
        self, trials: Sequence[Trial], name: str, value_of: Callable[[TrialCurve], Any]
    ) -> list[Any]:
        """Returns a value of the curve of each trial; None for a trial that is not compared."""

        def value(trial: Trial) -> Any:
            curve = self._compared(trial)
            return None if curve is None else (value_of(curve),)

        return column(trials, self._values.setdefault(name, value))

    def _compared(self, trial: Trial) -> TrialCurve | None:
        # An imported trial cannot be promoted, so it must not displace a trial that can be.
        is_out = self.scheduler.pauses and trial.lineage.is_imported
        return None if is_out or trial.status is Status.INFEASIBLE else self._curve(trial)

    def _curve(self, trial: Trial) -> TrialCurve:
        # The curve of hundreds of paused trials takes a while. The creation time separates a trial
        # from a deleted one that had its number.
        record = trial.record
        version = (record.created, record.status, len(record.measurements), len(record.pauses))
        known = self._curves.get(trial.id)
        if known is None or known[0] != version:
            known = self._curves[trial.id] = (version, self._read(trial))
        return known[1]

    def _read(self, trial: Trial, until: int | None = None) -> TrialCurve:
        measured = [each for each in trial.measurements if until is None or each.step <= until]
        return TrialCurve(
            id=trial.id,
            state=_STATES[trial.status],
            measurements=measured,
            resources=consumed(measured, self.scheduler.unit),
            max_resource=self._max_resource(trial),
            pauses=trial.record.pauses,
            decisions=trial.by_id,
            forked_from=trial.lineage.forked_from,
            replaces=trial.lineage.replaces,
            point=points_function(self._spec)([trial.by_id])[0].tolist(),
        )

    def _max_resource(self, trial: Trial) -> float | None:
        key = (trial.id, trial.record.created)
        if key not in self._max_resources:
            self._max_resources[key] = self._find_max_resource(trial)
        return self._max_resources[key]


def _require_possible(decision: Promote | Fork, trials: Sequence[Trial]) -> None:
    known = {trial.id: trial for trial in trials}
    id_ = decision.trial if isinstance(decision, Promote) else decision.replaces
    if id_ not in known or known[id_].status is not Status.PAUSED:
        raise ValueError(f'the scheduler goes on with trial {id_}, which is not paused')
    # The parent of a fork may have gone on since, or have ended, but it was paused there.
    if isinstance(decision, Fork) and (
        decision.trial not in known or decision.step not in known[decision.trial].record.pauses
    ):
        raise ValueError(f'the scheduler forks trial {decision.trial} where it was not paused')


class _Curves(Sequence[TrialCurve]):
    """The compared curves of a study, read when a scheduler looks at them."""

    def __init__(
        self, trials: Sequence[Trial], scheduling: TrialScheduling, but: int | None = None
    ) -> None:
        """Shows the curves of all trials, without the trial of the number `but`."""
        self._trials, self._scheduling, self._but = trials, scheduling, but

    @functools.cached_property
    def _curves(self) -> Sequence[TrialCurve]:
        return self.column('curve', lambda curve: curve)

    def column(self, name: str, value_of: Callable[[TrialCurve], Any]) -> Sequence[Any]:
        """See `paxtune.schedulers.base.column`."""
        values = self._scheduling.column(self._trials, name, value_of)
        if self._but is not None:
            place = bisect.bisect_left(self._trials, self._but, key=operator.attrgetter('id'))
            if place < len(values) and self._trials[place].id == self._but:
                del values[place]
        # Not compared trials have None, all others a tuple.
        return [*itertools.chain.from_iterable(filter(None, values))]

    def __len__(self) -> int:
        return len(self._curves)

    def __iter__(self) -> Iterator[TrialCurve]:
        return iter(self._curves)

    @overload
    def __getitem__(self, index: int) -> TrialCurve: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TrialCurve]: ...
    def __getitem__(self, index: int | slice) -> TrialCurve | Sequence[TrialCurve]:
        return self._curves[index]


def max_resource(study: StudyView, trial: Trial, unit: Unit) -> float | None:
    """Computes the maximum resource of a trial, in a unit; None where it is unknown."""
    value, space = study.value, study.space
    if isinstance(value, RunnerWorkload):
        return value.max_resource(space, study.current, trial, unit)
    if not space.is_tunable:
        return None
    # Imported here: it imports JAX, and a study of a function needs none.
    from trainer.experiment import TrainLoop

    train = value.sym_getattr('train')
    if unit == 'steps' and isinstance(train, TrainLoop) and not space.sub_experiments:
        steps = train.sym_getattr('num_train_steps')
        if isinstance(steps, int):
            return float(steps)  # Making thousands of experiments takes a while.
    from paxtune.study.trial_experiments import parts_of

    try:
        return resources.max_resource(parts_of(space, trial.by_id), unit)
    except (UserError, ValueError):
        return None  # The trial will be infeasible.
