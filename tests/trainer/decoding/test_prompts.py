"""Prompts of different lengths in one batch: a layer with a state decodes each as if alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.decoding.test_decoding import VOCAB, decode, texts
from trainer.decoding import BeamSearch, Decoder, Greedy, Prompts, Sample, check_decoding
from trainer.layers import (
    Attention,
    DepthwiseConv1D,
    Embedding,
    FeedForward,
    Layer,
    Residual,
    Stack,
    TransformerLm,
)
from trainer.layers.positions import Positions
from trainer.symbolic.errors import UserError

PROMPTS = [[3, 1, 4], [5, 9, 2, 6, 5], [2, 7, 1, 8, 2, 8, 1, 8]]
STEPS = 6


class Decay(Layer):
    """A state that decays, and takes in each token: [B, T, D] -> [B, T, D]."""

    stops: bool = True

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        positions = positions or Positions.unpacked(x_BTD.shape[:2])
        features = x_BTD.shape[2:]
        kernel = self.param('kernel', (*features, *features), ('embed', 'mlp'))
        rate_D = jax.nn.sigmoid(self.param('rate', features, ('norm',), jax.nn.initializers.ones))
        state_BD = jnp.zeros((len(x_BTD), *features), x_BTD.dtype)
        if self.cache_length is not None:
            state_BD = self.cached('state', state_BD.shape, state_BD.dtype)

        def step(state_BD: jax.Array, each: Any) -> tuple[jax.Array, jax.Array]:
            x_BD, begins_B, is_token_B = each
            before_BD = jnp.where(begins_B[:, None], 0, state_BD)
            after_BD = rate_D * before_BD + x_BD @ kernel
            return jnp.where(is_token_B[:, None], after_BD, state_BD), after_BD

        is_token_BT = positions.is_token_BT if self.stops else jnp.ones(x_BTD.shape[:2], bool)
        each = [jnp.swapaxes(x, 0, 1) for x in (x_BTD, positions.begins_BT, is_token_BT)]
        state_BD, y_TBD = jax.lax.scan(step, state_BD, each)
        if self.cache_length is not None:
            self.set_cached('state', state_BD)
        return jnp.swapaxes(y_TBD, 0, 1)


def model(scan: str = 'never', stops: bool = True) -> TransformerLm:
    each: list[Layer] = [Residual(Decay(stops=stops)), Residual(FeedForward(16))]
    return TransformerLm(Embedding(VOCAB, 8), Stack(each, repeats=2, scan=scan))


def written(scan: str = 'never', stops: bool = True) -> tuple[TransformerLm, Any]:
    made = model(scan, stops)
    params: Any = made.module().init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))['params']
    return made, jax.tree.map(lambda leaf: 3 * jnp.asarray(leaf.value), params, is_leaf=_is_box)


def _is_box(value: Any) -> bool:
    return hasattr(value, 'names')


def prompts(rows: list[list[int]]) -> Prompts:
    longest = max(map(len, rows))
    padded = [row + [7] * (longest - len(row)) for row in rows]
    return Prompts(jnp.array(padded), jnp.array([len(row) for row in rows]))


DECODERS: dict[str, Decoder] = {
    'greedy': Greedy(STEPS, eos_ids=[4]),
    'sampling': Sample(STEPS, eos_ids=[4], num_samples=2),
    'beam': BeamSearch(STEPS, eos_ids=[4], beam_size=3),
}


@pytest.mark.parametrize('name', DECODERS)
@pytest.mark.fast(1)
def test_a_padded_prompt_gives_the_texts_of_the_prompt_alone(name: str) -> None:
    decoder, made = DECODERS[name], written()
    together = texts(decode(made, decoder, prompts(PROMPTS)))
    for row, prompt in enumerate(PROMPTS):
        # Draws belong to the row, so the prompt stands in the same row without any padding.
        assert texts(decode(made, decoder, prompts([prompt] * len(PROMPTS))))[row] == together[row]


@pytest.mark.slow
def test_scanned_layers_keep_the_state_of_each_prompt() -> None:
    decoder = DECODERS['beam']  # It reorders the states of all layers.
    each = [texts(decode(written(scan), decoder, prompts(PROMPTS))) for scan in ('never', 'always')]
    assert each[0] == each[1]


def test_the_check_of_a_layer_finds_a_state_that_runs_over_padding() -> None:
    x_BTD = jax.random.normal(jax.random.key(0), (3, 10, 8))
    check_decoding(Decay(), x_BTD, [3, 5, 8])
    with pytest.raises(UserError, match=r'Decay: token 1 after .* row 0 .*lengths_B'):
        check_decoding(Decay(stops=False), x_BTD, [3, 5, 8])
    # Prompts of one length have no padding.
    check_decoding(Decay(stops=False), x_BTD, [5, 5, 5])


@pytest.mark.slow
def test_the_check_takes_models_and_layers_without_a_state() -> None:
    x_BTD = jax.random.normal(jax.random.key(0), (3, 10, 8))
    check_decoding(Attention(2, window=3), x_BTD, [3, 5, 8])
    check_decoding(DepthwiseConv1D(3), x_BTD, [3, 5, 8])
    check_decoding(
        model('always'), jax.random.randint(jax.random.key(1), (3, 10), 0, VOCAB), [3, 5, 8]
    )


def test_a_state_begins_anew_in_each_packed_segment() -> None:
    x_BTD = jax.random.normal(jax.random.key(0), (1, 6, 8))
    layer, positions = Decay().module(), Positions.packed(jnp.array([[1, 1, 2, 2, 2, 0]]))
    variables = layer.init(jax.random.key(1), x_BTD)
    packed: Any = layer.apply(variables, x_BTD, positions)
    for part in (slice(0, 2), slice(2, 5)):
        alone: Any = layer.apply(variables, x_BTD[:, part])
        np.testing.assert_allclose(packed[:, part], alone, rtol=1e-6)
