"""Inputs of a run, and their positions in its checkpoints."""

from collections.abc import Sequence
from typing import Any

from trainer.checkpoints.manifest import Progress
from trainer.experiment import Experiment
from trainer.inputs.peek import Peekable
from trainer.runtime import processes
from trainer.symbolic.errors import UserError, prefixed

Positions = dict[str, Any]
"""A position of an input, or positions by the path of the input, as JSON data."""


class RunInputs:
    """Inputs of a run.

    Attributes:
        train: the training input.
        start: the position at which this process began to train; None for the first batch.
        has_warned: whether a loss of NaN in an evaluation set was explained.
    """

    def __init__(self, experiment: Experiment, data_shard: tuple[int, int]) -> None:
        """Holds the inputs of an experiment that know their data shard.

        Args:
            experiment: the result of `localized`.
            data_shard: (number of shards of a batch, index of the shard of this process).
        """
        self.train = Peekable(experiment.train_input)
        self._experiment, self._data_shard = experiment, data_shard
        inputs = experiment.inputs_by_path
        self._rolling = {path: each for path, each in inputs.items() if not each.reset_for_eval}
        self._before: tuple[int, Positions] | None = None
        self.start: Positions | None = None
        self.has_warned = False

    def start_evaluation(self, step: int) -> None:
        """Notes where the evaluation of a step begins: a run that resumes there repeats it."""
        self._before = (step, self._eval_positions())

    def positions(self, step: int) -> tuple[list[Positions], list[Positions]]:
        """Collects the positions at which a run would resume from a step, an item for each shard.

        Returns:
            `positions` and `eval_positions` of a `Progress`.
        """
        train = self._by_shard(self.train.get_position())
        if not self._rolling:
            return train, []
        if self._before is not None and self._before[0] == step:
            return train, self._by_shard(self._before[1])
        return train, self._by_shard(self._eval_positions())

    def resume(self, progress: Progress, checkpoint: str) -> None:
        """Restores the positions of a checkpoint.

        Raises:
            UserError: a position belongs to other data, or to another number of processes.
        """
        self.start = self._own(progress.positions, checkpoint)
        self.train.set_position(self.start)
        self.resume_evaluation(progress)

    def resume_evaluation(self, progress: Progress) -> None:
        """Restores the positions of a checkpoint in the rolling evaluation sets.

        A set without a position there starts with its first batch. So does a set whose positions
        are valid for one shard alone, if the number of shards has changed.

        Raises:
            UserError: a position belongs to other data.
        """
        saved, (count, index) = progress.eval_positions, self._data_shard
        positions = saved[index if len(saved) == count else 0] if saved else {}
        for path in self._rolling.keys() & positions.keys():
            if len(saved) == count or self._rolling[path].positions_are_global:
                with prefixed(path):
                    self._rolling[path].set_position(positions[path])

    def _eval_positions(self) -> Positions:
        return {path: data.get_position() for path, data in self._rolling.items()}

    def _by_shard(self, own: Positions) -> list[Positions]:
        # Processes that read the same shard have the same value.
        found = dict(processes.gather([self._data_shard[1], own]))
        return [found[shard] for shard in sorted(found)]

    def _own(self, positions: Sequence[Positions], checkpoint: str) -> Positions:
        count, index = self._data_shard
        if len(positions) == count:
            return positions[index]
        for path, data in {'train_input': self._experiment.train_input, **self._rolling}.items():
            if not data.positions_are_global:
                raise UserError(
                    f'{path}: {len(positions)} processes, each with its own shard of the data, '
                    f'wrote {checkpoint}; now there are {count}. A position in '
                    f'{type(data).__name__} is valid for its shard alone: start '
                    f'{len(positions)} processes, or start again in another --job_log_dir'
                )
        return positions[0]  # All are the same.
