"""Evaluation sets that are not reset: where they are goes into the checkpoints of a run."""

from collections.abc import Mapping
from typing import Any, ClassVar

from trainer import processes
from trainer.errors import UserError
from trainer.inputs.base import Input


class Rolling:
    """The positions of the evaluation sets that go on where the last evaluation ended.

    Attributes:
        inputs: those sets, by their path in the experiment.
    """

    KEY: ClassVar[str] = 'eval_positions'
    """Under this name they stand in the progress of a checkpoint, those of each process."""

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

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Goes where the sets were when a checkpoint was written.

        A set that did not roll then starts with its first batch; all do where there are not as
        many processes as then.

        Raises:
            UserError: a position was taken in other data.
        """
        of_processes = progress.get(self.KEY, [])
        if len(of_processes) != processes.count():
            return
        positions = of_processes[processes.index()]
        for path in self.inputs.keys() & positions.keys():
            try:
                self.inputs[path].set_position(positions[path])
            except UserError as error:
                raise UserError(f'{path}: {error}') from error

    def _now(self) -> dict[str, Any]:
        return {path: data.get_position() for path, data in self.inputs.items()}
