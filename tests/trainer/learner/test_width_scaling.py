"""Width scaling: factors by parameter, equality at the base, and what is refused."""

import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.tiny import VOCAB, CountingInput, experiment
from trainer.experiment import Experiment
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Gaussian,
    LatentAttention,
    Layer,
    LayerNorm,
    LearnedPositions,
    Linear,
    LinenAdapter,
    Positions,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.stack import per_layer
from trainer.learner import SGD, AdamW, Learner, Lion, Muon, Optax, WidthScaling
from trainer.learner.width_scaling import Factor
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.program.step_functions import width_factors
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced
from trainer.tasks import LanguageModelTask

DIMS = 'task.model.embedding.dims'
BASE = WidthScaling(base={DIMS: 16})


def wide(scaling: WidthScaling | None = BASE, **model: Any) -> Experiment:
    """A model of width 64 with two equal layers."""
    fields: dict[str, Any] = {
        'embedding': Embedding(VOCAB, 64),
        'stack': Stack([TransformerBlock(Attention(2), FeedForward())], repeats=2),
    }
    task = LanguageModelTask(TransformerLm(**fields | model), Learner(0.01, width_scaling=scaling))
    return Experiment(task, CountingInput(batch_size=8, is_training=True))


def factors(made: Experiment) -> dict[str, Factor]:
    found = width_factors(made.task, made.train_input.element_spec())
    assert found is not None
    return found.by_name()


def trained(made: Experiment, steps: int = 3) -> tuple[Program, Any, Any]:
    made = localized(made)
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    for _ in range(steps):
        batch = program.put(made.train_input.get_next())
        state, _ = program.train_step(state, batch, key, values)
    return program, state, (batch, values)


def same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_model_with_the_widths_of_its_base_trains_as_without_scaling() -> None:
    plain = experiment()
    scaled = replaced(plain, {'task.learner.width_scaling': BASE}, 'test')
    same(trained(plain)[1].params, trained(scaled)[1].params)


def test_factors_follow_the_table_of_the_paper() -> None:
    found = factors(wide())
    layer, quarter = 'stack.layers_1', Factor(rate=0.25)
    assert found[f'{layer}.feed_forward.up'] == found[f'{layer}.feed_forward.down'] == quarter
    assert found[f'{layer}.attention.key'] == found[f'{layer}.attention.output'] == quarter
    assert found[f'{layer}.attention_norm.scale'] == Factor()
    # 1/d attention in the place of 1/sqrt(d): half as large, and learns half as fast.
    assert found[f'{layer}.attention.query'] == Factor(init=0.5, rate=0.125)
    # Embedded tokens are multiplied by sqrt(dims), which must not make them learn faster.
    assert found['embedding.table'] == Factor(rate=0.5)
    # Logits of the shared table: sqrt(4) of the table's factor, divided by 4.
    assert found['final_norm.scale'] == Factor(rate=0.5, shift=-0.5)


def test_a_head_of_its_own_replaces_the_scale_before_the_shared_table() -> None:
    found = factors(wide(head=Linear(VOCAB, bias='zeros')))
    assert found['head.kernel'] == Factor(init=0.5, rate=0.25)
    assert found['head.bias'] == found['final_norm.scale'] == Factor()


def test_logits_of_a_shared_table_need_a_norm_before_them() -> None:
    with pytest.raises(UserError, match=r'set task.model.final_norm, or give the model a head'):
        factors(wide(final_norm=None))


def test_constant_deviations_become_those_of_the_base() -> None:
    block = TransformerBlock(
        Attention(2, init=Gaussian(0.02), bias='zeros'),
        FeedForward(init=Gaussian(0.02), bias='zeros'),
    )
    found = factors(
        wide(
            embedding=Embedding(VOCAB, 64, scale_sqrt_depth=False, init=Gaussian(0.02)),
            stack=Stack([block]),
            position_embedding=LearnedPositions(8),
            final_norm=LayerNorm(),
        )
    )
    assert found['stack.layers_0.feed_forward.up'] == Factor(init=0.5, rate=0.25)
    assert found['stack.layers_0.feed_forward.up_bias'] == Factor()
    assert found['stack.layers_0.attention.query'] == Factor(init=0.25, rate=0.125)
    assert found['stack.layers_0.attention.query_bias'] == Factor(rate=0.5)
    assert found['embedding.table'] == found['position_embedding.table'] == Factor()
    assert found['final_norm.scale'] == Factor(rate=0.25, shift=-0.75)
    assert found['final_norm.bias'] == Factor(rate=0.25)


