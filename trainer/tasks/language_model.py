"""Language models: next-token prediction."""

import math

import jax
import jax.numpy as jnp

from trainer.component import Number
from trainer.errors import UserError
from trainer.inputs.base import Input
from trainer.layers.positions import Positions
from trainer.layers.transformer import TransformerLm
from trainer.metrics import Metrics, WeightedScalar
from trainer.task import DeviceBatch, Task


class LanguageModelTask(Task):
    """Next-token prediction.

    Batches hold `ids`, `labels` and `weights` [B, T], with `segment_ids` and `segment_pos` where
    rows are packed, and `label_bytes`, the bytes of text that each label stands for.

    Metrics: `loss` with label smoothing and z-loss; `log_pplx`, the plain cross-entropy in nats a
    token; `accuracy` of the most likely token; `bits_per_byte`, which does not depend on the
    vocabulary.

    Attributes:
        model: token ids to logits.
        label_smoothing: weight of a uniform target (Szegedy et al. 2016).
        z_loss_weight: weight of log(Z)^2, which keeps logits small (Chowdhery et al. 2022).
    """

    model: TransformerLm
    label_smoothing: Number = 0.0
    z_loss_weight: Number = 0.0

    def check(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f'label_smoothing must lie in [0, 1): {self.label_smoothing}')
        if self.z_loss_weight < 0:
            raise ValueError(f'z_loss_weight must not be negative: {self.z_loss_weight}')

    def check_input(self, data: Input) -> None:
        known = getattr(getattr(self.model, 'embedding', None), 'vocab_size', None)
        needed = getattr(data, 'vocab_size', None)
        if isinstance(known, int) and isinstance(needed, int) and known < needed:
            raise UserError(
                f'its vocabulary has {needed} ids, and task.model.embedding.vocab_size is {known}'
            )

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        ids_BT = batch['ids']
        if 'segment_ids' in batch:
            return ids_BT, Positions(batch['segment_pos'], batch['segment_ids'])
        return (ids_BT,)

    def metrics(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        logits_BTV, labels_BT = outputs, batch['labels']
        weights_BT = batch['weights'].astype(jnp.float32)
        log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
        of_label_BT = jnp.take_along_axis(logits_BTV, labels_BT[..., None], axis=-1)[..., 0]
        xent_BT = log_z_BT - of_label_BT
        uniform_BT = log_z_BT - jnp.mean(logits_BTV, axis=-1)
        smoothed_BT = xent_BT + self.label_smoothing * (uniform_BT - xent_BT)
        loss_BT = smoothed_BT + self.z_loss_weight * jnp.square(log_z_BT)
        right_BT = jnp.argmax(logits_BTV, axis=-1) == labels_BT
        metrics = {
            'loss': WeightedScalar.of(loss_BT, weights_BT),
            'log_pplx': WeightedScalar.of(xent_BT, weights_BT),
            'accuracy': WeightedScalar.of(right_BT.astype(jnp.float32), weights_BT),
        }
        if 'label_bytes' in batch:
            bits = jnp.sum(xent_BT * weights_BT) / math.log(2)
            num_bytes = jnp.sum(batch['label_bytes'] * weights_BT)
            metrics['bits_per_byte'] = WeightedScalar(bits, num_bytes)
        return metrics

    def num_tokens(self, batch: DeviceBatch) -> int:
        return math.prod(batch['ids'].shape)
