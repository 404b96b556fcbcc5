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
from trainer.losses import Loss, SoftmaxCrossEntropy, cross_entropy, is_most_likely
from trainer.measures.base import Measure, Outcome, measured
from trainer.metrics import Count, Metrics, WeightedScalar, joined, weighted
from trainer.symbolic.errors import ShapeError, UserError
from trainer.task import DeviceBatch, Task


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

    Attributes:
        loss: of a token, such as the cross-entropy with label smoothing and z-loss.
        metrics: additional metrics.
        decoder: generates text; None without decoding.
    """

    loss: Loss = SoftmaxCrossEntropy()
    metrics: list[Measure] = []
    decoder: Decoder | None = None

    def check(self) -> None:
        joined(*({each.metric_name(): each} for each in self.metrics))

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
        xent_BT = cross_entropy(outputs, labels_BT)
        right_BT = is_most_likely(outputs, labels_BT)
        metrics: Metrics = {
            'loss': WeightedScalar.of(self.loss.per_example(outputs, labels_BT), weights_BT),
            **{
                f'loss/{name}': WeightedScalar.of(part, weights_BT)
                for name, part in self.loss.parts(outputs, labels_BT).items()
            },
            'log_pplx': WeightedScalar.of(xent_BT, weights_BT),
            'accuracy': WeightedScalar.of(right_BT.astype(jnp.float32), weights_BT),
            'num_predictions': Count(jnp.sum(weights_BT)),
        }
        if 'label_bytes' in batch:
            bits = metrics['log_pplx'].total / math.log(2)
            num_bytes = jnp.sum(batch['label_bytes'] * weights_BT)
            metrics['bits_per_byte'] = WeightedScalar(bits, num_bytes)
        segments = batch.get('segment_ids')
        outcome = Outcome(outputs, labels_BT, weights_BT, segments=segments)
        return joined(metrics, measured(self.metrics, outcome))

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
