"""What a measure is, and what it measures."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from trainer.metrics import Metric, Metrics
from trainer.symbolic.component import Component


class Outcome(NamedTuple):
    """What a model said about a batch, and what would have been right.

    Attributes:
        outputs: logits, or predicted values, [..., K].
        labels: as in `trainer.losses`.
        weights: of the examples, or tokens, [...]; 0 for padding.
        several_classes_at_once: whether each logit stands for itself.
        segments: which example of its row a token belongs to, [B, T]; None where each row (or
            element of `weights` that has one axis) is one example.
    """

    outputs: jax.Array
    labels: jax.Array
    weights: jax.Array
    several_classes_at_once: bool = False
    segments: jax.Array | None = None


class Measure(Component):
    """Base of measures: outcomes of a batch -> sums that add up over batches."""

    def metric_name(self) -> str:
        """What the metric is called."""
        raise NotImplementedError(type(self).__name__)

    def measure(self, outcome: Outcome) -> Metric:
        """The metric of a batch."""
        raise NotImplementedError(type(self).__name__)


def measured(measures: Sequence[Measure], outcome: Outcome) -> Metrics:
    """The metrics of several measures by name."""
    return {each.metric_name(): each.measure(outcome) for each in measures}


def require_distinct(measures: Sequence[Measure]) -> None:
    """Raises ValueError where two measures are called alike."""
    names = [each.metric_name() for each in measures]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f'metrics: more than one is called {", ".join(twice)}')
