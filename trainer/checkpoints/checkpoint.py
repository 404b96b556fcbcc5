"""Checkpoints: the train state and the progress of the run, written while training goes on."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import orbax.checkpoint.experimental.v1 as ocp
from absl import logging
from etils import epath

from trainer.checkpoints import save_barriers
from trainer.checkpoints.manifest import DamagedError, Manifest
from trainer.checkpoints.retention import RetentionPolicy
from trainer.runtime import processes
from trainer.runtime.directory import absolute, is_local
from trainer.state import TrainState
from trainer.symbolic.errors import SaveError, UserError, shortened

METADATA = '_CHECKPOINT_METADATA'
"""The file in a checkpoint that makes a directory one, as Orbax names it."""

COMMITTED = 'commit_success.txt'
"""The file that makes a checkpoint count in a remote store. It is written last."""


class Restored(NamedTuple):
    """A checkpoint that has been read.

    Attributes:
        step: its step.
        path: where it is.
        state: the arrays in it, on the mesh.
        progress: what else was saved with it.
    """

    step: int
    path: str
    state: TrainState
    progress: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run, under `<directory>/<step>`.

    A save copies the state and returns; the writing goes on beside the next steps. A checkpoint
    counts once it is complete: a process that dies while writing leaves a temporary directory,
    which the next one removes.
    """

    def __init__(self, directory: epath.PathLike, retention: RetentionPolicy | None = None):
        """Opens the checkpoints in a directory.

        Args:
            directory: where they are.
            retention: selects the checkpoints to keep when a new one is written; None for a
                reader, which changes nothing: a run may be writing there.
        """
        # Orbax refuses relative paths, and only when it writes.
        self._directory = absolute(directory)
        self._checkpointer = ocp.training.Checkpointer(
            self._directory,
            context=save_barriers.context(),
            preservation_policy=None if retention is None else retention.policy,
            cleanup_tmp_directories=retention is not None,
        )
        self._saving: ocp.AsyncResponse[bool] | None = None
        self._path = str(self._directory)  # Of the last save.

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> str:
        """Starts to write a checkpoint and returns its path.

        Args:
            step: its name.
            state: the arrays in it.
            progress: what else a resumed run needs, as JSON data.

        Raises:
            SaveError: it failed already, or the save before this one did.
        """
        self._finish_save()
        tree = _as_dict(state)
        self._path = str(self._directory / str(step))
        with self._saves():
            # `force`: when to save is decided by the loop. Orbax's own policies skip in silence.
            self._saving = self._checkpointer.save_checkpointables_async(
                step,
                {'state': tree},
                force=True,
                overwrite=True,
                custom_metadata=Manifest.of(tree, progress).to_json(),
            )
            if self._saving is None:
                raise RuntimeError('orbax did not save it')
        return self._path

    def restore(self, abstract: TrainState) -> Restored | None:
        """The newest checkpoint that can be read; None where there is none at all.

        Raises:
            UserError: the newest checkpoint is of another model or optimizer, or of another
                version of this program, or none of those that are there can be read.
        """
        damaged: list[str] = []
        steps = [checkpoint.step for checkpoint in reversed(self._checkpointer.checkpoints)]
        for step in processes.broadcast(steps):
            path = self._directory / str(step)
            try:
                return self.restore_step(step, abstract)
            except DamagedError as error:
                # Damaged or half-written: say so, and go on from the one before.
                logging.warning('Checkpoint %s cannot be read (%s); trying older', path, error)
                if any(path.iterdir()):
                    damaged.append(f'{path} ({error})')
        if damaged:
            raise UserError(
                f'No checkpoint can be read: {"; ".join(damaged)}. Put right what keeps them from '
                'being read, or move them away to start anew.'
            )
        return None

    def restore_step(self, step: int, abstract: TrainState) -> Restored:
        """The checkpoint of a step.

        Raises:
            DamagedError: it cannot be read.
            UserError: it is of another experiment or version.
        """
        found, state = self._read(step, abstract)
        return Restored(step, str(self._directory / str(step)), state, found.progress)

    def wait(self) -> None:
        """Waits until everything is written.

        Raises:
            SaveError: a save failed.
        """
        self._finish_save()
        with self._saves():
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits until everything is written and lets go of the directory.

        Raises:
            SaveError: a save failed.
        """
        try:
            self._finish_save()
        finally:
            with self._saves():
                self._checkpointer.close()

    def _finish_save(self) -> None:
        """Waits for the save that is under way, and lets go of its thread.

        Nobody else does: each save that is not asked for its result leaves a thread and three
        files open.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            with self._saves():
                saving.result()

    @contextlib.contextmanager
    def _saves(self) -> Iterator[None]:
        """Around what a failed save may come out of, as whatever orbax and tensorstore raise."""
        try:
            yield
        except Exception as error:
            reason = reason_of(error)
            message = f'the checkpoint {self._path} could not be written: {reason}'
            raise SaveError(message, self._path) from error

    def _read(self, step: int, abstract: TrainState) -> tuple[Manifest, TrainState]:
        """What is in a checkpoint; all processes find the same of it.

        Raises:
            DamagedError: it is damaged, as some process finds.
            UserError: it is whole, and of another experiment or version.
        """
        path, reason = self._directory / str(step), ''
        try:
            found = Manifest.from_json(path, self._metadata(step))
            found.check_same(path, _as_dict(abstract))
            loaded = self._checkpointer.load_checkpointables(step, {'state': _as_dict(abstract)})
        except UserError:
            raise
        except Exception as error:
            reason = reason_of(error)
        if processes.agree(bool(reason)):
            raise DamagedError(reason or 'by another process')
        found.verify(loaded['state'])
        return found, TrainState(**loaded['state'])

    def _metadata(self, step: int) -> Any:
        return self._checkpointer.checkpointables_metadata(step).custom_metadata


def newest_checkpoint(path: epath.PathLike) -> epath.Path | None:
    """The checkpoint at `path`, or the newest of those in it; None where there is none."""
    directory = absolute(epath.Path(path).expanduser())
    if not directory.is_dir():
        return None
    if _is_checkpoint(directory):
        return directory
    return max(saved_checkpoints(directory), key=lambda step: int(step.name), default=None)


def saved_checkpoints(directory: epath.Path) -> list[epath.Path]:
    """The complete checkpoints in a directory, in no order.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    steps = [child for child in directory.iterdir() if child.name.isdigit()]
    return [step for step in steps if _is_checkpoint(step)]


def _is_checkpoint(directory: epath.Path) -> bool:
    # Orbax's own `is_orbax_checkpoint` takes any directory with directories in it for one. On a
    # local disk a checkpoint gets its name when it is complete, in a remote store its last file.
    if not (directory / METADATA).exists():
        return False
    return is_local(directory) or (directory / COMMITTED).exists()


def reason_of(error: Exception) -> str:
    """The reason in an error, in a line."""
    text = str(error) if isinstance(error, DamagedError) else f'{type(error).__name__}: {error}'
    return shortened(text.splitlines()[0], most=300)


def _as_dict(state: TrainState) -> dict[str, Any]:
    return dict(vars(state))
