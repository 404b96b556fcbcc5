from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.losses import class_weights
from trainer.measures.base import Measure, Outcome
from trainer.metrics import Metric
from trainer.symbolic.component import require_not_negative, require_positive


class AucCounts(Metric):
    """Weighted histograms of scores, of positive and of negative examples.

    Attributes:
        positives: examples of the class in each bin, the lowest scores first, float32 [bins].
        negatives: examples of other classes, float32 [bins].
    """

    positives: Any
    negatives: Any

    def value(self) -> float | None:
        pairs = np.sum(self.positives) * np.sum(self.negatives)
        if not pairs:
            return None
        below = np.cumsum(self.negatives) - self.negatives
        return float(np.sum(self.positives * (below + 0.5 * self.negatives)) / pairs)

    def error_bound(self) -> float | None:
        """Largest possible error of `value` due to bins: half the share of pairs within bins."""
        pairs = np.sum(self.positives) * np.sum(self.negatives)
        return float(0.5 * np.sum(self.positives * self.negatives) / pairs) if pairs else None


class Auc(Measure):
    """`auc`: probability that an example of the class scores higher than another example.

    The area under the ROC curve (Hanley & McNeil 1982). Examples in one bin count as ties;
    `AucCounts.error_bound` bounds the resulting error. Bins are finest at even odds, where a bin is
    4 / num_bins nats of log odds wide, and grow with the square of the log odds.

    Attributes:
        positive_class: the class against all others.
        num_bins: number of bins.
    """

    positive_class: int = 1
    num_bins: int = 2048

    def check(self) -> None:
        require_positive(self, 'num_bins')
        require_not_negative(self, 'positive_class')

    def metric_name(self) -> str:
        return 'auc'

    def measure(self, outcome: Outcome) -> AucCounts:
        labels = class_weights(outcome.labels, outcome.outputs)
        chosen = outcome.index_of(self.positive_class)
        weights, of_class = outcome.weights, labels[..., chosen]
        bins = _bin(_log_odds(outcome, chosen), self.num_bins)

        def counts(weights: jax.Array) -> jax.Array:
            return jnp.zeros(self.num_bins, jnp.float32).at[bins.ravel()].add(weights.ravel())

        return AucCounts(counts(weights * of_class), counts(weights * (1 - of_class)))


def _log_odds(outcome: Outcome, chosen: int) -> jax.Array:
    logits = outcome.outputs
    if outcome.is_multi_label or logits.shape[-1] == 1:
        return logits[..., chosen]
    others = jnp.delete(logits, chosen, axis=-1, assume_unique_indices=True)
    return logits[..., chosen] - jax.nn.logsumexp(others, axis=-1)


def _bin(score: jax.Array, num_bins: int) -> jax.Array:
    """Indices of equal bins of x / (1 + |x|), which lies in [-1, 1]; NaN is in the lowest bin."""
    squashed = jnp.nan_to_num(score / (1 + jnp.abs(score)), nan=-1.0)
    squashed = jnp.where(jnp.isinf(score), jnp.sign(score), squashed)
    return jnp.clip(jnp.floor((squashed + 1) / 2 * num_bins), 0, num_bins - 1).astype(jnp.int32)
