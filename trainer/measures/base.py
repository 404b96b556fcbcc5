from collections.abc import Sequence
from typing import NamedTuple

import jax

from trainer.metrics import Metric, Metrics
from trainer.symbolic.component import Component


class Outcome(NamedTuple):
    """Predictions and labels of a batch.

    Attributes:
        outputs: logits, or predicted values, [..., K].
        labels: as in `trainer.losses`.
        weights: of the examples, or tokens, [...]; 0 for padding.
        is_multi_label: each logit is a binary decision.
        segments: number of the example of each token in its row, [B, T]; None where each row (or
            each element of one-dimensional `weights`) is one example.
    """

    outputs: jax.Array
    labels: jax.Array
    weights: jax.Array
    is_multi_label: bool = False
    segments: jax.Array | None = None


class Measure(Component):
    """Base of measures: outcomes of a batch -> sums that add up over batches."""

    def metric_name(self) -> str:
        """The name of the metric."""
        raise NotImplementedError(type(self).__name__)

    def measure(self, outcome: Outcome) -> Metric:
        """The metric of a batch."""
        raise NotImplementedError(type(self).__name__)


def measured(measures: Sequence[Measure], outcome: Outcome) -> Metrics:
    """The metrics of several measures by name."""
    return {each.metric_name(): each.measure(outcome) for each in measures}


def require_distinct(measures: Sequence[Measure]) -> None:
    """Raises ValueError if two measures have the same name."""
    names = [each.metric_name() for each in measures]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'metrics: several are called {", ".join(twice)}')
