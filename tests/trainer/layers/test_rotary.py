"""Rotary positions against complex numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import rotated
from trainer.layers.attention import rotate

INDEX = np.array([[0, 1, 2, 3, 60], [0, 1, 0, 1, 2]])


@pytest.mark.pax('… positions: rotary')
@pytest.mark.parametrize('wavelength', [10_000.0, 50.0])
def test_a_rotation_multiplies_complex_numbers(wavelength: float) -> None:
    x_BTNH = jax.random.normal(jax.random.key(5), (2, 5, 3, 8))
    got = jax.jit(rotate)(x_BTNH, jnp.asarray(INDEX), wavelength)
    wanted = rotated(np.asarray(x_BTNH), INDEX, wavelength)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
