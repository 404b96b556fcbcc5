from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trainer.inputs.base import Input
from trainer.symbolic.errors import prefixed


class RollingEval:
    """Positions of evaluation sets (`inputs`, by path) that evaluations do not reset."""

    KEY: ClassVar[str] = 'eval_positions'
    """Key of the positions, one entry per shard, in the progress of a checkpoint."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self.inputs = {path: data for path, data in inputs.items() if not data.reset_for_eval}
        self._before: tuple[int, dict[str, Any]] | None = None

    def start(self, step: int) -> None:
        """Notes where the evaluation of a step begins: a run that resumes there repeats it."""
        self._before = (step, self._now())

    def positions(self, step: int) -> dict[str, Any]:
        """Positions at which the sets of this process start in a run resumed from a step."""
        if self._before is not None and self._before[0] == step:
            return self._before[1]
        return self._now()

    def resume(self, progress: Mapping[str, Any], data_shard: tuple[int, int]) -> None:
        """Restores the positions of a checkpoint.

        A set without a position there starts with its first batch. So does a set whose positions
        are valid for one shard alone, if the number of shards has changed.

        Raises:
            UserError: a position belongs to other data.
        """
        saved = progress.get(self.KEY, [])
        count, index = data_shard
        positions = saved[index if len(saved) == count else 0] if saved else {}
        for path in self.inputs.keys() & positions.keys():
            if len(saved) != count and not self.inputs[path].positions_are_global:
                continue
            with prefixed(path):
                self.inputs[path].set_position(positions[path])

    def _now(self) -> dict[str, Any]:
        return {path: data.get_position() for path, data in self.inputs.items()}


def by_shard(gathered: Sequence[tuple[int, Any]]) -> list[Any]:
    """Selects one value per shard from the values of all processes.

    Each process gives (shard, value). Processes that read the same shard have the same value.

    Example:
        >>> by_shard([(0, 'a'), (0, 'a'), (1, 'b')])
        ['a', 'b']
    """
    found = dict(gathered)
    return [found[shard] for shard in sorted(found)]
