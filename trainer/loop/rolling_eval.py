"""Evaluation sets that are not reset: where they are goes into the checkpoints of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trainer.inputs.base import Input
from trainer.symbolic.errors import UserError


class Rolling:
    """The positions of the evaluation sets that go on where the last evaluation ended.

    Attributes:
        inputs: those sets, by their path in the experiment.
    """

    KEY: ClassVar[str] = 'eval_positions'
    """Under this name they stand in the progress of a checkpoint, those of each share."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self.inputs = {path: data for path, data in inputs.items() if not data.reset_for_eval}
        self._before: tuple[int, dict[str, Any]] | None = None

    def start(self, step: int) -> None:
        """Notes where the evaluation of a step begins: a run that resumes there repeats it."""
        self._before = (step, self._now())

    def positions(self, step: int) -> dict[str, Any]:
        """Where the sets of this process are to be when the run resumes from a step."""
        if self._before is not None and self._before[0] == step:
            return self._before[1]
        return self._now()

    def resume(self, progress: Mapping[str, Any], infeed_share: tuple[int, int]) -> None:
        """Goes where the sets were when a checkpoint was written.

        A set that did not roll then starts with its first batch. So does one whose positions hold
        for one share alone, where the data are not divided into as many as then.

        Args:
            progress: what was saved with the checkpoint.
            infeed_share: how many shares there are, and which is this process's.

        Raises:
            UserError: a position was taken in other data.
        """
        of_shares = progress.get(self.KEY, [])
        count, index = infeed_share
        positions = of_shares[index if len(of_shares) == count else 0] if of_shares else {}
        for path in self.inputs.keys() & positions.keys():
            if len(of_shares) != count and not self.inputs[path].positions_are_global:
                continue
            try:
                self.inputs[path].set_position(positions[path])
            except UserError as error:
                raise UserError(f'{path}: {error}') from error

    def _now(self) -> dict[str, Any]:
        return {path: data.get_position() for path, data in self.inputs.items()}


def by_share(gathered: Sequence[tuple[int, Any]]) -> list[Any]:
    """What each share of the data has, of what the processes have that read it.

    Processes that read the same share are at the same place.

    Example:
        >>> by_share([(0, 'a'), (0, 'a'), (1, 'b')])
        ['a', 'b']
    """
    found = dict(gathered)
    return [found[share] for share in sorted(found)]