def test_heads_of_constant_size_keep_the_attention_of_the_base() -> None:
    block = TransformerBlock(Attention(8, head_dim=8, num_kv_heads=2), GatedFeedForward())
    heads = 'task.model.stack.layers[0].attention.num_heads'
    found = factors(wide(WidthScaling(base={DIMS: 16, heads: 2}), stack=Stack([block])))
    assert found['stack.layers_0.attention.query'] == Factor(rate=0.25)
    assert found['stack.layers_0.attention.key'] == Factor(rate=0.25)
    assert found['stack.layers_0.attention.output'] == Factor(rate=0.25)


def test_latents_of_constant_size_are_hidden() -> None:
    block = TransformerBlock(LatentAttention(2, 6, query_latent_dims=4), FeedForward())
    found = factors(wide(stack=Stack([block])))
    attention = 'stack.layers_0.attention'
    for name in ('latent', 'query_latent', 'rotary_key', 'output'):
        assert found[f'{attention}.{name}'] == Factor(rate=0.25)
    assert found[f'{attention}.key'] == found[f'{attention}.latent_norm.scale'] == Factor()
    for name in ('query', 'rotary_query'):
        assert found[f'{attention}.{name}'] == Factor(init=0.5, rate=0.5)


def test_the_norm_of_queries_divides_logits_by_the_size_of_heads() -> None:
    block = TransformerBlock(Attention(2, qk_norm=LayerNorm()), FeedForward())
    found = factors(wide(stack=Stack([block])))
    norms = 'stack.layers_0.attention.{}_norm.{}'.format
    assert found[norms('query', 'scale')] == Factor(rate=0.5, shift=-0.5)
    assert found[norms('query', 'bias')] == Factor(rate=0.5)
    assert found[norms('key', 'scale')] == found[norms('key', 'bias')] == Factor()


def test_queries_beside_keys_scale_as_keys_unless_their_heads_grow() -> None:
    def combined(**fields: Any) -> Stack:
        block = TransformerBlock(Attention(2, combine_qkv=True, **fields), FeedForward())
        return Stack([block], repeats=2, scan='always')

    found = factors(wide(stack=combined(head_dim=8)))
    assert found['stack.layers_1.attention.qkv'] == Factor(rate=0.25)
    with pytest.raises(UserError, match=r'attention\.qkv has queries beside keys.*=False, or'):
        factors(wide(stack=combined()))


def test_a_constant_scale_of_growing_heads_is_refused() -> None:
    def scaled(**fields: Any) -> Stack:
        return Stack([TransformerBlock(Attention(2, softmax_scale=0.3, **fields), FeedForward())])

    with pytest.raises(UserError, match=r'layers\[0\]\.attention\.softmax_scale is the same'):
        factors(wide(stack=scaled()))
    assert factors(wide(stack=scaled(head_dim=8)))


@pytest.mark.slow
def test_scanned_and_unrolled_layers_train_alike() -> None:
    each = [
        trained(replaced(wide(), {'task.model.stack.scan': scan}, 'test'))[1]
        for scan in ('always', 'never')
    ]
    scanned, unrolled = (per_layer(state.params) for state in each)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), scanned, unrolled)


@pytest.mark.slow
def test_initial_values_and_the_first_update_have_the_factors() -> None:
    plain, scaled = (trained(wide(scaling), steps=1) for scaling in (None, BASE))
    start, begun = (
        program.init(program.random_key(0), values) for program, _, (_, values) in (plain, scaled)
    )

    def query(state: Any) -> Any:
        return state.params['stack']['layers_0']['attention']['query']

    np.testing.assert_array_equal(query(begun), 0.5 * query(start))
    np.testing.assert_array_equal(begun.params['final_norm']['scale'], -0.5)
    # Adam's first update is the learning rate wherever the gradient is not tiny; decay stays.
    decay = 1 - 0.01 * 0.1
    moved = np.abs(query(scaled[1]) - decay * query(begun))
    np.testing.assert_allclose(np.median(moved), 0.01 * 0.125, rtol=1e-3)


