"""Sequence to sequence: an encoder reads one text, a decoder writes another."""

import math

import jax
import jax.numpy as jnp

from trainer.inputs.base import Input
from trainer.layers.encoder_decoder import TransformerEncoderDecoder
from trainer.layers.positions import Positions
from trainer.losses import SoftmaxCrossEntropy
from trainer.measures.accuracy import AccuracyStrict
from trainer.measures.base import Measure, require_distinct
from trainer.metrics import Metrics
from trainer.task import DeviceBatch, Task
from trainer.tasks.tokens import check_vocabulary, token_metrics


class SequenceTask(Task):
    """Prediction of the next token of the target, given the whole source. Pax's SequenceModel.

    Batches hold `encoder_ids` [B, S]; `ids`, `labels` and `weights` [B, T] of the decoder. Where
    rows are not packed, `encoder_weights` [B, S] is 0 for padding; where they are, there are
    `encoder_segment_ids`, `encoder_segment_pos` [B, S], `segment_ids` and `segment_pos` [B, T], in
    which equal numbers name the same example.

    Metrics: those of `LanguageModelTask`, of the decoder's tokens, each predicted after the right
    ones before it.

    Attributes:
        model: the tokens of both to logits.
        loss: of a token.
        metrics: what is measured besides; `acc_strict` is the part of targets that are right as a
            whole.
    """

    model: TransformerEncoderDecoder
    loss: SoftmaxCrossEntropy = SoftmaxCrossEntropy()
    metrics: list[Measure] = [AccuracyStrict()]

    def check(self) -> None:
        require_distinct(self.metrics)

    def check_input(self, data: Input) -> None:
        check_vocabulary(self, data)

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        source_BS, ids_BT = batch['encoder_ids'], batch['ids']
        if 'segment_ids' in batch:
            source = Positions(batch['encoder_segment_pos'], batch['encoder_segment_ids'])
            return source_BS, ids_BT, source, Positions(batch['segment_pos'], batch['segment_ids'])
        source = Positions.unpacked(source_BS.shape)
        if 'encoder_weights' in batch:
            there_BS = (batch['encoder_weights'] > 0).astype(jnp.int32)
            source = source._replace(segment_BT=there_BS)
        return source_BS, ids_BT, source

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        return token_metrics(outputs, batch, self.loss, self.metrics)

    def num_tokens(self, batch: DeviceBatch) -> int:
        return math.prod(batch['encoder_ids'].shape) + math.prod(batch['ids'].shape)
