"""Signals: how the code of a trial says what becomes of it.

They may be raised wherever the code of a trial runs in Python: in a layer or in `Task.metrics`
while they are traced, in an input's `prepare` and `get_next`. The trainer passes them on, once
what is being written is on disk. From inside of XLA (a host callback) or of tf.data (a
preprocessor of SeqIO's) they come out as errors of those.
"""

from collections.abc import Mapping


class Signal(Exception):
    """What ends a trial early, on purpose.

    Attributes:
        reason: for people.
        step: optimizer steps that were done when it was raised; the trainer fills it in.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.step = 0


class StopTrial(Signal):
    """The run ends now, and counts as done.

    Its reward is that of its last measurement, unless another comes with the signal.

    Attributes:
        reward: counts in its place.
        metrics: by name, in place of those measured; the reward is made of them again.

    Example:
        >>> raise StopTrial('the target is reached', reward=0.9)
        Traceback (most recent call last):
        ...
        trainer.runtime.signals.StopTrial: the target is reached
    """

    def __init__(
        self,
        reason: str,
        *,
        reward: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Says why, and what the trial is worth.

        Raises:
            ValueError: both a reward and metrics are given.
        """
        if reward is not None and metrics is not None:
            raise ValueError('a reward or metrics to make it of: give one of them')
        super().__init__(reason)
        self.reward = reward
        self.metrics = None if metrics is None else dict(metrics)


class SkipTrial(Signal):
    """The trial says nothing about its decisions: it is infeasible, and no bad reward."""
