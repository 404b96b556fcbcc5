from collections.abc import Mapping

from trainer.runtime import processes
from trainer.runtime.throughput import Throughput

RESOURCE_METRICS = ('spent_tokens', 'spent_flops', 'spent_seconds')
"""Metrics that report the resources used since step 0."""


class ResourceCounters:
    """Tokens and seconds of all steps that led to the weights.

    Checkpoints contain the counts. Whatever continues from a checkpoint therefore continues the
    counts: a new process, a new attempt, a fork (`handover.fork_checkpoint`), and a warm start
    that continues the steps of its source (`load_step`). Other warm starts begin at 0.

    Tokens are counted by the task, with padding, over the batches of all processes. Seconds are
    measured from the end of the first step of a process to an evaluation, and between evaluations.
    They contain reading data and writing summaries. They do not contain evaluations, saves, and
    the first step of each process, which compiles and begins to read. An execution of several steps
    counts, since it was compiled before.

    Example:
        >>> counters = ResourceCounters(Throughput(), {'tokens': 4096, 'seconds': 1.5})
        >>> counters.count(1024)
        >>> counters.metrics(flops_per_token=6.0)
        {'spent_tokens': 5120.0, 'spent_flops': 30720.0, 'spent_seconds': 1.5}
    """

    def __init__(self, throughput: Throughput, saved: Mapping[str, float] | None = None) -> None:
        """Continues the counts of `to_json` in an earlier process."""
        self._throughput, saved = throughput, saved or {'tokens': 0, 'seconds': 0.0}
        self._tokens, self._seconds = int(saved['tokens']), float(saved['seconds'])

    def count(self, tokens: int) -> None:
        """Counts steps with so many tokens."""
        self._tokens += tokens

    def to_json(self) -> dict[str, float]:
        """Counts as JSON data, by the clock of the first process; a round of `processes`."""
        seconds = self._seconds + self._throughput.total_seconds()
        counts: dict[str, float] = processes.broadcast({'tokens': self._tokens, 'seconds': seconds})
        return counts

    def metrics(self, flops_per_token: float) -> dict[str, float]:
        """Counts as metrics, named as in `RESOURCE_METRICS`; a round of `processes`."""
        counts = self.to_json()
        tokens = float(counts['tokens'])
        values = (tokens, tokens * flops_per_token, counts['seconds'])
        return dict(zip(RESOURCE_METRICS, values, strict=True))
