"""Group commit: calls that come at the same time share a transaction.

The database takes as long for many as for one.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import sqlalchemy

from paxtune.service.updates import Update
from paxtune.storage.database import DatabaseUnavailableError

_Reply = TypeVar('_Reply')


class Call(Generic[_Reply]):
    """A call that waits for a transaction.

    Attributes:
        update: a trial that is written before the call is made; None for a call without one.
        is_committed: the transaction was committed.
        has_ended: the transaction was committed, or has failed.
    """

    def __init__(self, reply: Callable[[], _Reply], update: Update | None = None) -> None:
        """Waits; in the transaction, `reply` makes the call."""
        self.update = update
        self.is_committed = self.has_ended = False
        self._call, self._replies = reply, list[_Reply]()
        self._error: BaseException | None = None

    def make(self) -> None:
        """Makes the call. An error of its own hinders no other call of the transaction."""
        try:
            self._replies.append(self._call())
        except (DatabaseUnavailableError, sqlalchemy.exc.SQLAlchemyError):
            raise
        except Exception as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the call with an error, unless it has one of its own."""
        self._error = self._error or error

    def result(self) -> _Reply:
        """Returns the reply of the committed call; raises its error."""
        if self._error is not None:
            raise self._error
        if not self.is_committed:  # An interrupt is no error of this call, which is sent again.
            raise DatabaseUnavailableError('the transaction was interrupted')
        return self._replies[0]


class GroupCommit:
    """The calls that wait for the next transaction."""

    def __init__(
        self, lock: threading.RLock, transaction: Callable[[Sequence[Call[Any]]], None]
    ) -> None:
        """Waits for calls; `transaction` makes some, under the lock, or fails them all."""
        self._lock, self._transaction = lock, transaction
        self._waiting: list[Call[Any]] = []

    def make(self, call: Call[_Reply]) -> _Reply:
        """Has a call made, together with all that wait; returns its reply or raises its error."""
        self._waiting.append(call)
        with self._lock:
            # The previous owner of the lock may have made this call in its own transaction.
            while not call.has_ended:
                self._make(self._waiting[:])
        return call.result()

    def _make(self, calls: Sequence[Call[Any]]) -> None:
        try:
            self._transaction(calls)
            for each in calls:
                each.is_committed = True
        except Exception as error:
            for each in calls:
                each.fail(error)
        finally:  # Also after an interrupt of this thread: no caller waits for ever.
            for each in calls:
                each.has_ended = True
            del self._waiting[: len(calls)]
