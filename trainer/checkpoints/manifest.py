import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.checkpoints.checksums import checksums, leaves_by_name
from trainer.layers.base import PARAMS
from trainer.layers.lora import adapters_of
from trainer.symbolic.errors import UserError

_FORMAT = 5


class DamagedError(Exception):
    """A checkpoint differs from its manifest. The message names the difference."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """JSON data that a resumed run needs besides the arrays; empty for a fresh run.

    Attributes:
        positions: the position in the training input, an item for each shard of a batch.
        eval_positions: positions in the rolling evaluation sets, by path, an item for each shard.
        train_metrics: sums of the training metrics (`TrainMetrics.to_json`).
        best: the value of the best checkpoint (`RetentionPolicy.to_json`).
        spent: tokens and seconds since step 0 (`Meter.to_json`).
    """

    positions: Sequence[dict[str, Any]] = ()
    eval_positions: Sequence[dict[str, Any]] = ()
    train_metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spent: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The fields by name; without `eval_positions` where no evaluation rolls."""
        fields = dict(vars(self))
        if not self.eval_positions:
            del fields['eval_positions']
        return fields


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Content of a checkpoint at its save, to detect damage at its load.

    Attributes:
        progress: the progress of the run.
        arrays: shape, dtype and checksum of each array, by its path in the state.
        frozen: the same of the frozen parameters beside adapters, which are not stored.
    """

    progress: Progress
    arrays: dict[str, tuple[list[int], str, int]]
    frozen: dict[str, tuple[list[int], str, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, tree: Any, progress: Progress) -> 'Manifest':
        """Makes the manifest of a state of which `stored` is about to be written."""
        sums = checksums(tree)
        arrays = {
            name: (list(leaf.shape), str(leaf.dtype), sums[name])
            for name, leaf in leaves_by_name(tree).items()
        }
        kept = leaves_by_name(stored(tree))
        frozen = {name: arrays.pop(name) for name in sorted(arrays.keys() - kept.keys())}
        return cls(progress, arrays, frozen)

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON data, with a digest."""
        data = {'format': _FORMAT, 'progress': self.progress.to_json(), 'arrays': self.arrays}
        data |= {'frozen': self.frozen} if self.frozen else {}
        return {**data, 'digest': _digest(data)}

    @classmethod
    def from_json(cls, checkpoint: epath.Path, data: Any) -> 'Manifest':
        """Parses the result of `to_json`.

        Raises:
            DamagedError: the data is something else.
            UserError: another version of the trainer wrote it.
        """
        if not isinstance(data, dict) or 'format' not in data:
            raise DamagedError('its metadata is damaged')
        data = dict(data)
        digest = data.pop('digest', None)
        is_intact = digest == _digest(data)
        if data['format'] != _FORMAT and (is_intact or digest is None):
            raise UserError(
                f'{checkpoint} has format {data["format"]}, and this version of the trainer reads '
                f'{_FORMAT}: use the version that wrote it'
            )
        if not is_intact:
            raise DamagedError('its metadata is damaged')
        arrays, frozen = (
            {
                name: (list(shape), dtype, checksum)
                for name, (shape, dtype, checksum) in data.get(part, {}).items()
            }
            for part in ('arrays', 'frozen')
        )
        return cls(Progress(**data['progress']), arrays, frozen)

    def check_same(self, checkpoint: epath.Path, abstract: Any) -> None:
        """Raises UserError unless a checkpoint has the arrays of an abstract state."""
        stored = {name: tuple(shape) for name, (shape, _, _) in self.arrays.items()}
        leaves = leaves_by_name(abstract)
        wanted = {name: tuple(leaf.shape) for name, leaf in leaves.items()}
        if stored != wanted:
            differing = sorted(dict(stored.items() ^ wanted.items()))
            raise UserError(
                f'{checkpoint} is a checkpoint of another experiment: '
                f'{len(differing)} arrays differ, {differing[0]} among them '
                f'(stored {stored.get(differing[0])}, wanted {wanted.get(differing[0])}). '
                'Train in another --job_log_dir, or go back to the experiment it belongs to. A '
                "stack whose scan is 'auto' has other arrays on a CPU than on a GPU or TPU."
            )

    def completed(self, checkpoint: epath.Path, params: Any, frozen: Callable[[], Any]) -> Any:
        """Adds frozen parameters to the stored adapters.

        Args:
            frozen: loads all parameters of the run as at its start.

        Raises:
            UserError: they are not the ones beside which the adapters were trained.
        """
        begun = frozen()
        sums = checksums({PARAMS: begun})
        other = [name for name, each in self.frozen.items() if sums.get(name) != each[2]]
        if other:
            raise UserError(
                f'{checkpoint} has adapters of other frozen parameters: {other[0]} and '
                f'{len(other) - 1} more have changed. Give train.init_from_checkpoint and '
                'train.random_seed the values, and the directory the content, of the beginning '
                'of the run'
            )
        return unflatten_dict(flatten_dict(begun) | flatten_dict(params))

    def verify(self, tree: Any) -> None:
        """Raises DamagedError unless arrays equal the written ones; some may be left out."""
        damaged = [name for name, each in checksums(tree).items() if self.arrays[name][2] != each]
        if damaged:
            more = f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''
            raise DamagedError(f'the array {damaged[0]}{more} is damaged')


def stored(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state that a checkpoint has: of adapters and frozen parameters the adapters."""
    return {**tree, PARAMS: adapters_of(tree[PARAMS])} if PARAMS in tree else dict(tree)


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
