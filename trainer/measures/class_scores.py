from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from trainer.losses import class_weights
from trainer.measures.base import Measure, Outcome
from trainer.metrics import Metric
from trainer.symbolic.component import require_not_negative


class ClassCounts(Metric):
    """Weighted counts by class, and the share of hits in all classes together.

    Attributes:
        hits: the numerator of the score, float32 [K].
        total: its denominator, float32 [K].
        seen: examples whose label or prediction is the class, float32 [K].
    """

    hits: Any
    total: Any
    seen: Any

    def value(self) -> float | None:
        return _share(np.sum(self.hits), np.sum(self.total), np.sum(self.seen))


class MacroClassCounts(ClassCounts):
    """The same counts, and the mean score of the classes that occur."""

    def value(self) -> float | None:
        classes = zip(*map(np.atleast_1d, (self.hits, self.total, self.seen)), strict=True)
        known = [score for each in classes if (score := _share(*each)) is not None]
        return float(np.mean(known)) if known else None


def _share(hits: Any, total: Any, seen: Any) -> float | None:
    # As in scikit-learn, the precision of a class that is never predicted is 0.
    if not seen:
        return None
    return float(hits / total) if total else 0.0


# Numerators and denominators, from the counts of hits, predictions and labels by class.
_FRACTIONS: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
    'f1': lambda hits, predicted, actual: (2 * hits, predicted + actual),
    'precision': lambda hits, predicted, actual: (hits, predicted),
    'recall': lambda hits, predicted, actual: (hits, actual),
}


class _ClassScore(Measure):
    """Base of scores of predicted classes.

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

    name: ClassVar[str]  # The key in `_FRACTIONS`.

    def check(self) -> None:
        require_not_negative(self, 'positive_class')
        if self.average != 'binary' and self.positive_class != 1:
            raise ValueError(f"positive_class is only for average='binary': {self.positive_class}")
        if not 0 < self.threshold < 1:
            raise ValueError(f'threshold must lie in (0, 1): {self.threshold}')

    def metric_name(self) -> str:
        return self.name if self.average == 'binary' else f'{self.name}_{self.average}'

    def measure(self, outcome: Outcome) -> ClassCounts:
        actual = class_weights(outcome.labels, outcome.outputs)
        predicted = self._predicted(outcome)
        if self.average == 'binary':
            chosen = outcome.index_of(self.positive_class)
            actual, predicted = actual[..., [chosen]], predicted[..., [chosen]]
        axes = tuple(range(actual.ndim - 1))
        weights = outcome.weights[..., None]
        hits, guessed, labelled = (
            jnp.sum(weights * each, axes) for each in (actual * predicted, predicted, actual)
        )
        kind = MacroClassCounts if self.average == 'macro' else ClassCounts
        return kind(*_FRACTIONS[self.name](hits, guessed, labelled), guessed + labelled)

    def _predicted(self, outcome: Outcome) -> jax.Array:
        """1 for the predicted classes of each example: [..., K]."""
        logits = outcome.outputs
        if outcome.is_multi_label:
            return (jax.nn.sigmoid(logits) > self.threshold).astype(jnp.float32)
        if self.threshold != 0.5:
            raise ValueError(f'{self.metric_name()}: threshold is only for multi-label losses')
        return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])


class F1(_ClassScore):
    """`f1`, `f1_micro` or `f1_macro`: the harmonic mean of precision and recall."""

    name = 'f1'


class Precision(_ClassScore):
    """`precision`, `precision_micro` or `precision_macro`: share of correct predictions."""

    name = 'precision'


class Recall(_ClassScore):
    """`recall`, `recall_micro` or `recall_macro`: share of labels that are predicted."""

    name = 'recall'
