"""Control-flow exceptions, with which the code of an experiment ends its trial.

Python code of a trial may raise them anywhere: in a layer or in `Task.metrics` during tracing, in
`prepare` and `get_next` of an input. The trainer finishes pending writes and raises them again.
XLA (in a host callback) and tf.data (in a SeqIO preprocessor) turn them into errors of their own.
"""

from collections.abc import Mapping


class Signal(Exception):
    """Control-flow exception that ends a trial early, on purpose.

    Attributes:
        reason: a message for users.
        step: completed optimizer steps; set by the trainer.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.step = 0


class StopTrial(Signal):
    """Ends the run now, as completed.

    The reward of the last measurement is the default.

    Attributes:
        reward: replaces it.
        metrics: replace the measured metrics, by name; the reward is computed from them.

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
        """Makes the exception; raises ValueError if both a reward and metrics are given."""
        if reward is not None and metrics is not None:
            raise ValueError('give a reward or metrics, not both')
        super().__init__(reason)
        self.reward = reward
        self.metrics = None if metrics is None else dict(metrics)


class SkipTrial(Signal):
    """Ends the trial as infeasible, without a reward."""
