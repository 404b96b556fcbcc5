"""Derived values in the experiments of a space."""

import random

import pyglove as pg
import pytest
from hypothesis import given

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.space import Space
from tests.factories.spaces import SEEDS
from tests.factories.toys import Block
from tests.properties import examples
from trainer.symbolic.derived import Derived, derived, derived_values
from trainer.symbolic.errors import UserError


def _blocks() -> pg.Dict:
    """Widths and head counts at three depths, with derived values."""
    block = pg.Dict(
        heads=pg.oneof([1, 2, 3]), dim=derived('width // heads'), used=derived('dim * heads')
    )
    other = pg.Dict(heads=1, dim=derived('width'), used=derived('width'))
    return pg.Dict(
        width=pg.oneof([8, 12]),
        layers=[
            pg.oneof([pg.Dict(width=pg.oneof([6, 4]), block=pg.oneof([block, other])), other]),
            pg.oneof([block, other]),
        ],
        total=derived('layers[1].used + width'),
    )


def _assert_blocks_hold(made: pg.Dict) -> None:
    outer = made.layers[0]
    found = [(made.layers[1], made.width)]
    found.append((outer.block, outer.width) if 'block' in outer else (outer, made.width))
    for block, width in found:
        assert block.dim == width // block.heads
        assert block.used == block.dim * block.heads
    assert made.total == made.layers[1].used + made.width


@examples(40)
@given(SEEDS)
def test_derived_values_are_resolved_in_every_experiment(seed):
    space = Space(_blocks())
    made = space.materialize(draw(space.spec, random.Random(seed)))
    assert not list(derived_values(made))
    _assert_blocks_hold(made)


def test_decoding_leaves_derived_values_unresolved():
    space = Space(_blocks())
    decided = space.decode(draw(space.spec, random.Random(0)))
    assert pg.is_deterministic(decided)
    assert isinstance(decided.total, Derived)


def test_derived_values_distinguish_illegal_values_and_unknown_paths():
    block = Block(heads=derived('width / parts'))
    space = Space(
        pg.Dict(width=9, parts=pg.oneof([3, 2, 0]), x=block, y=derived('z.depth'), z=pg.oneof(
            [pg.Dict(depth=1), pg.Dict(size=2)]
        ))
    )  # fmt: skip
    assert space.materialize({'parts': 0, 'z': 0}).x.heads == 3
    with pytest.raises(ValueError, match=r"x.heads: derived\('width / parts'\): .* got 4.5"):
        space.materialize({'parts': 1, 'z': 0})
    with pytest.raises(ValueError, match=r'x.heads: .*division by zero'):
        space.materialize({'parts': 2, 'z': 0})
    with pytest.raises(UserError, match=r'y: .* names z.depth, which does not exist. z has: size'):
        space.materialize({'parts': 0, 'z': 1})
