"""What all tasks that predict tokens have in common."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainer.decoding import Decoder, Prompts
from trainer.decoding.base import Extend
from trainer.decoding.examples import DecodedExample, measures_of_texts
from trainer.inputs.base import Input
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.losses import SoftmaxCrossEntropy, cross_entropy
from trainer.measures.base import Measure, Outcome, measured, require_distinct
from trainer.metrics import Count, Metrics, WeightedScalar
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch, Task


class TokenTask(Task):
    """Base of tasks whose model gives the logits of the next token.

    Batches hold `ids`, `labels` and `weights` [B, T] of the tokens. With a decoder the task also
    writes texts, for `decode_inputs`. Each continues a prompt: the first tokens of its row, as
    many as its batch says in `prefix_lengths` [B], or as `inputs_indicator` marks, or as
    `decoder.prompt_length` is.

    Metrics: `loss` with label smoothing and z-loss; `log_pplx`, the plain cross-entropy in nats a
    token; `accuracy` of the most likely token; `num_predictions`, the sum of the weights;
    `bits_per_byte`, which does not depend on the vocabulary, where batches have `label_bytes`;
    then those in `metrics`.

    Attributes:
        loss: of a token.
        metrics: what is measured besides.
        decoder: how texts are written; None where none are.
    """

    loss: SoftmaxCrossEntropy = SoftmaxCrossEntropy()
    metrics: list[Measure] = []
    decoder: Decoder | None = None

    def check(self) -> None:
        require_distinct(self.metrics)

    def check_input(self, data: Input) -> None:
        known = getattr(getattr(self.model, 'embedding', None), 'vocab_size', None)
        needed = getattr(data, 'vocab_size', None)
        if isinstance(known, int) and isinstance(needed, int) and known < needed:
            raise UserError(
                f'its vocabulary has {needed} ids, and task.model.embedding.vocab_size is {known}'
            )

    def check_decode_input(self, data: Input) -> None:
        if self.decoder is None:
            raise UserError('there is no task.decoder, such as Greedy(max_decode_steps=32)')
        there = data.element_spec()
        if 'segment_ids' in there:
            raise UserError('its rows are packed; decoding wants each text in a row of its own')
        if self._prompt_length() is None and not {'prefix_lengths', 'inputs_indicator'} & {*there}:
            raise UserError(
                'its batches do not say which tokens are the prompt, in `prefix_lengths` or '
                '`inputs_indicator`: set task.decoder.prompt_length'
            )

    @property
    def unit(self) -> str:
        return 'token'

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        labels_BT, weights_BT = batch['labels'], batch['weights'].astype(jnp.float32)
        xent_BT = cross_entropy(outputs, labels_BT)
        right_BT = jnp.argmax(outputs, axis=-1) == labels_BT
        metrics: Metrics = {
            'loss': WeightedScalar.of(self.loss.of(outputs, labels_BT), weights_BT),
            'log_pplx': WeightedScalar.of(xent_BT, weights_BT),
            'accuracy': WeightedScalar.of(right_BT.astype(jnp.float32), weights_BT),
            'num_predictions': Count(jnp.sum(weights_BT)),
        }
        if 'label_bytes' in batch:
            bits = jnp.sum(xent_BT * weights_BT) / math.log(2)
            num_bytes = jnp.sum(batch['label_bytes'] * weights_BT)
            metrics['bits_per_byte'] = WeightedScalar(bits, num_bytes)
        segments = batch.get('segment_ids')
        outcome = Outcome(outputs, labels_BT, weights_BT, segments=segments)
        return metrics | measured(self.metrics, outcome)

    def prompts(self, batch: DeviceBatch) -> Prompts:
        """What a batch asks to continue: the first tokens of its rows."""
        ids_BT = batch['ids']
        if 'prefix_lengths' in batch:
            lengths_B = batch['prefix_lengths']
        elif 'inputs_indicator' in batch:
            lengths_B = jnp.sum(batch['inputs_indicator'] > 0, axis=1)
        else:
            length = self._prompt_length()
            assert length is not None, 'check_decode_input has seen to that'
            ids_BT = ids_BT[:, :length]
            lengths_B = jnp.full(len(ids_BT), ids_BT.shape[1])
        # A row that only fills up the batch has no prompt.
        return Prompts(ids_BT, jnp.clip(lengths_B, 1, ids_BT.shape[1]).astype(jnp.int32))

    def extender(self, variables: Any, batch: DeviceBatch, context: ForwardContext) -> Extend:
        """The model as a decoder drives it.

        Args:
            variables: of the model.
            batch: that of the prompts.
            context: what holds for the layers; it says how long the cache is.
        """
        raise NotImplementedError(type(self).__name__)

    def scores(self, outputs: jax.Array, batch: DeviceBatch) -> jax.Array:
        """The logarithm of the probability of each row's labels, in nats: float32 [B]."""
        xent_BT = cross_entropy(outputs, batch['labels'])
        return -jnp.sum(xent_BT * batch['weights'], axis=1)

    def process_decode_out(
        self, data: Input, examples: Sequence[DecodedExample]
    ) -> dict[str, float]:
        """Metrics of all that was written for a decode set; subclasses may add their own.

        Returns:
            Those of `measures_of_texts`, and those that the input defines, such as a SeqIO task's.
        """
        best = {example.number: example.texts[0].ids for example in examples}
        return measures_of_texts(examples) | data.predict_metrics(best)

    def _prompt_length(self) -> int | None:
        """The length of prompts of which batches say none."""
        return None if self.decoder is None else self.decoder.prompt_length

    def _with_cache(
        self,
        variables: Any,
        cache: Any,
        context: ForwardContext,
        *args: Any,
        method: str = 'forward',
    ) -> tuple[Any, jax.Array]:
        """Calls the model: the cache after it, and the logits."""
        kept = {} if cache is None else {CACHE: cache}
        with forward_context(context):
            logits, left = self.model.module().apply(
                {**variables, **kept}, *args, _method=method, mutable=[CACHE]
            )
        return left[CACHE], logits
