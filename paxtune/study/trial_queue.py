"""The next trial of a study: one that waits, one that is suggested now, or none."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paxtune.algorithms import Exhausted
from paxtune.schedulers import Fork, Promote, Wait
from paxtune.storage import vizier_protos
from paxtune.storage.vizier_store import TrialProto
from paxtune.study import stop_requests, stopping_criteria, trial_state
from paxtune.study.prefetch import AHEAD, AskingAhead, note_start
from paxtune.study.trial import MEMO, Trial
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.study.study import Study


class NextTrial:
    """Hands out the trials of a study to this process, and knows when there are no more."""

    def __init__(self, study: 'Study') -> None:
        """Reads what is noted of the study; nothing is asked yet."""
        self._study = study
        self._thread = AskingAhead(self._ask_ahead)
        self._exhausted_at = int(study.notes.get('exhausted', -1))

    def take(self) -> Trial | None:
        """The next trial to run: see `Study.suggest`."""
        trial = self._take()
        if trial is not None and self._study.suggestions.algorithm.prefetches:
            self._thread.begin()
        return trial

    def wait(self) -> None:
        """Waits until the trial that is asked for ahead is there, if any is."""
        self._thread.wait()

    def stop_asking(self) -> None:
        """Waits likewise; from then on this process asks for nothing by itself."""
        self._thread.close()

    def done_reason(self, trials: Sequence[Trial]) -> str | None:
        """Why the study needs no more trials than these; None while it does."""
        sign = self._study.signs[0] if self._study.signs else 1.0
        if reason := stopping_criteria.used_up(self._study.search, trials, sign):
            return reason
        # What was suggested ahead is left alone where the study was told to be shorter since.
        wanted: Sequence[Trial] = [trial for trial in trials if not trial.is_ahead]
        action = self._action(trials)
        if len(wanted) >= self._study.num_trials:
            reason = f'it has all of its {len(wanted)} trials'
        elif self.is_exhausted(trials):
            reason = f'there are no more than {len(trials)} different experiments in its space'
            wanted = trials
        elif isinstance(action, Wait):
            reason = action.reason
        else:
            return None
        are_over = all(trial.is_terminal or trial.is_paused for trial in wanted)
        return reason if are_over and not isinstance(action, Promote | Fork) else None

    def is_exhausted(self, trials: Sequence[Trial]) -> bool:
        """Whether nothing is left in the space that none of these has tried and could be."""
        if self._study.suggestions.repeat_due(trials) is not None:
            return False
        # What the algorithm found holds until a trial is deleted.
        if 0 <= self._exhausted_at <= len(trials):
            return True
        size = self._study.space.size
        if size is None or len(trials) < size:
            return False
        return len({tuple(trial.by_id.items()) for trial in trials}) >= size

    def _take(self) -> Trial | None:
        while True:
            trials = self._study.trials
            if self.done_reason(trials) is not None:
                self._end_paused(trials)
                return None
            action = self._action(trials)
            if isinstance(action, Promote | Fork) and not self._is_any_adrift(trials):
                self._act()
                continue
            if self._study.store.is_shared or not all(trial.is_terminal for trial in trials):
                claimed = self._study.store.claim()
                if claimed is not None:
                    return Trial(
                        claimed, self._study, resumed=trial_state.times_claimed(claimed) > 1
                    )
            if self._thread.wait():
                continue  # It is not made twice.
            if isinstance(action, Wait) or not self._has_room(trials):
                return None
            with contextlib.suppress(trial_state.TurnLostError), self._study.store.turn() as add:
                trial = self._suggest(add, TrialProto.State.ACTIVE)
                if trial is not None:
                    return trial

    def _action(self, trials: Sequence[Trial]) -> Promote | Fork | Wait | None:
        """What the scheduler wants to be done before anything new is suggested."""
        advancing = self._study.advancing
        if advancing is None:
            return None
        return advancing.next(trials, self._has_room(trials))

    def _has_room(self, trials: Sequence[Trial]) -> bool:
        """Whether the study may get one more trial than these."""
        return len(trials) < self._study.num_trials and not self.is_exhausted(trials)

    def _is_any_adrift(self, trials: Sequence[Trial]) -> bool:
        """Whether a trial is under way that nobody runs: it is taken up first."""
        store = self._study.store
        under_way = [each for each in trials if each.state == 'ACTIVE' and not each.is_paused]
        return any(not store.is_shared or not each.holder for each in under_way)

    def _act(self) -> None:
        """Does what the scheduler wants, if it wants it still when this worker has the turn."""
        advancing = self._study.advancing
        assert advancing is not None
        with contextlib.suppress(trial_state.TurnLostError), self._study.store.turn() as add:
            advancing.end_replaced(self._study.trials)
            action = self._action(self._study.trials)
            if isinstance(action, Promote | Fork):
                advancing.act(action, add)

    def _end_paused(self, trials: Sequence[Trial]) -> None:
        """Ends what is paused, unless the study has only run out of hours: it may get more."""
        study = self._study
        if study.advancing is not None and not stopping_criteria.hours_used_up(
            study.search, trials
        ):
            study.advancing.end_replaced(trials)
            study.advancing.end_paused(self._study.trials)

    def _ask_ahead(self) -> None:
        while not stop_requests.is_paused(self._study.store):
            with contextlib.suppress(trial_state.TurnLostError), self._study.store.turn() as add:
                self._suggest(add, TrialProto.State.REQUESTED)
                return

    def _suggest(self, add: Callable[[TrialProto], TrialProto], state: int) -> Trial | None:
        # As they stand now: others may have had their turns before this one.
        trials = self._study.trials
        if self.done_reason(trials) is not None or len(trials) >= self._study.num_trials:
            return None
        if self._action(trials) is not None:
            if state == TrialProto.State.REQUESTED:
                return None
            raise trial_state.TurnLostError('the scheduler wants something else')
        if any(trial.state == 'REQUESTED' for trial in trials):
            if state == TrialProto.State.REQUESTED:
                return None
            raise trial_state.TurnLostError('a trial waits to be run')
        number = trials[-1].id + 1 if trials else 1
        try:
            suggestion, notes = self._study.suggestions.next(number)
        except Exhausted:
            if not trials and (reason := self._study.suggestions.commonest_reason):
                raise UserError(f'nothing in the search space is feasible: {reason}') from None
            self._study.store.write_study_notes({'exhausted': str(len(trials))})
            self._exhausted_at = len(trials)
            return None
        notes = notes | {f'{MEMO}{key}': value for key, value in suggestion.algorithm_state.items()}
        if suggestion.parent is not None and suggestion.parent > 0:
            notes = notes | {'parent': str(suggestion.parent)}
            if self._study.search.warm_start == 'parent':
                notes |= {'warm_start': str(suggestion.parent)}
        if state == TrialProto.State.REQUESTED:
            notes |= {AHEAD: 'true'}
        proto = vizier_protos.new_trial(self._study.space.spec, suggestion.decisions, notes, state)
        proto.id = str(number)
        if state == TrialProto.State.ACTIVE:
            open_ = [trial for trial in trials if not trial.is_terminal]
            note_start(proto, {trial.id: trial.paused_at for trial in open_})
        return Trial(add(proto), self._study)
