import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orbax.checkpoint.experimental.v1 as ocp
from absl import logging
from etils import epath

from trainer.checkpoints import save_barriers
from trainer.checkpoints.manifest import DamagedError, Manifest, Progress, stored
from trainer.checkpoints.retention import RetentionPolicy
from trainer.runtime import processes
from trainer.runtime.data_paths import data_path
from trainer.runtime.directory import absolute, is_local
from trainer.runtime.wall_clock import CHECKPOINTS, during
from trainer.state import TrainState
from trainer.symbolic.errors import SaveError, UserError, is_disk_full, shortened

METADATA = '_CHECKPOINT_METADATA'
"""File that marks a directory as a checkpoint, as Orbax names it."""

COMMITTED = 'commit_success.txt'
"""File that completes a checkpoint in a remote store. It is written last."""


# Orbax logs a save that fails several times, with tracebacks; `SaveError` reports it once.
logging.get_absl_logger().addFilter(
    lambda each: not (each.exc_info and each.exc_info[1] and is_disk_full(each.exc_info[1]))
)


Frozen = Callable[[], Any]
"""Loads the parameters of a run as at its start, to stand beside stored adapters."""


class Restored(NamedTuple):
    """A checkpoint that has been read.

    Attributes:
        state: its arrays, on the mesh.
        progress: the progress of the run.
    """

    step: int
    path: str
    state: TrainState
    progress: Progress


