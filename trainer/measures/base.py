from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from trainer.losses import class_ids, is_most_likely
from trainer.metrics import Metric, Metrics, require_metric
from trainer.symbolic.component import Component
from trainer.symbolic.errors import ShapeError


class Outcome(NamedTuple):
    """Predictions and labels of a batch.

    Attributes:
        outputs: logits, or predicted values, [..., K]. A measure without `reads_outputs` may find
            the logits of a loss in chunks, which have a shape alone.
        labels: as in `trainer.losses`.
        weights: of the examples, or tokens, [...]; 0 for padding.
        is_multi_label: each logit is a binary decision.
        segments: number of the example of each token in its row, [B, T]; None where each row (or
            each element of one-dimensional `weights`) is one example.
        right: True where the label has the largest output, [...]; None where it is not known.
    """

    outputs: Any
    labels: jax.Array
    weights: jax.Array
    is_multi_label: bool = False
    segments: jax.Array | None = None
    right: jax.Array | None = None

    def index_of(self, positive_class: int) -> int:
        """The index of a class in the last axis; raises ShapeError if there is none."""
        count = self.outputs.shape[-1]  # A single logit belongs to class 1.
        if count > 1 and positive_class >= count:
            raise ShapeError(f'positive_class={positive_class}: there are only {count} classes')
        return min(positive_class, count - 1)

    def class_ids(self) -> jax.Array:
        """The class of each example, int32 [...]; raises ShapeError if it may have several."""
        if self.is_multi_label:
            raise ShapeError('the measure needs one class for each example, not several')
        return class_ids(self.labels, self.outputs)

    def is_right(self) -> jax.Array:
        """True where the class of an example has the largest output, bool [...]."""
        classes = self.class_ids()
        return is_most_likely(self.outputs, classes) if self.right is None else self.right


class Measure(Component):
    """Base of measures: outcomes of a batch -> sums that add up over batches."""

    reads_outputs = True
    """False for a measure of `is_right` and the labels, which needs no logits of a whole batch."""

    def metric_name(self) -> str:
        """The name of the metric."""
        raise NotImplementedError(type(self).__name__)

    def measure(self, outcome: Outcome) -> Metric:
        """The metric of a batch."""
        raise NotImplementedError(type(self).__name__)


def measured(measures: Sequence[Measure], outcome: Outcome) -> Metrics:
    """The metrics of several measures by name."""
    found = {each.metric_name(): each.measure(outcome) for each in measures}
    for each, metric in zip(measures, found.values(), strict=True):
        require_metric(metric, f'{type(each).__name__}.measure: its result')
    return found
