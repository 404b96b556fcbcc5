"""End of a worker that the scheduler of a cluster keeps."""

from collections.abc import Callable
from typing import NamedTuple

from paxtune.running.supervisor import DETACHED, STOPPED, WorkerError
from paxtune.study.transitions import DetachedError
from trainer.symbolic.errors import UserError


class Outcome(NamedTuple):
    """The end of a worker.

    Attributes:
        code: an exit code of `paxtune.worker`; 0 where there are no more trials.
        message: of an error.
        false_starts: the number of its processes in a row that ended without a trial.
    """

    code: int
    message: str = ''
    false_starts: int = 0

    def require_success(self) -> None:
        """Raises the error that ended the worker, if one did."""
        if self.code == 2:
            raise UserError(self.message)
        if self.code:
            raise WorkerError(self.message)


def outcome_of(run: Callable[[], Outcome]) -> Outcome:
    """Calls `run`, and returns the outcome where it raises an error of a supervisor."""
    try:
        return run()
    except UserError as error:
        return Outcome(2, str(error))
    except WorkerError as error:
        return Outcome(STOPPED, str(error))
    except DetachedError as error:
        return Outcome(DETACHED, str(error))
