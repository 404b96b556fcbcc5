"""Language models: next-token prediction."""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from trainer.errors import UserError
from trainer.inputs.base import Input
from trainer.layers.masks import require_mask
from trainer.layers.positions import Positions
from trainer.layers.transformer import TransformerLm
from trainer.losses import SoftmaxCrossEntropy
from trainer.measures.base import Measure, require_distinct
from trainer.metrics import Metrics
from trainer.task import DeviceBatch, Task
from trainer.tasks.tokens import check_vocabulary, token_metrics


class LanguageModelTask(Task):
    """Next-token prediction.

    Batches hold `ids`, `labels` and `weights` [B, T], with `segment_ids` and `segment_pos` where
    rows are packed, and `label_bytes`, the bytes of text that each label stands for. A prefix
    model also needs `inputs_indicator` [B, T]: 1 where `ids` is a token of the prefix, be it the
    one that stands before the first. What it can see is no prediction: a label that is the next
    token of the prefix has no weight, whatever `weights` says.

    Metrics: `loss` with label smoothing and z-loss; `log_pplx`, the plain cross-entropy in nats a
    token; `accuracy` of the most likely token; `num_predictions`, the sum of the weights;
    `bits_per_byte`, which does not depend on the vocabulary; then those in `metrics`.

    Attributes:
        model: token ids to logits.
        model_type: what a token may depend on: 'causal' on those before it; 'prefix' on the whole
            prefix, too (Raffel et al. 2020); 'bidirectional' on all, so that labels must not be
            among `ids`, as in masked language models.
        loss: of a token.
        metrics: what is measured besides.
    """

    model: TransformerLm
    model_type: Literal['causal', 'prefix', 'bidirectional'] = 'causal'
    loss: SoftmaxCrossEntropy = SoftmaxCrossEntropy()
    metrics: list[Measure] = []

    def check(self) -> None:
        require_mask(
            self.model,
            f'model_type {self.model_type!r}',
            'full' if self.model_type == 'bidirectional' else 'causal',
        )
        require_distinct(self.metrics)

    def check_input(self, data: Input) -> None:
        check_vocabulary(self, data)
        if self.model_type == 'prefix' and 'inputs_indicator' not in data.element_spec():
            raise UserError(
                "its batches have no `inputs_indicator`, which task.model_type='prefix' needs: it "
                'says which tokens are the prefix'
            )

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        ids_BT = batch['ids']
        positions = None
        if 'segment_ids' in batch:
            positions = Positions(batch['segment_pos'], batch['segment_ids'])
        if self.model_type == 'prefix':
            positions = positions or Positions.unpacked(ids_BT.shape)
            positions = positions._replace(prefix_BT=batch['inputs_indicator'] > 0)
        return (ids_BT,) if positions is None else (ids_BT, positions)

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        if self.model_type == 'prefix':
            batch = {**batch, 'weights': batch['weights'] * _is_unseen(batch)}
        return token_metrics(outputs, batch, self.loss, self.metrics)

    def num_tokens(self, batch: DeviceBatch) -> int:
        return math.prod(batch['ids'].shape)


def _is_unseen(batch: DeviceBatch) -> jax.Array:
    """1 where the label is not one of the prefix, which its position sees: float32 [B, T]."""
    is_prefix = batch['inputs_indicator'] > 0
    seen = is_prefix[:, 1:] & is_prefix[:, :-1]
    if 'segment_ids' in batch:
        seen &= batch['segment_ids'][:, 1:] == batch['segment_ids'][:, :-1]
    return 1.0 - jnp.pad(seen, ((0, 0), (0, 1))).astype(jnp.float32)
