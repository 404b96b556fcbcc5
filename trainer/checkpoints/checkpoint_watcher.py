"""Checkpoint watcher: jobs that process each checkpoint of a run, in order, as it appears.

Each job has a directory, `<job_log_dir>/jobs/<job>`, where it notes its progress. The run keeps
all checkpoints that a live job has not processed yet (`first_unprocessed`). A job counts as live
until ten minutes after its last heartbeat. A job that restarts within that time misses nothing; a
job that is gone holds no checkpoint forever.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging
from etils import epath

from trainer.checkpoints.checkpoint import CheckpointStore, Frozen, Restored, saved_checkpoints
from trainer.checkpoints.end_marker import ended
from trainer.checkpoints.manifest import DamagedError
from trainer.runtime import processes
from trainer.runtime.directory import (
    JobPath,
    create,
    is_local,
    job_path,
    locked,
    read_text,
    write_json,
)
from trainer.state import TrainState

JOBS = 'jobs'
"""Directory of the directories of the jobs."""

PROGRESS = 'progress.json'
"""`{"done": 300, "alive": 1.7e9}`: the last processed step, -1 for none; and the time of the last
heartbeat in seconds since 1970, None for a job that has ended."""

GRACE = 600.0
"""Seconds for which checkpoints are kept after the last heartbeat of a job. The clocks of the
machines may differ by a part of that."""

_POLL, _POLL_STORE = 1.0, 10.0


class CheckpointWatcher:
    """Waits for the checkpoints of a run; made by `watch_checkpoints`.

    Attributes:
        directory: directory of the job.
        done: the last processed step, of this process or an earlier one; -1 for none.
    """

    def __init__(
        self, job_log_dir: JobPath, job: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.directory = job_log_dir / JOBS / job
        self._job_log_dir, self._job = epath.Path(job_log_dir), job
        self._sleep = sleep
        self._writing = threading.Lock()
        found = _progress(epath.Path(self.directory)) if processes.is_first() else {}
        self.done: int = processes.broadcast(found.get('done', -1))

    def checkpoints(self, abstract: TrainState, frozen: Frozen | None = None) -> Iterator[Restored]:
        """Yields each unprocessed checkpoint, the oldest first, and waits for new ones.

        A checkpoint counts as processed when the caller asks for the next. An unreadable one is
        skipped with a message. Several processes must all call this.

        Raises:
            UserError: a checkpoint belongs to another experiment.
        """
        for step in self._steps():
            restored = self._read(step, abstract, frozen)
            if restored is not None:
                yield restored
            self.done = step
            self.heartbeat()

    def _steps(self) -> Iterator[int]:
        has_printed = False
        while True:
            has_ended, self.done, step = processes.broadcast(
                self._poll() if processes.is_first() else None
            )
            if step is not None:
                yield step
            elif has_ended:
                return
            else:
                if not has_printed:
                    self._print(f'waiting for checkpoints in {self._path}')
                    has_printed = True
                self._sleep(_POLL if is_local(self._path) else _POLL_STORE)

    def _poll(self) -> tuple[bool, int, int | None]:
        """Returns (training has ended, the last processed step, the next step to process)."""
        mark = ended(self._job_log_dir)  # Read first: no checkpoint comes after it.
        found = saved_checkpoints(self._path) if self._path.exists() else []
        steps, done = sorted(int(path.name) for path in found), self.done
        if steps and steps[-1] < done:
            self._print(f'training went back to step {steps[-1]}: processing it again')
            done = -1
        return mark is not None, done, next((step for step in steps if step > done), None)

    def _read(self, step: int, abstract: TrainState, frozen: Frozen | None) -> Restored | None:
        with contextlib.closing(CheckpointStore(self._path)) as reader:
            try:
                return reader.restore_step(step, abstract, frozen)
            except DamagedError as error:
                # Or deleted: the run may have been deleting it when this job began.
                self._print(f'checkpoint {self._path / str(step)} is left out: {error}')
                return None

    def heartbeat(self) -> None:
        """Writes the time, as proof that the job is live."""
        self._write(round(time.time(), 3))

    def end(self) -> None:
        """Releases all checkpoints: the run has ended, or the job needs none any more."""
        self._write(None)

    def _write(self, alive: float | None) -> None:
        if processes.is_first():
            with self._writing:
                write_json(self.directory / PROGRESS, {'done': self.done, 'alive': alive})

    @property
    def _path(self) -> epath.Path:
        return self._job_log_dir / 'checkpoints'

    def _print(self, text: str) -> None:
        if processes.is_first():
            print(f'{self._job}: {text}', flush=True)


@contextlib.contextmanager
def watch_checkpoints(
    job_log_dir: epath.PathLike,
    job: str,
    heartbeat_seconds: float = 20.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[CheckpointWatcher]:
    """Watches the checkpoints of a run, which may not have begun, for a job of a unique name.

    While the job is live, the run deletes no unprocessed checkpoint. The job is live until the
    end of the `with` block, or `GRACE` after an error, unless it restarts before that.

    Raises:
        UserError: the directory is not writable, or another process runs the job.
    """
    with contextlib.ExitStack() as held:
        directory = job_path(job_log_dir)
        if processes.is_first():
            own = directory / JOBS / job
            if is_local(own):
                held.enter_context(locked(own))
            else:
                create(own)  # There are no locks.
        watcher = CheckpointWatcher(directory, job, sleep)
        watcher.heartbeat()
        if processes.is_first():
            held.enter_context(_heartbeats(watcher, heartbeat_seconds))
        yield watcher
        held.close()  # No heartbeat comes after this.
        watcher.end()


@contextlib.contextmanager
def _heartbeats(watcher: CheckpointWatcher, seconds: float) -> Iterator[None]:
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(seconds):
            try:
                watcher.heartbeat()
            except Exception as error:  # A store may raise anything. The next one may succeed.
                logging.warning('A heartbeat failed: %s', error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def first_unprocessed(job_log_dir: epath.PathLike) -> int | None:
    """The first step that a live job has not processed; None if there is no live job.

    The job needs the checkpoints of that step and of all later ones.
    """
    jobs = epath.Path(job_log_dir) / JOBS
    found = [_progress(job) for job in jobs.iterdir()] if jobs.is_dir() else []
    now = time.time()
    live = [each for each in found if each.get('alive') and now - each['alive'] < GRACE]
    return min((each['done'] + 1 for each in live), default=None)


def _progress(directory: epath.Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(directory / PROGRESS))
        alive = found['alive']
        return {'done': int(found['done']), 'alive': None if alive is None else float(alive)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