class Own(Layer):
    """A language model of layers and of parameters with axes.

    Attributes:
        dims: its width.
        vocab_size: number of tokens.
        tokens: the embedding.
        block: on the embedded tokens.
        is_tied: the table makes the logits.
    """

    dims: int = 64
    vocab_size: int = VOCAB
    tokens: Embedding = Embedding(VOCAB, 64)
    block: Layer = TransformerBlock(Attention(2), FeedForward())
    is_tied: bool = False

    def forward(self, ids_BT: Any, positions: Positions | None = None) -> Any:
        positions = positions or Positions.unpacked(ids_BT.shape)
        x_BTD = self.block(self.tokens(ids_BT), positions)
        if self.is_tied:
            return self.tokens.call('attend', x_BTD)
        head = self.param('head', (self.dims, self.vocab_size), ('embed', 'vocab'))
        return self.product('btd,dv->btv', x_BTD, head)


class Embedded(Layer):
    """Adds the vector of the first token.

    Attributes:
        table: the vectors.
    """

    table: Embedding = Embedding(VOCAB, 64)

    def forward(self, x_BTD: Any, positions: Positions | None = None) -> Any:
        return x_BTD + self.table(jnp.zeros(x_BTD.shape[:2], jnp.int32))


class FlaxLm(LinenAdapter):
    """A language model of flax."""

    vocab_size: int = VOCAB
    dims: int = 64

    def make(self) -> nn.Module:
        return nn.Sequential([nn.Embed(VOCAB, self.dims), nn.Dense(VOCAB)])


def own(model: Layer, *further: str) -> Experiment:
    paths = ('task.model.dims', *further)
    scaling = WidthScaling(base=dict.fromkeys(paths, 16))
    task = LanguageModelTask(model, Learner(0.01, width_scaling=scaling))
    return Experiment(task, CountingInput(batch_size=8, is_training=True))


def test_a_model_of_ones_own_has_the_factors_of_a_transformer() -> None:
    found = factors(own(Own(), 'task.model.tokens.dims'))
    wanted = factors(wide(head=Linear(VOCAB)))
    assert found['head'] == wanted['head.kernel']
    assert found['tokens.table'] == wanted['embedding.table'] == Factor(rate=0.5)
    assert found['block.attention.query'] == wanted['stack.layers_0.attention.query']
    assert found['block.feed_forward.up'] == wanted['stack.layers_0.feed_forward.up']


def test_models_of_unknown_axes_are_refused_with_their_path() -> None:
    with pytest.raises(UserError, match=r': task\.model \(Own\) has no kernel that makes its outp'):
        factors(own(Own(is_tied=True), 'task.model.tokens.dims'))
    with pytest.raises(UserError, match=r': task\.model \(FlaxLm\) is a module of flax, whose'):
        factors(own(FlaxLm()))
    inside = Own(block=Stack([Embedded()], repeats=2, scan='never'))
    with pytest.raises(UserError, match=r'layers\[0\]\.table \(Embedding\) has no table of'):
        factors(own(inside, 'task.model.tokens.dims', 'task.model.block.layers[0].table.dims'))


def test_wrong_bases_and_optimizers_are_refused() -> None:
    with pytest.raises(ValueError, match='base must have the widths'):
        WidthScaling(base={})
    with pytest.raises(ValueError, match=r'learner\.x is no path in the model'):
        WidthScaling(base={'learner.x': 1})
    with pytest.raises(UserError, match=re.escape('width_scaling.base: model.embedding.dimz')):
        factors(wide(WidthScaling(base={'task.model.embedding.dimz': 1})))
    with pytest.raises(UserError, match=r'only widths may differ, but stack\.layers_1'):
        factors(
            replaced(
                wide(WidthScaling(base={'task.model.stack.repeats': 1})),
                {'task.model.stack.scan': 'never'},
                'test',
            )
        )
    for optimizer in (SGD(), Optax(name='adam')):
        with pytest.raises(ValueError, match='it needs AdamW, Lion or Muon, not'):
            Learner(0.1, optimizer=optimizer, width_scaling=BASE)
    for optimizer in (AdamW(), Lion(), Muon()):
        assert Learner(0.1, optimizer=optimizer, width_scaling=BASE).width_scaling == BASE
    decaying = AdamW(weight_decay=0.1, weight_decay_on_all=True)
    with pytest.raises(ValueError, match='weight_decay_on_all would decay: set it to False'):
        Learner(0.1, optimizer=decaying, width_scaling=BASE)
