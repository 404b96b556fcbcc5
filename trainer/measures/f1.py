from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from trainer.losses import class_weights
from trainer.measures.base import Measure, Outcome
from trainer.metrics import Metric
from trainer.symbolic.component import require_not_negative


class F1Counts(Metric):
    """Weighted counts by class, and the harmonic mean of precision and recall over all of them.

    Attributes:
        hits: true positives, float32 [K].
        predicted: true and false positives, float32 [K].
        actual: examples of the class, float32 [K].
    """

    hits: Any
    predicted: Any
    actual: Any

    def value(self) -> float | None:
        return _f1(np.sum(self.hits), np.sum(self.predicted) + np.sum(self.actual))


class MacroF1Counts(F1Counts):
    """The same counts, and the mean F1 of the classes that occur."""

    def value(self) -> float | None:
        each = zip(
            np.atleast_1d(self.hits), np.atleast_1d(self.predicted + self.actual), strict=True
        )
        known = [score for hits, seen in each if (score := _f1(hits, seen)) is not None]
        return float(np.mean(known)) if known else None


def _f1(hits: Any, seen: Any) -> float | None:
    return float(2 * hits / seen) if seen else None


class F1(Measure):
    """`f1`, `f1_micro` or `f1_macro`: the harmonic mean of precision and recall.

    The prediction is the class with the largest logit; in multi-label classification, each class
    with a probability above `threshold`.

    Attributes:
        average: 'binary' is of one class, 'micro' counts the examples of all classes together,
            'macro' is the mean over the classes that occur, in labels or in predictions.
        positive_class: the class of 'binary'.
        threshold: of the probability.
    """

    average: Literal['binary', 'micro', 'macro'] = 'binary'
    positive_class: int = 1
    threshold: float = 0.5

    def check(self) -> None:
        require_not_negative(self, 'positive_class')
        if not 0 < self.threshold < 1:
            raise ValueError(f'threshold must lie in (0, 1): {self.threshold}')

    def metric_name(self) -> str:
        return 'f1' if self.average == 'binary' else f'f1_{self.average}'

    def measure(self, outcome: Outcome) -> F1Counts:
        actual = class_weights(outcome.labels, outcome.outputs)
        predicted = self._predicted(outcome)
        if self.average == 'binary':
            chosen = min(self.positive_class, actual.shape[-1] - 1)  # A single logit is class 1's.
            actual, predicted = actual[..., [chosen]], predicted[..., [chosen]]
        axes = tuple(range(actual.ndim - 1))
        weights = outcome.weights[..., None]
        kind = MacroF1Counts if self.average == 'macro' else F1Counts
        return kind(
            jnp.sum(weights * actual * predicted, axes),
            jnp.sum(weights * predicted, axes),
            jnp.sum(weights * actual, axes),
        )

    def _predicted(self, outcome: Outcome) -> jax.Array:
        """1 for the predicted classes of each example: [..., K]."""
        logits = outcome.outputs
        if outcome.is_multi_label:
            return (jax.nn.sigmoid(logits) > self.threshold).astype(jnp.float32)
        return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
