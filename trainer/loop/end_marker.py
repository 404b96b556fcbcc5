"""The mark that a training run leaves in its directory when it has ended.

Jobs that follow the run (`trainer.checkpoints.checkpoint_follower`) end with it. A run that was
interrupted, or killed, goes on some time and leaves none; one that goes on removes it first.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from trainer.loop.train_metrics import NonFiniteLossError
from trainer.runtime import processes
from trainer.runtime.directory import write_json
from trainer.runtime.signals import Signal

ENDED = 'ended.json'
"""The name of the mark: `{"step": 1000, "reason": "all steps are done"}`."""


@dataclasses.dataclass
class Ending:
    """What is known of a run when it ends.

    Attributes:
        step: the last one that was done.
    """

    step: int = 0


@contextlib.contextmanager
def marked(job_log_dir: epath.PathLike) -> Iterator[Ending]:
    """Around a run, its checkpoints included: marks that it has ended, where it has for good.

    That is when all is done, when code of the experiment or whoever listens stops it, and when its
    loss is not finite, since it would be again. Anything else may be put right, and the run go on.
    """
    ending = Ending()
    try:
        yield ending
    except (Signal, NonFiniteLossError) as error:
        _mark(job_log_dir, ending.step, str(error))
        raise
    except GeneratorExit:
        _mark(job_log_dir, ending.step, 'it was stopped by whoever listened')
        raise
    _mark(job_log_dir, ending.step, 'all steps are done')


def unmark(job_log_dir: epath.PathLike) -> None:
    """The run goes on."""
    if processes.is_first():
        (epath.Path(job_log_dir) / ENDED).unlink(missing_ok=True)


def ended(job_log_dir: epath.PathLike) -> dict[str, Any] | None:
    """The mark of a run; None where it has not ended."""
    try:
        found = json.loads((epath.Path(job_log_dir) / ENDED).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _mark(job_log_dir: epath.PathLike, step: int, reason: str) -> None:
    # There is no directory where the run ended before it began.
    if processes.is_first() and epath.Path(job_log_dir).exists():
        write_json(epath.Path(job_log_dir) / ENDED, {'step': step, 'reason': reason})
