import functools

import jax
import jax.numpy as jnp

from trainer.measures.base import Measure, Outcome
from trainer.metrics import WeightedScalar
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import ShapeError


class AccuracyAt(Measure):
    """`accuracy_at_<k>`: share of labels among the k classes with the largest logits.

    Classes that tie with the label rank before it. So equal logits, and NaN, are never correct.

    Attributes:
        k: number of classes.
    """

    k: int = 5

    def check(self) -> None:
        require_positive(self, 'k')

    def metric_name(self) -> str:
        return f'accuracy_at_{self.k}'

    def measure(self, outcome: Outcome) -> WeightedScalar:
        logits, labels = outcome.outputs, outcome.class_ids()
        if self.k >= (count := logits.shape[-1]):
            raise ShapeError(f'{self.metric_name()}: k must be less than {count}, the classes')
        of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
        rank = jnp.sum(~(logits < of_label), axis=-1)
        return WeightedScalar.of((rank <= self.k).astype(jnp.float32), outcome.weights)


class AccuracyStrict(Measure):
    """`acc_strict`: share of sequences in which the most likely token is always the label.

    Tokens of weight zero do not count. In packed rows a segment is a sequence.
    """

    reads_outputs = False

    def metric_name(self) -> str:
        return 'acc_strict'

    def measure(self, outcome: Outcome) -> WeightedScalar:
        wrong = ~outcome.is_right()
        there = outcome.weights > 0
        if outcome.weights.ndim == 1:
            wrong, there = wrong[:, None], there[:, None]
        segments = jnp.zeros(wrong.shape, jnp.int32)
        if outcome.segments is not None:
            # The features have any numbers; here they count from 0.
            begins = outcome.segments[:, 1:] != outcome.segments[:, :-1]
            segments = segments.at[:, 1:].set(jnp.cumsum(begins, axis=1))
        any_wrong, any_there = _any(wrong & there, segments), _any(there, segments)
        right = (any_there & ~any_wrong).astype(jnp.float32)
        return WeightedScalar.of(right, any_there.astype(jnp.float32))


def _any(values_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """True where any value of a segment is true: [B, T], by the number of the segment."""
    count = functools.partial(jax.ops.segment_sum, num_segments=values_BT.shape[1])
    return jax.vmap(count)(values_BT.astype(jnp.int32), segments_BT) > 0
