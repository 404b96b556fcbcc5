"""A study in a database of this process's own, and the trials that it gives out to itself."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from paxtune.storage.database import Database
from paxtune.storage.vizier_store import STATES, Store, TrialProto
from paxtune.study import prefetch, trial_state
from paxtune.study.trial_state import Loss, TurnLostError


class LocalStore(Store):
    """The one study of a database that no other process takes trials from.

    Attributes:
        worker: the name of this process.
        flags: how commands are told where it is, beside its directory.
    """

    is_shared = False
    flags: list[str] = []

    def __init__(self, database: Database, name: str = 'study') -> None:
        """Makes the store of a study that is in a database, or will be."""
        super().__init__(database, name)
        self.worker = trial_state.new_worker()

    def claim(self) -> TrialProto | None:
        """A trial to run that is there already; None where there is none.

        One that was given out before and has not ended comes first: whoever had it is gone. Those
        that are paused are left alone.
        """
        with self.database.transaction():
            states = ('ACTIVE', 'REQUESTED')
            unended = [each for each in self.trials() if STATES[each.state] in states]
            open_ = {int(each.id): trial_state.paused_at(each) for each in unended}
            for state in states:
                for each in unended:
                    id_ = int(each.id)
                    if STATES[each.state] == state and open_[id_] is None:
                        return self.update_trial(id_, lambda trial: self._take(trial, open_))
        return None

    @contextlib.contextmanager
    def turn(self) -> Iterator[Callable[[TrialProto], TrialProto]]:
        """The turn to suggest. What it yields adds the trial that was suggested.

        That raises `TurnLostError` where its number was taken in the meantime.
        """

        def add(trial: TrialProto) -> TrialProto:
            if STATES[trial.state] == 'ACTIVE':
                trial_state.hand_out(trial, self.worker)
            with self.database.transaction():
                if int(trial.id) != self.max_id() + 1:
                    raise TurnLostError('trials were added in the meantime')
                return self.add_trial(trial)

        yield add

    def lose(self, id_: int, loss: Loss, max_attempts: int, step: int = 0) -> TrialProto:
        """Gives back a trial: see `paxtune.study.trial_state.lose`."""
        return self.update_trial(
            id_, lambda trial: trial_state.lose(trial, loss, max_attempts, step)
        )

    def _take(self, trial: TrialProto, unended: Mapping[int, int | None]) -> None:
        prefetch.note_start(trial, unended)
        if trial_state.holder(trial) not in ('', self.worker):
            # It is never given up for that: somebody starts the search again each time.
            trial_state.record(
                trial, 'lost', worker=trial_state.holder(trial), detail='the search was killed'
            )
        trial_state.hand_out(trial, self.worker)
