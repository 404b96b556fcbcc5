"""Jobs that follow a training run: they treat each of its checkpoints, in order, as it appears.

A job of that kind has a directory of its own, `<job_log_dir>/jobs/<job>`, in which it says which
checkpoints it has treated. The run deletes none that a living job still needs (`first_needed`). A
job counts as living until ten minutes after its last sign of life, so one that is started again
within that time misses nothing, and one that is gone holds nothing for ever.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath

from trainer.checkpoints.checkpoint import CheckpointStore, Restored, saved_checkpoints
from trainer.checkpoints.manifest import DamagedError
from trainer.loop.end_marker import ended
from trainer.runtime import processes
from trainer.runtime.directory import JobPath, create, is_local, job_path, locked, write_json
from trainer.state import TrainState

JOBS = 'jobs'
"""The directory of the directories of such jobs."""

PROGRESS = 'progress.json'
"""`{"done": 300, "alive": 1.7e9}`: the last step that was treated, -1 for none; and the time of the
last sign of life in seconds since 1970, None for a job that has ended."""

GRACE = 600.0
"""Seconds for which checkpoints are kept for a job that gives no sign of life. The clocks of the
machines may differ by a part of that."""

_BEAT = 20.0
_POLL, _POLL_STORE = 1.0, 10.0


class Follower:
    """A job that treats each checkpoint of a run; made by `following`.

    Attributes:
        directory: of its own, for what it writes.
        done: the last step that was treated, by this process or one before it; -1 for none.
    """

    def __init__(self, job_log_dir: JobPath, job: str) -> None:
        self.directory = job_log_dir / JOBS / job
        self._job_log_dir, self._job = epath.Path(job_log_dir), job
        self._writing = threading.Lock()
        found = _progress(epath.Path(self.directory)) if processes.is_first() else {}
        self.done: int = processes.broadcast(found.get('done', -1))

    def checkpoints(self, abstract: TrainState) -> Iterator[Restored]:
        """Each checkpoint that is to be treated, the oldest first; waits for those to come.

        One counts as treated when the next is asked for. One that cannot be read is left out, with
        a line about it. Of several processes all must do this.

        Args:
            abstract: shapes, dtypes and shardings of the state.

        Raises:
            UserError: a checkpoint is of another experiment.
        """
        for step in self._steps():
            restored = self._read(step, abstract)
            if restored is not None:
                yield restored
            self._note(step)

    def _steps(self) -> Iterator[int]:
        told = False
        while True:
            has_ended, self.done, step = processes.broadcast(
                self._look() if processes.is_first() else None
            )
            if step is not None:
                yield step
            elif has_ended:
                return
            else:
                if not told:
                    self._say(f'waiting for checkpoints in {self._path}')
                    told = True
                time.sleep(_POLL if is_local(self._path) else _POLL_STORE)

    def _look(self) -> tuple[bool, int, int | None]:
        """Whether training has ended, the last step treated, and the next to be treated."""
        mark = ended(self._job_log_dir)  # First: no checkpoint comes after it.
        found = saved_checkpoints(self._path) if self._path.exists() else []
        steps, done = sorted(int(path.name) for path in found), self.done
        if steps and steps[-1] < done:
            self._say(f'training was set back to step {steps[-1]}: what is there is done again')
            done = -1
        return mark is not None, done, next((step for step in steps if step > done), None)

    def _read(self, step: int, abstract: TrainState) -> Restored | None:
        with contextlib.closing(CheckpointStore(self._path)) as reader:
            try:
                return reader.restore_step(step, abstract)
            except DamagedError as error:
                # Or deleted: it may have been about to be when this job began.
                self._say(f'checkpoint {self._path / str(step)} is left out: {error}')
                return None

    def _note(self, step: int) -> None:
        self.done = step
        self.beat()

    def beat(self) -> None:
        """Gives a sign of life."""
        self._write(round(time.time(), 3))

    def end(self) -> None:
        """Lets go of all checkpoints: the run has ended, or the job needs none any more."""
        self._write(None)

    def _write(self, alive: float | None) -> None:
        if processes.is_first():
            with self._writing:
                write_json(self.directory / PROGRESS, {'done': self.done, 'alive': alive})

    @property
    def _path(self) -> epath.Path:
        return self._job_log_dir / 'checkpoints'

    def _say(self, text: str) -> None:
        if processes.is_first():
            print(f'{self._job}: {text}', flush=True)


@contextlib.contextmanager
def following(job_log_dir: epath.PathLike, job: str) -> Iterator[Follower]:
    """Follows a run, which need not have begun, as a job of this name.

    From here on the run deletes no checkpoint that is not treated, until the job ends: with the
    run, or `GRACE` after an error, unless the same job goes on before that.

    Args:
        job_log_dir: of the run.
        job: its name, such as 'eval'. In a directory there is one of each name.

    Raises:
        UserError: the directory cannot be written to, or another process is this job.
    """
    with contextlib.ExitStack() as held:
        directory = job_path(job_log_dir)
        if processes.is_first():
            own = directory / JOBS / job
            if is_local(own):
                held.enter_context(locked(own))
            else:
                create(own)  # There are no locks.
        follower = Follower(directory, job)
        follower.beat()
        if processes.is_first():
            held.enter_context(_beating(follower))
        yield follower
        held.close()  # No beat comes after this.
        follower.end()


@contextlib.contextmanager
def _beating(follower: Follower) -> Iterator[None]:
    """Gives signs of life meanwhile."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(_BEAT):
            try:
                follower.beat()
            except Exception as error:  # Whatever a store raises. The next one may succeed.
                logging.warning('No sign of life could be given: %s', error)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def first_needed(job_log_dir: epath.PathLike) -> int | None:
    """The first step whose checkpoint a living job may still need; None where none does.

    It needs all from there on.
    """
    jobs = epath.Path(job_log_dir) / JOBS
    found = [_progress(job) for job in jobs.iterdir()] if jobs.is_dir() else []
    now = time.time()
    living = [each for each in found if each.get('alive') and now - each['alive'] < GRACE]
    return min((each['done'] + 1 for each in living), default=None)


def _progress(directory: epath.Path) -> dict[str, Any]:
    """What a job says of itself; {} where it says nothing that can be understood."""
    try:
        found = json.loads((directory / PROGRESS).read_text())
        alive = found['alive']
        return {'done': int(found['done']), 'alive': None if alive is None else float(alive)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