class CheckpointStore:
    """The checkpoints of one run, under `<directory>/<step>`.

    A save copies the state and returns; writing continues during the next steps. A checkpoint
    counts once it is complete. A process that dies while writing leaves a temporary directory,
    which the next process removes.

    Attributes:
        retention: selects the checkpoints to keep; None for a reader.
        last: the step and the path of the last checkpoint that was restored or saved.
    """

    @during(CHECKPOINTS)
    def __init__(self, directory: epath.PathLike, retention: RetentionPolicy | None = None):
        """Opens the checkpoints in a directory.

        Args:
            retention: selects the checkpoints to keep when a new one is written; None for a
                reader, which changes nothing: a run may be writing there.

        Raises:
            UserError: Orbax can open none of the checkpoints, since the metadata of one is damaged.
                A writer with older checkpoints renames that one instead. Or a writer's directory
                is a symbolic link.
        """
        self.retention = retention
        self.last: tuple[int, str] | None = None
        # Orbax rejects relative paths, but only when it writes.
        self._directory = absolute(directory)
        if retention is not None and os.path.islink(self._directory):
            raise UserError(
                f'{self._directory} is a symbolic link, and old checkpoints would be deleted where '
                'it leads to. Let the whole --job_log_dir be one, or move the link away'
            )
        opened = functools.partial(
            ocp.training.Checkpointer,
            self._directory,
            context=save_barriers.context(),
            preservation_policy=None if retention is None else retention.policy,
            cleanup_tmp_directories=retention is not None,
        )
        try:
            self._checkpointer = opened()
        except ValueError as error:
            _set_damaged_aside(self._directory, retention is not None, error)
            self._checkpointer = opened()
        self._saving: ocp.AsyncResponse[bool] | None = None
        self._path = str(self._directory)  # Path of the last save.

    @during(CHECKPOINTS)
    def save(self, step: int, state: TrainState, progress: Progress) -> str:
        """Starts to write a checkpoint, and returns its path.

        Raises:
            SaveError: this save, or the previous one, failed.
        """
        self._finish_save()
        tree = dict(vars(state))
        self._path = str(self._directory / str(step))
        with self._saves():
            # `force`: the loop decides when to save. Orbax's own policies skip saves silently.
            self._saving = self._checkpointer.save_checkpointables_async(
                step,
                {'state': stored(tree)},
                force=True,
                overwrite=True,
                custom_metadata=Manifest.of(tree, progress).to_json(),
            )
            if self._saving is None:
                raise RuntimeError('orbax did not save it')
        self.last = step, self._path
        return self._path

    @property
    def newest(self) -> int | None:
        """The newest step; a round of `processes`."""
        steps = [checkpoint.step for checkpoint in self._checkpointer.checkpoints]
        found: int | None = processes.broadcast(max(steps, default=None))
        return found

    def path_of(self, step: int) -> str | None:
        """The path of the checkpoint of a step, if that is the last one."""
        return self.last[1] if self.last is not None and self.last[0] == step else None

    @during(CHECKPOINTS)
    def restore(self, abstract: TrainState, frozen: Frozen | None = None) -> Restored | None:
        """Restores the newest readable checkpoint; None if there are no checkpoints.

        Args:
            frozen: loads the parameters beside adapters; None where all are stored.

        Raises:
            UserError: the newest checkpoint belongs to another model, optimizer or version of this
                program, or no checkpoint is readable.
        """
        damaged: list[str] = []
        steps = [checkpoint.step for checkpoint in reversed(self._checkpointer.checkpoints)]
        for step in processes.broadcast(steps):
            path = self._directory / str(step)
            try:
                return self.restore_step(step, abstract, frozen)
            except DamagedError as error:
                # Damaged or half-written: log it and try an older one.
                logging.warning('Checkpoint %s cannot be read (%s); trying older', path, error)
                if any(path.iterdir()):
                    damaged.append(f'{path} ({error})')
        if damaged:
            raise UserError(
                f'No checkpoint can be read: {"; ".join(damaged)}. Repair them, or move them away '
                'to start again.'
            )
        return None

    def restore_step(
        self, step: int, abstract: TrainState, frozen: Frozen | None = None
    ) -> Restored:
        """Restores the checkpoint of a step.

        Raises:
            DamagedError: it cannot be read.
            UserError: it belongs to another experiment or version.
        """
        manifest, state = self._read(step, abstract)
        path = self._directory / str(step)
        found = completed(step, path, manifest, state, frozen)
        self.last = step, str(path)
        return found

    @during(CHECKPOINTS)
    def wait(self) -> None:
        """Waits until everything is written; raises SaveError if a save failed."""
        self._finish_save()
        with self._saves():
            self._checkpointer.wait()

    @during(CHECKPOINTS)
    def close(self) -> None:
        """Waits until everything is written, and closes; raises SaveError if a save failed."""
        try:
            self._finish_save()
        finally:
            with self._saves():
                self._checkpointer.close()

    def _finish_save(self) -> None:
        # A save without a call of `result` leaves a thread and three files open.
        saving, self._saving = self._saving, None
        if saving is not None:
            with self._saves():
                saving.result()

    @contextlib.contextmanager
    def _saves(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            message = f'the checkpoint {self._path} could not be written: {reason_of(error)}'
            raise SaveError(message, self._path) from error

    def _read(self, step: int, abstract: TrainState) -> tuple[Manifest, TrainState]:
        """Reads a checkpoint, with the same outcome in all processes."""
        path, wanted, reason = self._directory / str(step), stored(vars(abstract)), ''
        try:
            metadata = self._checkpointer.checkpointables_metadata(step)
            found = Manifest.from_json(path, metadata.custom_metadata)
            found.check_same(path, wanted)
            loaded = self._checkpointer.load_checkpointables(step, {'state': wanted})
        except UserError:
            raise
        except Exception as error:
            reason = reason_of(error)
        if processes.agree(bool(reason)):
            raise DamagedError(reason or 'another process cannot read it')
        found.verify(loaded['state'])
        return found, TrainState(**loaded['state'])


def completed(
    step: int,
    path: epath.PathLike,
    manifest: Manifest,
    state: TrainState,
    frozen: Frozen | None,
) -> Restored:
    """A checkpoint with the parameters that are not in it; raises as `Manifest.completed`."""
    if manifest.frozen:
        assert frozen is not None, path
        params = manifest.completed(epath.Path(path), state.params, frozen)
        state = dataclasses.replace(state, params=params)
    return Restored(step, str(path), state, manifest.progress)


def newest_checkpoint(path: epath.PathLike) -> epath.Path | None:
    """The checkpoint at `path`, or the newest one in it; None if there is none."""
    directory = absolute(data_path(path))
    if not directory.is_dir():
        return None
    if _is_checkpoint(directory):
        return directory
    return max(saved_checkpoints(directory), key=lambda step: int(step.name), default=None)


def saved_checkpoints(directory: epath.Path) -> list[epath.Path]:
    """The complete checkpoints in a directory, in no order; FileNotFoundError without it."""
    steps = [child for child in directory.iterdir() if child.name.isdigit()]
    return [step for step in steps if _is_checkpoint(step)]


def _is_checkpoint(directory: epath.Path) -> bool:
    # Orbax's `is_orbax_checkpoint` accepts any directory that has subdirectories. A complete
    # checkpoint has its final name on a local disk, and its last file in a remote store.
    if not (directory / METADATA).exists():
        return False
    return is_local(directory) or (directory / COMMITTED).exists()


def reason_of(error: Exception) -> str:
    """The reason of an error, on one line."""
    text = str(error) if isinstance(error, DamagedError) else f'{type(error).__name__}: {error}'
    return shortened(text.splitlines()[0], max_length=300)


def _set_damaged_aside(directory: epath.Path, may_write: bool, error: ValueError) -> None:
    """Renames the checkpoints with damaged metadata, where others are left; else raises."""
    saved = saved_checkpoints(directory)
    damaged = sorted(path for path in saved if _is_unknown(path))
    if not damaged:
        raise error
    names = ', '.join(map(str, damaged))
    if not may_write or len(damaged) == len(saved) or not is_local(directory):
        raise UserError(
            f'the metadata of {names} is damaged ({error}): move that checkpoint away'
        ) from error
    processes.agree()  # All have looked.
    for path in damaged if processes.is_first() else []:
        asides = (path.with_name(f'damaged-{path.name}-{i}') for i in itertools.count(1))
        path.rename(next(each for each in asides if not each.exists()))
    logging.warning('The metadata of %s is damaged: renamed to damaged-…; trying older', names)
    processes.agree()


def _is_unknown(checkpoint: epath.Path) -> bool:
    try:
        ocp.checkpointables_metadata(checkpoint)
    except Exception:
        return True
    return False
