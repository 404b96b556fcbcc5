"""What a scheduler makes of the trials of a study: it stops, pauses, promotes and forks them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from paxtune.objectives.rewards import Reward
from paxtune.schedulers import Fork, Pause, Promote, Scheduler, Stop, TrialCurve, Wait, resources
from paxtune.storage import vizier_protos
from paxtune.storage.vizier_store import TrialProto
from paxtune.study.workload import Runnable
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

ORIGIN = 'scheduler'
"""The origin of a trial that a scheduler has forked from another one."""


class Advancing:
    """The scheduler of a study, asked with what is recorded of its trials."""

    def __init__(self, study: 'Study', scheduler: Scheduler) -> None:
        """Asks nothing yet."""
        self._study, self._scheduler = study, scheduler
        self._curves: dict[int, tuple[object, TrialCurve]] = {}
        self._max_resources: dict[object, float | None] = {}

    def curves(self, trials: Sequence['Trial']) -> list[TrialCurve]:
        """What the scheduler may know of trials: of those that are not infeasible."""
        return [self._curve(trial) for trial in trials if trial.state != 'INFEASIBLE']

    def decide(self, trial: 'Trial') -> Stop | Pause | None:
        """What becomes of a trial, judged at the step that it reported last; None if it goes on."""
        own = self._read(trial, until=trial.step)
        if not own.measurements:
            return None
        others = self.curves([other for other in self._study.trials if other.id != trial.id])
        return self._scheduler.decide(own, others, self._reward)

    def next(self, trials: Sequence['Trial'], may_begin: bool) -> Promote | Fork | Wait | None:
        """What somebody who has nothing to do is to do, before anything new is suggested.

        Args:
            trials: all of the study.
            may_begin: whether one more may begin.
        """
        if not self._scheduler.pauses:
            return None
        study = self._study
        number = trials[-1].id + 1 if trials else 1
        return self._scheduler.next_action(
            self.curves([trial for trial in trials if not trial.is_imported]),
            self._reward,
            study.suggestions.request(number),
            may_begin,
        )

    def act(self, action: Promote | Fork, add: Callable[[TrialProto], TrialProto]) -> None:
        """Does what comes next.

        A kill in between leaves a trial that is replaced and has not ended: see `end_replaced`.

        Args:
            action: what to do.
            add: adds a trial, whose turn it is.

        Raises:
            TurnLostError: trials were added in the meantime.
        """
        study = self._study
        if isinstance(action, Promote):
            study.trial(action.trial).promote(action.reason)
            return
        notes = {
            'origin': ORIGIN,
            'parent': str(action.trial),
            'forked_from': f'{action.trial}@{action.step}',
            'replaces': str(action.replaces),
        }
        requested = TrialProto.State.REQUESTED
        proto = vizier_protos.new_trial(study.space.spec, action.decisions, notes, requested)
        proto.id = str(study.store.max_id() + 1)
        add(proto)
        self.end_replaced(study.trials)

    def end_replaced(self, trials: Sequence['Trial']) -> None:
        """Ends the paused trials whose place others have taken."""
        takers = {trial.replaces: trial.id for trial in trials if trial.replaces is not None}
        for trial in trials:
            if trial.is_paused and trial.id in takers:
                self._end(trial, f'replaced by trial {takers[trial.id]}')

    def end_paused(self, trials: Sequence['Trial']) -> None:
        """Ends the trials that are paused still when the study is done."""
        for trial in trials:
            if trial.is_paused:
                self._end(trial, f'not promoted from step {trial.pauses[-1]}')

    def _end(self, trial: 'Trial', reason: str) -> None:
        # Other workers may do the same.
        with contextlib.suppress(RuntimeError):
            trial.end_early(reason)

    @property
    def _reward(self) -> Reward | None:
        rewards = self._study.rewards
        return rewards[0] if len(rewards) == 1 else None

    def _curve(self, trial: 'Trial') -> TrialCurve:
        # To read what hundreds of paused trials were measured at takes a while. When it was made
        # tells a trial from one that was deleted, and had its number.
        stands = (trial.created, trial.outcome, trial.num_measurements, len(trial.pauses))
        known = self._curves.get(trial.id)
        if known is None or known[0] != stands:
            known = self._curves[trial.id] = (stands, self._read(trial))
        return known[1]

    def _read(self, trial: 'Trial', until: int | None = None) -> TrialCurve:
        measured = [each for each in trial.measurements if until is None or each.step <= until]
        return TrialCurve(
            id=trial.id,
            state=_state(trial),
            measurements=measured,
            resources=resources.consumed(measured, self._scheduler.unit),
            max_resource=self._max_resource(trial),
            pauses=trial.pauses,
            decisions=trial.by_id,
            forked_from=trial.forked_from,
            replaces=trial.replaces,
        )

    def _max_resource(self, trial: 'Trial') -> float | None:
        key = (trial.id, trial.created)
        if key not in self._max_resources:
            self._max_resources[key] = self._find_max_resource(trial)
        return self._max_resources[key]

    def _find_max_resource(self, trial: 'Trial') -> float | None:
        space, unit = self._study.space, self._scheduler.unit
        if isinstance(self._study.value, Runnable):
            return self._study.value.max_resource(self._study, trial, unit)
        if not space.is_tunable:
            return None
        # Imported here: it imports JAX, and a study of a function has no use for it.
        from trainer.experiment import TrainLoop

        train = self._study.value.sym_getattr('train')
        if unit == 'steps' and isinstance(train, TrainLoop) and not space.sub_experiments:
            steps = train.sym_getattr('num_train_steps')
            if isinstance(steps, int):
                return float(steps)  # To make thousands of experiments takes a while.
        from paxtune.running.runners import parts_of

        try:
            return resources.max_resource(parts_of(space, trial.by_id), unit)
        except (UserError, ValueError):
            return None  # It will turn out to be infeasible.


def _state(
    trial: 'Trial',
) -> Literal['waiting', 'running', 'paused', 'completed', 'stopped']:
    if trial.is_terminal:
        return 'completed' if trial.stop_reason is None else 'stopped'
    if trial.state == 'REQUESTED':
        return 'waiting'
    return 'paused' if trial.is_paused else 'running'
