"""Checkpoints: the train state and the progress of the run, written while training goes on."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import jax
import orbax.checkpoint.experimental.v1 as ocp
from absl import logging
from etils import epath

from trainer import processes, saves
from trainer.directory import absolute, is_local
from trainer.errors import SaveError, UserError
from trainer.state import TrainState

_FORMAT = 1
_MOST_NAMED = 3
_METADATA = '_CHECKPOINT_METADATA'

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


class Checkpoints:
    """The checkpoints of one run, under `<directory>/<step>`.

    A save copies the state and returns; the writing goes on beside the next steps. A checkpoint
    counts once it is complete: a process that dies while writing leaves a temporary directory,
    which the next one removes.
    """

    def __init__(self, directory: epath.PathLike, max_to_keep: int | None = None):
        """Opens the checkpoints in a directory.

        Args:
            directory: where they are.
            max_to_keep: how many of the newest to keep as new ones are written; None for a
                reader, which changes nothing, since a run may be writing there.
        """
        # Orbax refuses relative paths, and only when it writes.
        self._directory = absolute(directory)
        policies = ocp.training.preservation_policies
        keep: Any = policies.LatestN(max_to_keep) if max_to_keep else None
        self._checkpointer = ocp.training.Checkpointer(
            self._directory,
            context=saves.context(),
            preservation_policy=keep,
            cleanup_tmp_directories=max_to_keep is not None,
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
        self._settle()
        metadata = {'format': _FORMAT, **progress}
        self._path = str(self._directory / str(step))
        with self._saves():
            # `force`: when to save is decided by the loop. Orbax's own policies skip in silence.
            self._saving = self._checkpointer.save_checkpointables_async(
                step,
                {'state': _as_dict(state)},
                force=True,
                overwrite=True,
                custom_metadata=metadata,
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
            path, reason = self._directory / str(step), ''
            try:
                metadata = self._checkpointer.checkpointables_metadata(step)
                progress: dict[str, Any] = dict(cast(Any, metadata.custom_metadata))
                _check_format(path, progress.pop('format'))
                if metadata.metadata['state'] is None:
                    raise ValueError('its metadata is damaged')
                self._check_same_tree(step, metadata.metadata['state'], _as_dict(abstract))
                loaded = self._checkpointer.load_checkpointables(
                    step, {'state': _as_dict(abstract)}
                )
            except UserError:
                raise
            except Exception as error:
                # Damaged or half-written: say so, and go on from the one before.
                reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            if processes.agree(bool(reason)):
                reason = reason or 'by another process'
                logging.warning('Checkpoint %s cannot be read (%s); trying older', path, reason)
                if any(path.iterdir()):
                    damaged.append(f'{path} ({reason})')
                continue
            return Restored(step, str(path), TrainState(**loaded['state']), progress)
        if damaged:
            raise UserError(
                f'No checkpoint can be read: {"; ".join(damaged)}. Put right what keeps them from '
                'being read, or move them away to start anew.'
            )
        return None

    def wait(self) -> None:
        """Waits until everything is written.

        Raises:
            SaveError: a save failed.
        """
        self._settle()
        with self._saves():
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits until everything is written and lets go of the directory.

        Raises:
            SaveError: a save failed.
        """
        try:
            self._settle()
        finally:
            with self._saves():
                self._checkpointer.close()

    def _settle(self) -> None:
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
            reason = f'{type(error).__name__}: {error}'.splitlines()[0]
            message = f'the checkpoint {self._path} could not be written: {reason}'
            raise SaveError(message, self._path) from error

    def _check_same_tree(self, step: int, stored: Any, wanted: Any) -> None:
        # Orbax reports a mismatch as something else, so the trees are compared first.
        stored, wanted = _shapes(stored), _shapes(wanted)
        if stored != wanted:
            differing = sorted(dict(stored.items() ^ wanted.items()))
            raise UserError(
                f'{self._directory / str(step)} is a checkpoint of another experiment: '
                f'{len(differing)} arrays differ, {differing[0]} among them '
                f'(stored {stored.get(differing[0])}, wanted {wanted.get(differing[0])}). '
                'Train in another --job_log_dir, or go back to the experiment it belongs to.'
            )


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


def check_params(checkpoint: epath.Path, abstract: Any) -> None:
    """Checks that a checkpoint has all of some parameters. It may have others as well.

    Args:
        checkpoint: of one step.
        abstract: a tree with the names and the shapes of the parameters.

    Raises:
        UserError: it has not, or cannot be read.
    """
    try:
        metadata = ocp.checkpointables_metadata(checkpoint)
        number = cast(Any, metadata.custom_metadata)['format']
        stored = _shapes(cast(Any, metadata.metadata['state'])['params'])
    except Exception as error:
        reason = f'{type(error).__name__}: {error}'.splitlines()[0]
        raise UserError(f'{checkpoint} cannot be read ({reason})') from error
    _check_format(checkpoint, number)
    wanted = _shapes(abstract)
    differing = [name for name in wanted if stored.get(name) != wanted[name]]
    if differing:
        described = [f'{name} ({_versus(stored.get(name), wanted[name])})' for name in differing]
        more = f' and {len(described) - _MOST_NAMED} more' if len(described) > _MOST_NAMED else ''
        raise UserError(
            f'{checkpoint} has other parameters: {", ".join(described[:_MOST_NAMED])}{more}. '
            'All parameters of the model must be there, with the same shapes.'
        )


def load_params(checkpoint: epath.Path, abstract: Any) -> Any:
    """Reads the parameters in a checkpoint, and nothing else.

    Args:
        checkpoint: of one step.
        abstract: a tree with the shapes, the dtypes and the shardings of the parameters. The run
            that saved them may have had them on another mesh.

    Raises:
        UserError: as `check_params`.
    """
    check_params(checkpoint, abstract)
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        loaded = ocp.load_checkpointables(checkpoint, {'state': {'params': abstract}})
    return loaded['state']['params']


def _is_checkpoint(directory: epath.Path) -> bool:
    # Orbax's own `is_orbax_checkpoint` takes any directory with directories in it for one. On a
    # local disk a checkpoint gets its name when it is complete, in a remote store its last file.
    if not (directory / _METADATA).exists():
        return False
    return is_local(directory) or (directory / COMMITTED).exists()


def _check_format(checkpoint: epath.Path, number: int) -> None:
    if number != _FORMAT:
        raise UserError(
            f'{checkpoint} has format {number}, and this version of the trainer reads {_FORMAT}: '
            'use the version that wrote it'
        )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator='.'): tuple(leaf.shape)
        for path, leaf in leaves
    }


def _versus(stored: tuple[int, ...] | None, wanted: tuple[int, ...]) -> str:
    return f'{"missing" if stored is None else f"stored {stored}"}, wanted {wanted}'


def _as_dict(state: TrainState) -> dict[str, Any]:
    return dict(vars(state))
