import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainer.decoding import Decoder, Prompts
from trainer.decoding.base import Extend
from trainer.decoding.examples import DecodedExample, text_metrics
from trainer.inputs.base import Input
from trainer.inputs.weights import broadcast, weight_features, weights_of
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.layers.summed_ahead import Values
from trainer.layers.token_logits import TokenLogits, splits_logits
from trainer.losses import Loss, SoftmaxCrossEntropy, cross_entropy, is_most_likely
from trainer.measures.base import Measure, Outcome, measured
from trainer.metrics import Count, Metrics, WeightedScalar, joined, weighted
from trainer.symbolic.component import require_positive
from trainer.symbolic.errors import ShapeError, UserError
from trainer.task import DeviceBatch, ModelCall, Task


class TokenTask(Task):
    """Base of tasks whose model returns the logits of the next token.

    Batches hold `ids`, `labels` and `weights` [B, T] of the tokens. With a decoder the task also
    generates text for `decode_inputs`. Each text continues a prompt, the first tokens of its row:
    `prefix_lengths` [B] of the batch, `inputs_indicator` or `decoder.prompt_length` sets its
    length.

    Metrics: `loss`, with `loss/<name>` for each of several; `log_pplx`, the plain cross-entropy in
    nats per token; `accuracy` of the most likely token; `num_predictions`, the sum of the weights.
    Batches with `label_bytes` have `bits_per_byte`, which does not depend on the vocabulary. Then
    those in `metrics`.

    The logits of a large batch are its largest arrays. Then they exist in chunks of tokens alone,
    and the gradients of a chunk are computed with its loss. So memory of the loss is a fraction of
    the logits, with the same operations. A task with its own `measure`, a measure that
    `reads_outputs`, and a model that is not `last_hidden` and `logits` keep whole logits.

    Attributes:
        loss: of a token, such as the cross-entropy with label smoothing and z-loss.
        metrics: additional metrics.
        decoder: generates text; None without decoding.
        loss_chunks: parts of the tokens of a device for the loss; 1 for whole logits. None takes
            whole logits up to 256 MiB on a device. Above, it takes chunks of about that size, at
            least 8.
    """

    loss: Loss = SoftmaxCrossEntropy()
    metrics: list[Measure] = []
    decoder: Decoder | None = None
    loss_chunks: int | None = None

    def check(self) -> None:
        joined(*({each.metric_name(): each} for each in self.metrics))
        require_positive(self, 'loss_chunks')
        if (self.loss_chunks or 1) > 1 and (reason := self._reads_logits()):
            raise ValueError(f'loss_chunks must be 1 or None: {reason} needs whole logits')

    def check_input(self, data: Input) -> None:
        there = data.element_spec()
        shape = there['labels'].shape if 'labels' in there else None
        if shape and not any(there[w].shape == shape for w in weight_features(there, 'labels')):
            raise UserError(
                f'its batches have no `weights` {list(shape)}, 1 for each label and 0 for padding'
            )
        self.check_vocabulary(data)

    def check_vocabulary(self, data: Input) -> None:
        """Raises UserError if an input has ids that the model does not know."""
        known, needed = self.vocab_size, getattr(data, 'vocab_size', None)
        if isinstance(known, int) and isinstance(needed, int) and known < needed:
            field = '.embedding' if hasattr(self.model, 'embedding') else ''
            raise UserError(
                f'its vocabulary has {needed} ids, but task.model{field}.vocab_size is {known}'
            )

    def check_decode_input(self, data: Input) -> None:
        if self.decoder is None:
            raise UserError('there is no task.decoder, such as Greedy(max_decode_steps=32)')
        self.decoder.end_ids()
        there = data.element_spec()
        if 'segment_ids' in there:
            raise UserError('its rows are packed; decoding needs one text per row')
        if self._prompt_length() is None and not {'prefix_lengths', 'inputs_indicator'} & {*there}:
            raise UserError(
                'its batches have neither `prefix_lengths` nor `inputs_indicator`, which mark the '
                'prompt: set task.decoder.prompt_length'
            )

    @property
    def unit(self) -> str:
        return 'token'

    @property
    def vocab_size(self) -> int | None:
        """The number of token ids of the model; None if the model does not say it."""
        found = getattr(self.model, 'vocab_size', None)
        return found if isinstance(found, int) else None

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        labels_BT, weights_BT = batch['labels'], self.label_weights(batch)
        self._require_logits(outputs, labels_BT.shape)
        if isinstance(outputs, TokenLogits):
            total, values = outputs.weighted_sum(self._terms, weights_BT, labels_BT)
            loss = WeightedScalar(total, jnp.sum(weights_BT))
        else:
            losses_BT, values = self._terms(outputs, labels_BT)
            loss = WeightedScalar.of(losses_BT, weights_BT)
        metrics: Metrics = {
            'loss': loss,
            **{name: WeightedScalar.of(each, weights_BT) for name, each in values.items()},
            'num_predictions': Count(jnp.sum(weights_BT)),
        }
        if 'label_bytes' in batch:
            bits = metrics['log_pplx'].total / math.log(2)
            num_bytes = jnp.sum(batch['label_bytes'] * weights_BT)
            metrics['bits_per_byte'] = WeightedScalar(bits, num_bytes)
        segments = batch.get('segment_ids')
        right_BT = values['accuracy'] > 0
        outcome = Outcome(outputs, labels_BT, weights_BT, segments=segments, right=right_BT)
        return joined(metrics, measured(self.metrics, outcome))

    def outputs(self, call: ModelCall, batch: DeviceBatch) -> Any:
        inputs, count = self.model_inputs(batch), self.loss_chunks
        if count == 1 or self._reads_logits():
            whole: jax.Array = call(*inputs)
            return whole
        logits: jax.Array | TokenLogits = call.in_chunks(*inputs, loss_chunks=count)
        return logits

    def _terms(self, logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, Values]:
        """The losses of tokens, and their other values by the names of metrics."""
        parts = self.loss.parts(logits, labels).items()
        return self.loss.per_example(logits, labels), {
            **{f'loss/{name}': part for name, part in parts},
            'log_pplx': cross_entropy(logits, labels),
            'accuracy': is_most_likely(logits, labels).astype(jnp.float32),
        }

    def _reads_logits(self) -> str:
        """The part of the task that reads whole logits; '' if there is none."""
        for each in self.metrics:
            if each.reads_outputs:
                return f'metrics: {type(each).__name__}'
        if not splits_logits(self.model):
            return f'model: {type(self.model).__name__}'
        return '' if type(self).measure is TokenTask.measure else f'{type(self).__name__}.measure'

    def label_weights(self, batch: DeviceBatch) -> jax.Array:
        """Weights of the labels, float32 [B, T]."""
        weights_BT: jax.Array = broadcast(weights_of(batch, 'labels'), batch['labels'].shape)
        return weights_BT

    def prompts(self, batch: DeviceBatch) -> Prompts:
        """The prompts of a batch: the first tokens of its rows. A row of padding has none."""
        ids_BT = batch['ids']
        if 'prefix_lengths' in batch:
            lengths_B = batch['prefix_lengths']
        elif 'inputs_indicator' in batch:
            lengths_B = jnp.sum(batch['inputs_indicator'] > 0, axis=1)
        else:
            length = self._prompt_length()
            assert length is not None, 'check_decode_input requires it'
            ids_BT = ids_BT[:, :length]
            lengths_B = jnp.full(len(ids_BT), ids_BT.shape[1])
        return Prompts(ids_BT, jnp.clip(lengths_B, 0, ids_BT.shape[1]).astype(jnp.int32))

    def extender(self, variables: Any, batch: DeviceBatch, context: ForwardContext) -> Extend:
        """The model as a function for decoders; the context has the length of the cache."""
        raise NotImplementedError(type(self).__name__)

    def scores(self, outputs: jax.Array, batch: DeviceBatch) -> jax.Array:
        """The logarithm of the probability of each row's labels, in nats: float32 [B]."""
        xent_BT = cross_entropy(outputs, batch['labels'])
        return -jnp.sum(weighted(xent_BT, self.label_weights(batch)), axis=1)

    def process_decode_out(
        self, data: Input, examples: Sequence[DecodedExample]
    ) -> dict[str, float]:
        """Metrics of the texts of a decode set; subclasses may add their own.

        Returns:
            The metrics of `text_metrics` and of the input, such as a SeqIO task's.
        """
        best = {example.number: example.texts[0].ids for example in examples}
        return joined(text_metrics(examples), data.predict_metrics(best))

    def _prompt_length(self) -> int | None:
        return None if self.decoder is None else self.decoder.prompt_length

    def _require_vocabulary(self) -> None:
        if self.vocab_size is None:
            raise ValueError(
                f'model: {type(self.model).__name__} must say the number of its token ids with a '
                'field or property `vocab_size`'
            )

    def _require_logits(self, outputs: Any, shape_BT: tuple[int, ...]) -> None:
        found, size = getattr(outputs, 'shape', type(outputs).__name__), self.vocab_size
        expected = (*shape_BT, found[-1] if size is None else size)
        if found != expected:
            raise ShapeError(
                f'task.model ({type(self.model).__name__}): it returns {found} for labels '
                f'{shape_BT}. Expected logits {expected}, one for each token of the vocabulary'
            )

    def _with_cache(
        self,
        variables: Any,
        cache: Any,
        context: ForwardContext,
        *args: Any,
        method: str = 'forward',
    ) -> tuple[Any, jax.Array]:
        cached = {} if cache is None else {CACHE: cache}
        with forward_context(context):
            logits, changed = self.model.module().apply(
                {**variables, **cached}, *args, _method=method, mutable=[CACHE]
            )
        if not changed.get(CACHE):
            raise UserError(
                f'task.model ({type(self.model).__name__}): it cannot decode token by token, since '
                'no layer of it caches anything (`cached`, `set_cached`)'
            )
        return changed[CACHE], logits
