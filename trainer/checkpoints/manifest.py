"""What is in a checkpoint, noted when it was written: so damage is found when it is read."""

import dataclasses
import hashlib
import json
from typing import Any

import jax
from etils import epath

from trainer.checkpoints.checksums import checksums, name_of
from trainer.symbolic.errors import UserError

_FORMAT = 5


class DamagedError(Exception):
    """A checkpoint is not what was written. The message says in what."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Attributes:
        progress: what a resumed run needs besides arrays, as JSON data.
        arrays: the shape and the dtype of each, and its checksum, by its path in the state.
    """

    progress: dict[str, Any]
    arrays: dict[str, tuple[list[int], str, int]]

    @classmethod
    def of(cls, tree: Any, progress: dict[str, Any]) -> 'Manifest':
        """Those of a state that is about to be written."""
        sums = checksums(tree)
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {
            name_of(path): (list(leaf.shape), str(leaf.dtype), sums[name_of(path)])
            for path, leaf in leaves
        }
        return cls(progress, arrays)

    def to_json(self) -> dict[str, Any]:
        """All of it, with a digest."""
        data = {'format': _FORMAT, 'progress': self.progress, 'arrays': self.arrays}
        return {**data, 'digest': _digest(data)}

    @classmethod
    def from_json(cls, checkpoint: epath.Path, data: Any) -> 'Manifest':
        """What `to_json` has returned.

        Raises:
            DamagedError: it is not that.
            UserError: another version of the trainer has written it.
        """
        if not isinstance(data, dict) or 'format' not in data:
            raise DamagedError('its metadata is damaged')
        data = dict(data)
        digest = data.pop('digest', None)
        if digest != _digest(data):
            if digest is None and data['format'] != _FORMAT:
                _refuse(checkpoint, data['format'])
            raise DamagedError('its metadata is damaged')
        if data['format'] != _FORMAT:
            _refuse(checkpoint, data['format'])
        arrays = {
            name: (list(shape), dtype, checksum)
            for name, (shape, dtype, checksum) in data['arrays'].items()
        }
        return cls(data['progress'], arrays)

    def shapes(self, part: str) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays in a part of the state, by their paths in it."""
        prefix = f'{part}.'
        return {
            name.removeprefix(prefix): tuple(shape)
            for name, (shape, _, _) in self.arrays.items()
            if name.startswith(prefix)
        }

    def check_same(self, checkpoint: epath.Path, abstract: Any) -> None:
        """Checks that a checkpoint is one of a certain state.

        Args:
            checkpoint: for the message.
            abstract: a tree like the state, with shapes.

        Raises:
            UserError: it is one of another.
        """
        stored = {name: tuple(shape) for name, (shape, _, _) in self.arrays.items()}
        wanted = shapes(abstract)
        if stored != wanted:
            differing = sorted(dict(stored.items() ^ wanted.items()))
            raise UserError(
                f'{checkpoint} is a checkpoint of another experiment: '
                f'{len(differing)} arrays differ, {differing[0]} among them '
                f'(stored {stored.get(differing[0])}, wanted {wanted.get(differing[0])}). '
                'Train in another --job_log_dir, or go back to the experiment it belongs to.'
            )

    def verify(self, tree: Any) -> None:
        """Checks that arrays are those that were written; some may be left out.

        Raises:
            DamagedError: one is not.
        """
        damaged = [name for name, each in checksums(tree).items() if self.arrays[name][2] != each]
        if damaged:
            more = f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''
            raise DamagedError(f'the array {damaged[0]}{more} is damaged')


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in a tree, by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): tuple(leaf.shape) for path, leaf in leaves}


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _refuse(checkpoint: epath.Path, number: Any) -> None:
    raise UserError(
        f'{checkpoint} has format {number}, and this version of the trainer reads {_FORMAT}: '
        'use the version that wrote it'
    )
