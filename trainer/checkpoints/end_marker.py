"""End marker: a file that a training run writes into its directory when it has ended.

Jobs that watch the run (`trainer.checkpoints.checkpoint_watcher`) stop when they find it. An
interrupted or killed run writes none, because it will resume; a resumed run removes it first.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

from trainer.runtime import processes
from trainer.runtime.directory import read_text, write_json
from trainer.runtime.signals import Signal
from trainer.symbolic.errors import NonFiniteLossError

ENDED = 'ended.json'
"""Name of the marker: `{"step": 1000, "reason": "all steps are done"}`."""


@dataclasses.dataclass
class EndMarker:
    """Content of the marker: the last completed step."""

    step: int = 0


@contextlib.contextmanager
def marks_end(job_log_dir: epath.PathLike) -> Iterator[EndMarker]:
    """Context manager of a run that writes the marker if the run has ended for good.

    A run has ended when all steps are done, or when the experiment or the consumer of the reports
    stops it. So has a run whose loss is not finite, since it would be again. After any other error
    the run may resume.
    """
    marker = EndMarker()
    with on_early_exit(job_log_dir, marker):
        try:
            yield marker
        except GeneratorExit:
            _write(job_log_dir, marker.step, 'the consumer of the reports stopped the run')
            raise
    _write(job_log_dir, marker.step, 'all steps are done')


@contextlib.contextmanager
def on_early_exit(job_log_dir: epath.PathLike, marker: EndMarker | None = None) -> Iterator[None]:
    """Context manager that writes the marker if the experiment stops itself, or diverges."""
    try:
        yield
    except (Signal, NonFiniteLossError) as error:
        _write(job_log_dir, 0 if marker is None else marker.step, str(error))
        raise


def remove(job_log_dir: epath.PathLike) -> None:
    """Removes the marker of a run that resumes."""
    if processes.is_first():
        (epath.Path(job_log_dir) / ENDED).unlink(missing_ok=True)


def ended(job_log_dir: epath.PathLike) -> dict[str, Any] | None:
    """Reads the marker of a run; None if the run has not ended."""
    try:
        found = json.loads(read_text(epath.Path(job_log_dir) / ENDED))
    except (FileNotFoundError, RecursionError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(job_log_dir: epath.PathLike, step: int, reason: str) -> None:
    # There is no directory if the run ended before it began.
    if processes.is_first() and epath.Path(job_log_dir).exists():
        write_json(epath.Path(job_log_dir) / ENDED, {'step': step, 'reason': reason})
