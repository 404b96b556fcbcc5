"""Language models, mixers and losses of users in the tasks of tokens."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.factories.tiny import CountingInput
from trainer.decoding import Greedy
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Identity,
    Layer,
    Linear,
    LinenAdapter,
    NnxAdapter,
    Positions,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import Learner
from trainer.losses import Loss, SoftmaxCrossEntropy, WeightedLosses, cross_entropy
from trainer.metrics import Totals
from trainer.program.step_functions import abstract_metrics
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask, SequenceTask

SPEC = {
    'ids': jax.ShapeDtypeStruct((2, 4), jnp.int32),
    'labels': jax.ShapeDtypeStruct((2, 4), jnp.int32),
    'weights': jax.ShapeDtypeStruct((2, 4), jnp.float32),
}


class Bigrams(nn.Module):
    """Logits of the next token, from the last one."""

    vocab_size: int

    @nn.compact
    def __call__(self, ids: Any) -> Any:
        return nn.Dense(self.vocab_size)(nn.Embed(self.vocab_size, 8)(ids))


class LinenLm(LinenAdapter):
    """`Bigrams` as a language model.

    Attributes:
        vocab_size: number of token ids.
        num_logits: number of logits.
    """

    vocab_size: int = 32
    num_logits: int = 32

    def make(self) -> nn.Module:
        return Bigrams(self.num_logits)

    def forward(self, ids: Any, positions: Positions | None = None) -> Any:
        return self.run(ids)


class NnxLm(NnxAdapter):
    """Logits of the next token, from the last one, by a module of nnx."""

    vocab_size: int = 32

    def make(self, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Embed(self.vocab_size, self.vocab_size, rngs=rngs)

    def forward(self, ids: Any, positions: Positions | None = None) -> Any:
        return self.run(ids)


class PlainLm(Layer):
    """A language model that takes no positions and does not say its vocabulary."""

    embedding: Embedding
    head: Linear

    def forward(self, ids: Any) -> Any:
        return self.head(self.embedding(ids))


class NamedLm(PlainLm):
    """Says its vocabulary."""

    @property
    def vocab_size(self) -> int:
        return self.embedding.vocab_size


class Past(Layer):
    """The mean of the past."""

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return jnp.cumsum(x_BTD, 1) / jnp.arange(1, 1 + x_BTD.shape[1])[:, None]


class Everywhere(Past):
    """The mean of all positions."""

    mask = 'full'

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return jnp.broadcast_to(x_BTD.mean(1, keepdims=True), x_BTD.shape)


def task(model: Layer, **fields: Any) -> LanguageModelTask:
    return LanguageModelTask(model, Learner(learning_rate=0.01), **fields)


def with_mixer(mixer: Layer) -> TransformerLm:
    block = TransformerBlock(mixer, FeedForward(8))
    plain = TransformerBlock(Identity(), FeedForward(8))
    return TransformerLm(Embedding(32, 8), Stack([plain, block]))


def values(metrics: Any) -> dict[str, float]:
    totals = Totals()
    totals.add(metrics)
    return totals.values()


@pytest.mark.pax('flax_adapter: any flax')
@pytest.mark.parametrize(
    'model', [LinenLm(), NnxLm(), NamedLm(Embedding(32, 8), Linear(32)), with_mixer(Past())]
)
def test_a_model_is_any_layer_from_ids_to_logits(model: Layer) -> None:
    made = task(model)
    made.check_input(CountingInput(batch_size=2))
    metrics, _, args = abstract_metrics(made, SPEC)
    assert 'log_pplx' in jax.eval_shape(metrics, *args)


def test_a_model_says_its_vocabulary() -> None:
    with pytest.raises(ValueError, match='model: PlainLm must say the number of its token ids'):
        task(PlainLm(Embedding(32, 8), Linear(32)))


def test_logits_that_do_not_fit_the_vocabulary_are_refused() -> None:
    metrics, _, args = abstract_metrics(task(LinenLm(num_logits=31)), SPEC)
    message = r'task\.model \(LinenLm\): it returns \(2, 4, 31\) .*Expected logits \(2, 4, 32\)'
    with pytest.raises(UserError, match=message):
        jax.eval_shape(metrics, *args)


def test_a_vocabulary_that_does_not_suffice_is_named_by_the_model() -> None:
    class Wide(CountingInput):
        vocab_size = 33

    with pytest.raises(UserError, match=r'has 33 ids, but task\.model\.vocab_size is 32'):
        task(LinenLm()).check_input(Wide(batch_size=2))


def test_packed_rows_need_a_model_with_positions() -> None:
    class Packed(CountingInput):
        def element_spec(self) -> Any:
            spec = super().element_spec()
            return {**spec, 'segment_ids': spec['ids']}

    message = r'task\.model \(NamedLm\) does not take them: define forward\(self, ids, positions'
    with pytest.raises(UserError, match=message):
        task(NamedLm(Embedding(32, 8), Linear(32))).check_input(Packed(batch_size=2))
    task(LinenLm()).check_input(Packed(batch_size=2))


def test_a_module_of_flax_does_not_decode() -> None:
    with pytest.raises(ValueError, match=r'decoder: model \(LinenLm\) cannot decode token by'):
        task(LinenLm(), decoder=Greedy(4))


@pytest.mark.parametrize(
    ('mixer', 'model_type', 'message'),
    [
        (Past(), 'bidirectional', r"attention \(Past\) has 'causal'"),
        (Past(), 'prefix', r'attention \(Past\) does not show the whole prefix'),
        (Everywhere(), 'causal', r"attention \(Everywhere\) has 'full'"),
        (Attention(2), 'bidirectional', r"attention \(Attention\) has 'causal'"),
    ],
)
def test_the_mask_of_a_mixer_is_checked_by_its_path(
    mixer: Layer, model_type: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=rf'model\.stack\.layers\[1\]\.{message}'):
        task(with_mixer(mixer), model_type=model_type)


def test_a_mixer_that_shows_all_positions_serves_a_bidirectional_model() -> None:
    task(with_mixer(Everywhere()), model_type='bidirectional')


def test_a_silent_model_of_a_user_is_causal() -> None:
    with pytest.raises(ValueError, match=r"model \(LinenLm\) has 'causal'"):
        task(LinenLm(), model_type='bidirectional')


def test_a_model_without_a_cache_is_refused_where_it_decodes() -> None:
    made = task(NamedLm(Embedding(32, 8), Linear(32)), decoder=Greedy(4, prompt_length=2))
    with pytest.raises(UserError, match=r'\(NamedLm\) does not take them: define forward'):
        made.check_decode_input(CountingInput(batch_size=2))


class Focal(Loss):
    """Weighs easy tokens less."""

    def of(self, outputs: Any, labels: Any) -> Any:
        xent = cross_entropy(outputs, labels)
        return (1 - jnp.exp(-xent)) * xent


@pytest.mark.pax('`LossAggregator`')
def test_losses_of_tokens_are_open() -> None:
    both = WeightedLosses(
        losses={'nats': SoftmaxCrossEntropy(), 'focal': Focal()},
        weights={'nats': 0.5, 'focal': 2.0},
    )
    labels = jnp.array([[1, 2]])
    batch = {'ids': labels, 'labels': labels, 'weights': jnp.array([[1.0, 1.0]])}
    model = with_mixer(Past())
    logits = jax.random.normal(jax.random.key(0), (1, 2, 32))
    got = values(task(model, loss=both).measure(logits, batch))
    assert got['loss'] == pytest.approx(0.5 * got['loss/nats'] + 2 * got['loss/focal'], rel=1e-5)
    assert got['loss/nats'] == pytest.approx(got['log_pplx'], rel=1e-6)
    assert 0 < got['loss/focal'] < got['loss/nats']


class SourceLm(Layer):
    """Adds the mean of the source."""

    embedding: Embedding
    head: Linear
    vocab_size: int = 32

    def forward(self, source: Any, ids: Any, *positions: Positions) -> Any:
        mean_B1D = self.embedding(source).mean(1, keepdims=True)
        return self.head(self.embedding(ids) + mean_B1D)


def test_a_model_of_two_sequences_is_any_layer() -> None:
    model = SourceLm(Embedding(32, 8), Linear(32))
    made = SequenceTask(model, Learner(learning_rate=0.01))
    metrics, _, args = abstract_metrics(made, {**SPEC, 'encoder_ids': SPEC['ids']})
    assert 'acc_strict' in jax.eval_shape(metrics, *args)
    with pytest.raises(ValueError, match=r'decoder: model \(SourceLm\) has no methods `encode`'):
        made.clone(override={'decoder': Greedy(4)})
