"""What a run has spent on training, however often it was interrupted."""

from collections.abc import Mapping

from trainer.runtime import processes
from trainer.runtime.throughput import Speed

SPENT = ('spent_tokens', 'spent_flops', 'spent_seconds')
"""The metrics that say what a run has spent since its step 0."""


class Spending:
    """Tokens and seconds of all steps that led to the weights.

    It is kept in checkpoints, so who goes on from one goes on counting: a new process, a new
    attempt, a run that branched off another (`handover.branch_off`), and a warm start that
    counts the steps of its source (`load_step`). Other warm starts begin at 0.

    Tokens are those that the task counts, padding included, of the batches of all processes.
    Seconds are those between the first step of a process and the next evaluation, between
    evaluations, and so on: reading data and writing summaries included; without evaluations and
    saves, and without the first step of each process, which compiles and begins to read.

    Example:
        >>> spending = Spending(Speed(), {'tokens': 4096, 'seconds': 1.5})
        >>> spending.count(1024)
        >>> spending.metrics(flops_per_token=6.0)
        {'spent_tokens': 5120.0, 'spent_flops': 30720.0, 'spent_seconds': 1.5}
    """

    def __init__(self, speed: Speed, saved: Mapping[str, float] | None = None) -> None:
        """Goes on counting.

        Args:
            speed: the clock of this process.
            saved: what `to_json` has returned in an earlier one; None for nothing yet.
        """
        self._speed, saved = speed, saved or {'tokens': 0, 'seconds': 0.0}
        self._tokens, self._seconds = int(saved['tokens']), float(saved['seconds'])

    def count(self, tokens: int) -> None:
        """Counts a step with so many tokens."""
        self._tokens += tokens

    def to_json(self) -> dict[str, float]:
        """A round of `processes`: what was spent, by the clock of the first process."""
        seconds = self._seconds + self._speed.total_seconds()
        spent: dict[str, float] = processes.broadcast({'tokens': self._tokens, 'seconds': seconds})
        return spent

    def metrics(self, flops_per_token: float) -> dict[str, float]:
        """A round: the same as metrics, by the names in `SPENT`."""
        spent = self.to_json()
        tokens = float(spent['tokens'])
        values = (tokens, tokens * flops_per_token, spent['seconds'])
        return dict(zip(SPENT, values, strict=True))
