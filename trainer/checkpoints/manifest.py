import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from trainer.checkpoints.checksums import checksums, leaves_by_name
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
    """

    progress: Progress
    arrays: dict[str, tuple[list[int], str, int]]

    @classmethod
    def of(cls, tree: Any, progress: Progress) -> 'Manifest':
        """Makes the manifest of a state that is about to be written."""
        sums = checksums(tree)
        arrays = {
            name: (list(leaf.shape), str(leaf.dtype), sums[name])
            for name, leaf in leaves_by_name(tree).items()
        }
        return cls(progress, arrays)

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON data, with a digest."""
        data = {'format': _FORMAT, 'progress': self.progress.to_json(), 'arrays': self.arrays}
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
        arrays = {
            name: (list(shape), dtype, checksum)
            for name, (shape, dtype, checksum) in data['arrays'].items()
        }
        return cls(Progress(**data['progress']), arrays)

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

    def verify(self, tree: Any) -> None:
        """Raises DamagedError unless arrays equal the written ones; some may be left out."""
        damaged = [name for name, each in checksums(tree).items() if self.arrays[name][2] != each]
        if damaged:
            more = f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''
            raise DamagedError(f'the array {damaged[0]}{more} is damaged')


def _digest(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
