"""How often a model is right."""

import functools

import jax
import jax.numpy as jnp

from trainer.losses import class_ids
from trainer.measures.base import Measure, Outcome
from trainer.metrics import WeightedScalar
from trainer.symbolic.component import require_positive


class AccuracyAt(Measure):
    """`accuracy_at_<k>`: how often the label is among the k classes with the largest logits.

    Classes that tie with the label count as before it, so a model that says the same of all is
    never right; nor is one that says NaN.

    Attributes:
        k: how many classes.
    """

    k: int = 5

    def check(self) -> None:
        require_positive(self, 'k')

    def metric_name(self) -> str:
        return f'accuracy_at_{self.k}'

    def measure(self, outcome: Outcome) -> WeightedScalar:
        logits, labels = outcome.outputs, class_ids(outcome.labels, outcome.outputs)
        of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
        rank = jnp.sum(~(logits < of_label), axis=-1)
        return WeightedScalar.of((rank <= self.k).astype(jnp.float32), outcome.weights)


class AccuracyStrict(Measure):
    """`acc_strict`: the part of all sequences in which each token of weight is right.

    The most likely token given the right ones before it. In packed rows a segment is a sequence.
    """

    def metric_name(self) -> str:
        return 'acc_strict'

    def measure(self, outcome: Outcome) -> WeightedScalar:
        labels = class_ids(outcome.labels, outcome.outputs)
        wrong = jnp.argmax(outcome.outputs, axis=-1) != labels
        there = outcome.weights > 0
        if outcome.weights.ndim == 1:
            wrong, there = wrong[:, None], there[:, None]
        segments = outcome.segments
        if segments is None:
            segments = jnp.zeros(wrong.shape, jnp.int32)
        any_wrong, any_there = _any(wrong & there, segments), _any(there, segments)
        right = (any_there & ~any_wrong).astype(jnp.float32)
        return WeightedScalar.of(right, any_there.astype(jnp.float32))


def _any(values_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """Whether any value of a segment is true: [B, T + 1], by the number of the segment."""
    count = functools.partial(jax.ops.segment_sum, num_segments=values_BT.shape[1] + 1)
    return jax.vmap(count)(values_BT.astype(jnp.int32), segments_BT) > 0
