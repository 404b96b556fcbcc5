"""Rotary positions against complex numbers, and their scalings against the published formulas."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import init, rotated, turned
from trainer.layers import (
    Attention,
    LinearScaling,
    LlamaScaling,
    Rotary,
    RotaryScaling,
    YarnScaling,
)
from trainer.layers.rotary import frequencies, rotate
from trainer.symbolic.errors import UserError

INDEX = np.array([[0, 1, 2, 3, 60], [0, 1, 0, 1, 2]])
X_BTNH = jax.random.normal(jax.random.key(5), (2, 5, 3, 8))


@pytest.mark.pax('… positions: rotary')
@pytest.mark.parametrize('wavelength', [10_000.0, 50.0])
def test_a_rotation_multiplies_complex_numbers(wavelength: float) -> None:
    got = jax.jit(rotate)(X_BTNH, jnp.asarray(INDEX), frequencies(8, wavelength))
    wanted = rotated(np.asarray(X_BTNH), INDEX, wavelength)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_part_of_a_head_turns_as_a_smaller_head() -> None:
    got = Rotary(50.0, fraction=0.5).turned(X_BTNH, jnp.asarray(INDEX))
    wanted = turned(np.asarray(X_BTNH), INDEX, [1.0, 50.0**-0.5])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[..., 4:], X_BTNH[..., 4:])


def test_scaled_features_turn_by_their_frequencies_and_grow() -> None:
    scaling = YarnScaling(4.0, original_length=32, high=2.0)
    got = Rotary(50.0, scaling=scaling).turned(X_BTNH, jnp.asarray(INDEX))
    wanted = turned(
        np.asarray(X_BTNH),
        INDEX,
        yarn([50.0 ** (-i / 4) for i in range(4)], 4.0, 32, 1.0, 2.0, 50.0),
        scale=0.1 * math.log(4.0) + 1,
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def linear(frequencies: list[float], factor: float) -> list[float]:
    return [f / factor for f in frequencies]


def llama(
    frequencies: list[float], factor: float, low: float, high: float, length: int
) -> list[float]:
    """By cases of the wavelength 2π / f, as the published code of Llama 3.1 has them."""
    made = []
    for f in frequencies:
        wavelength = 2 * math.pi / f
        if wavelength < length / high:
            made.append(f)
        elif wavelength > length / low:
            made.append(f / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            made.append((1 - smooth) * f / factor + smooth * f)
    return made


def yarn(
    frequencies: list[float], factor: float, length: int, low: float, high: float, base: float
) -> list[float]:
    """A ramp over pairs, from the pair with `high` turns to the one with `low` turns."""
    half = len(frequencies)
    pair = {turns: half * math.log(length / (turns * 2 * math.pi), base) for turns in (low, high)}
    first, last = max(math.floor(pair[high]), 0), min(math.ceil(pair[low]), 2 * half - 1)
    made = []
    for i, f in enumerate(frequencies):
        ramp = min(max((i - first) / (last - first), 0.0), 1.0)
        made.append(ramp * f / factor + (1 - ramp) * f)
    return made


CASES: dict[str, tuple[RotaryScaling, float, Callable[[list[float]], list[float]]]] = {
    'linear': (LinearScaling(4.0), 1e4, lambda f: linear(f, 4.0)),
    'llama 3.1': (LlamaScaling(), 5e5, lambda f: llama(f, 8, 1, 4, 8192)),
    'llama 3.2': (LlamaScaling(32.0), 5e5, lambda f: llama(f, 32, 1, 4, 8192)),
    'yarn': (YarnScaling(16.0, 4096), 1e4, lambda f: yarn(f, 16, 4096, 1, 32, 1e4)),
    'yarn of other turns': (
        YarnScaling(4.0, 32768, low=2.0, high=16.0),
        1e6,
        lambda f: yarn(f, 4, 32768, 2, 16, 1e6),
    ),
}


@pytest.mark.parametrize('name', CASES)
def test_scaled_frequencies_are_those_of_their_formula(name: str) -> None:
    scaling, wavelength, formula = CASES[name]
    wanted = formula([wavelength ** (-2 * i / 128) for i in range(64)])
    got = scaling.scaled(frequencies(128, wavelength), wavelength)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_frequencies_are_the_published_ones() -> None:
    """Those in the tests of the library transformers, for 64 pairs and the wavelength 10,000."""
    llama_3, authors = (
        scaling.scaled(frequencies(128, 1e4), 1e4)
        for scaling in (LlamaScaling(10.0, original_length=2048), YarnScaling(10.0, 2048))
    )
    np.testing.assert_allclose(
        llama_3[jnp.array([30, 31, 35, 40, 41, 63])],
        [1.3335e-02, 1.0730e-02, 2.8248e-03, 3.4539e-04, 2.7384e-04, 1.1548e-05],
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        authors[jnp.array([16, 17, 30, 38, 40, 41, 63])],
        [1.0000e-01, 8.3479e-02, 6.6143e-03, 8.7713e-04, 4.3007e-04, 2.7384e-04, 1.1548e-05],
        rtol=1e-4,
    )


def test_the_attention_factor_of_yarn_may_be_another_one() -> None:
    assert YarnScaling(8.0, 32).attention_scale() == pytest.approx(0.1 * math.log(8.0) + 1)
    assert YarnScaling(8.0, 32, attention_factor=0.5).attention_scale() == 0.5


@pytest.mark.parametrize(
    ('made', 'message'),
    [
        (lambda: Rotary(1.0), r'wavelength must be above 1: 1\.0'),
        (lambda: Rotary(fraction=0.0), 'fraction must be above 0'),
        (lambda: Rotary(fraction=1.5), 'fraction must lie between 0 and 1'),
        (lambda: LinearScaling(0.5), 'factor must be at least 1'),
        (lambda: LlamaScaling(low=4.0), r'high must be above low, 4\.0: 4\.0'),
        (lambda: YarnScaling(2.0, 64, high=0.5), r'high must be above low, 1\.0: 0\.5'),
        (
            lambda: Attention(2, head_dim=6, position=Rotary(fraction=0.5)),
            r'position\.fraction: 0\.5 of a head of 6 features is 3, but they turn in pairs',
        ),
    ],
)
def test_impossible_rotations_are_refused(made: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_a_fraction_that_does_not_fit_the_width_is_refused_with_its_path() -> None:
    with pytest.raises(UserError, match=r'0\.25 of a head of 4 features is 1'):
        init(Attention(2, position=Rotary(fraction=0.25)), jnp.ones((1, 3, 8)))
