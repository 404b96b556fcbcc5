"""Pooling of sequences leaves padding out, and other segments of a packed row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers import GlobalPool, Positions, SequencePool
from trainer.symbolic.errors import UserError

SEGMENTS = np.array([[1, 1, 2, 2, 2, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
X_BTD = np.array(jax.random.normal(jax.random.key(0), (3, 6, 4)))
X_BTD[SEGMENTS == 0] = np.nan
REFERENCES: dict[str, Any] = {
    'average': lambda rows: rows.mean(axis=0),
    'max': lambda rows: rows.max(axis=0),
    'first': lambda rows: rows[0],
    'last': lambda rows: rows[-1],
}


def pooled(layer: SequencePool, positions: Positions) -> Any:
    return np.asarray(layer.module().apply({}, jnp.asarray(X_BTD), positions))


@pytest.mark.parametrize('kind', REFERENCES)
def test_each_segment_is_pooled_by_itself(kind: Any) -> None:
    found = pooled(SequencePool(kind, num_segments=3), Positions.packed(jnp.asarray(SEGMENTS)))
    assert found.shape == (3, 3, 4)
    for row, segment in np.ndindex(3, 3):
        rows = X_BTD[row][SEGMENTS[row] == segment + 1]
        wanted = REFERENCES[kind](rows) if len(rows) else np.zeros(4)
        np.testing.assert_allclose(found[row, segment], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('kind', REFERENCES)
def test_padding_is_left_out_of_whole_rows(kind: Any) -> None:
    lengths = jnp.array([5, 1, 0])
    marked = Positions.packed(jnp.asarray(SEGMENTS))
    counted = Positions.unpacked((3, 6))._replace(lengths_B=lengths)
    for positions in (marked, counted):
        found = pooled(SequencePool(kind), positions)
        for row, length in enumerate([5, 1, 0]):
            rows = X_BTD[row, :length]
            wanted = REFERENCES[kind](rows) if length else np.zeros(4)
            np.testing.assert_allclose(found[row], wanted, rtol=1e-6, atol=1e-6)


def test_the_pool_of_images_refuses_sequences() -> None:
    with pytest.raises(UserError, match=r'not \[3, 6, 4\].* SequencePool'):
        GlobalPool().module().apply({}, jnp.asarray(X_BTD))
