"""Spaces: what is refused, and decisions as people write them."""

import json
import random
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.space import Space
from tests.factories.spaces import SEEDS, values
from tests.factories.toys import Block, Dense, toy
from tests.properties import examples
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@examples(30)
@given(values(), SEEDS)
def test_readable_decisions_are_json_and_parse(value, seed):
    space = Space(value)
    decisions = draw(space.spec, random.Random(seed))
    readable = space.readable(decisions)
    assert len(readable) == len(decisions)
    assert space.parse(json.loads(json.dumps(readable))) == decisions


@pytest.mark.parametrize(
    'value',
    [
        pg.manyof(10**9, [1, 2], distinct=False),
        pg.manyof(1000, [pg.manyof(1000, [1, 2], distinct=False)], distinct=False),
        pg.oneof([1, pg.manyof(10**5, [pg.floatv(0.0, 1.0), 2], distinct=False)]),
    ],
)
def test_too_many_decisions_are_rejected_quickly(value):
    with pytest.raises(UserError, match=r'^x: [12]\d+ decisions are too many'):
        Space(pg.Dict(x=value, y=pg.oneof([1, 2])))


def test_trials_do_not_share_components():
    space = Space(pg.Dict(layer=pg.oneof([Dense(), Block()]), rate=pg.floatv(0.0, 1.0)))
    one, other = (space.materialize({'layer': 0, 'rate': rate}) for rate in (0.1, 0.2))
    assert one.layer is not other.layer


def test_missing_decisions_are_listed():
    with pytest.raises(UserError) as error:
        Space(toy()).parse({'layer': 'Block', 'widths[0]': 1})
    assert str(error.value) == (
        'These decisions are missing:\n'
        '  rate: a number from 0.0001 to 0.1\n'
        '  layer.heads: one of 1, 2, 4\n'
        '  widths[1]: one of 1, 2, 3, 4'
    )


def test_missing_decisions_are_listed_before_their_conditional_ones():
    with pytest.raises(UserError, match='are missing') as error:
        Space(toy()).parse({'rate': 0.01, 'layer.heads': 2, 'widths[0]': 1, 'widths[1]': 2})
    assert 'layer: one of Block, Dense, Dense(width=16)' in str(error.value)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'rate': 0.5}, 'rate must be a number from 0.0001 to 0.1: 0.5'),
        ({'rate': 'fast'}, "rate must be a number from 0.0001 to 0.1: 'fast'"),
        ({'rate': True}, 'rate must be a number from 0.0001 to 0.1: True'),
        ({'rate': 'nan'}, "rate must be a number from 0.0001 to 0.1: 'nan'"),
        ({'layer': 'Dens'}, "layer must be one of Block, Dense, Dense(width=16): 'Dens'"),
        ({'layer.heads': 2}, 'layer.heads is inactive with the other decisions.'),
        ({'ratio': 2}, 'ratio is no decision of this experiment. Did you mean rate?'),
        ({'widths[1]': 3}, 'widths: the choices must differ from each other.'),
    ],
)
def test_illegal_decisions_are_refused(change, message):
    legal = {'rate': 0.01, 'layer': 'Dense', 'widths[0]': 3, 'widths[1]': 4}
    with pytest.raises(UserError) as error:
        Space(toy()).parse(legal | change)
    assert str(error.value) == message


def test_text_from_a_command_line_is_parsed():
    given = {
        'rate': '1e-3',
        'layer': 'Block()',
        'layer.heads': '4',
        'widths[0]': '1',
        'widths[1]': '2',
    }
    decisions = Space(toy()).parse(given)
    assert decisions == {
        'rate': 1e-3,
        'layer': 0,
        'layer[=0/3].heads': 2,
        'widths[0]': 0,
        'widths[1]': 1,
    }


def test_sorted_choices_must_be_in_order():
    space = Space(pg.Dict(x=pg.manyof(2, [1, 2, 3], sorted=True)))
    with pytest.raises(UserError, match='in order'):
        space.parse({'x[0]': 2, 'x[1]': 1})


def _range(low: float, high: float, scale: str | None) -> Any:
    # As an override creates it: PyGlove checks bounds only in the constructor.
    decision = pg.floatv(1.0, 2.0)
    return decision.rebind(min_value=low, max_value=high, scale=scale, skip_notification=True)


@pytest.mark.pax('Whether a run tunes', 'A constant space')
@pytest.mark.parametrize(
    ('value', 'message'),
    [
        (pg.Dict(x=1), 'There is nothing to search'),
        (pg.Dict(x=_range(0.0, 1.0, 'log')), 'x: a range on a log scale must start above 0: 0.0'),
        (pg.Dict(x=pg.oneof([_range(-1.0, 1.0, 'rlog')])), 'x: a range on a rlog scale must'),
        (pg.Dict(x=_range(1.0, 0.5, None)), 'x: a range must have finite bounds'),
        (pg.Dict(x=pg.floatv(0.0, float('inf'))), 'x: a range must have finite bounds'),
        (pg.Dict(x=pg.oneof([0, _range(2.0, 1.0, None)])), 'x: a range must have finite'),
        (pg.Dict(x=pg.evolve(Dense(), lambda *_: Dense())), 'x: Evolvable cannot'),
        (
            pg.Dict(x=pg.oneof([1, 2], name='n'), y=pg.oneof([1, 3], name='n')),
            "x and y: both decisions have the name 'n', and they differ",
        ),
        (
            pg.Dict(x=pg.oneof([None, pg.Dict(y=derived('widht'))]), width=1),
            r'x.* names widht, which is no field here.* Did you mean width\?',
        ),
        (
            pg.Dict(x=pg.oneof([1, 2]), y=derived('z'), z=derived('y + x')),
            'y, z: derived values that follow from themselves',
        ),
    ],
)
def test_spaces_that_cannot_be_searched_are_refused(value, message):
    with pytest.raises(UserError, match=message):
        Space(value)


@pytest.mark.parametrize('written', [4, 4.0, '4', '4.0', '4e0'])
def test_integers_are_parsed(written):
    space = Space(pg.Dict(n=intv(1, 8)))
    decisions = space.parse({'n': written})
    assert decisions == {'n': 4}
    assert type(decisions['n']) is int
    assert type(space.materialize(decisions).n) is int
    assert space.readable(decisions) == {'n': 4}


@pytest.mark.parametrize('written', [0, 9, 2.5, '2.5', True, 'many', 'nan', 10**400])
def test_non_integers_are_rejected_in_ranges_of_integers(written):
    with pytest.raises(UserError, match=r'^n must be an integer from 1 to 8: '):
        Space(pg.Dict(n=intv(1, 8))).parse({'n': written})


@pytest.mark.parametrize(
    ('low', 'high', 'scale', 'message'),
    [
        (0.0, 8.0, 'log', 'n: a range on a log scale must start above 0'),
        (1.5, 8.0, None, 'n: the bounds of intv must be integers: 1.5, 8.0'),
        (8.0, 7.0, None, 'n: a range must have finite bounds'),
    ],
)
def test_ranges_of_integers_are_validated(low, high, scale, message):
    decision = intv(1, 2)
    decision.rebind(min_value=low, max_value=high, scale=scale, skip_notification=True)
    with pytest.raises(UserError, match=message):
        Space(pg.Dict(n=decision))
