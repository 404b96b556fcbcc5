"""What all tasks that predict tokens have in common."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from trainer.errors import UserError
from trainer.inputs.base import Input
from trainer.losses import SoftmaxCrossEntropy, cross_entropy
from trainer.measures.base import Measure, Outcome, measured
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.task import DeviceBatch, Task


def token_metrics(
    logits_BTV: jax.Array,
    batch: DeviceBatch,
    loss: SoftmaxCrossEntropy,
    measures: Sequence[Measure],
) -> Metrics:
    """The metrics of tokens that were predicted; `labels` and `weights` are in the batch.

    Returns:
        loss, log_pplx, accuracy, num_predictions; bits_per_byte where the batch has `label_bytes`;
        those of `measures`.
    """
    labels_BT, weights_BT = batch['labels'], batch['weights'].astype(jnp.float32)
    xent_BT = cross_entropy(logits_BTV, labels_BT)
    right_BT = jnp.argmax(logits_BTV, axis=-1) == labels_BT
    metrics: Metrics = {
        'loss': WeightedScalar.of(loss.of(logits_BTV, labels_BT), weights_BT),
        'log_pplx': WeightedScalar.of(xent_BT, weights_BT),
        'accuracy': WeightedScalar.of(right_BT.astype(jnp.float32), weights_BT),
        'num_predictions': Count(jnp.sum(weights_BT)),
    }
    if 'label_bytes' in batch:
        bits = jnp.sum(xent_BT * weights_BT) / math.log(2)
        num_bytes = jnp.sum(batch['label_bytes'] * weights_BT)
        metrics['bits_per_byte'] = WeightedScalar(bits, num_bytes)
    segments = batch.get('segment_ids')
    outcome = Outcome(logits_BTV, labels_BT, weights_BT, segments=segments)
    return metrics | measured(measures, outcome)


def check_vocabulary(task: Task, data: Input) -> None:
    """Raises UserError where the vocabulary of an input is larger than that of the model."""
    known = getattr(getattr(task.model, 'embedding', None), 'vocab_size', None)
    needed = getattr(data, 'vocab_size', None)
    if isinstance(known, int) and isinstance(needed, int) and known < needed:
        raise UserError(
            f'its vocabulary has {needed} ids, and task.model.embedding.vocab_size is {known}'
        )
