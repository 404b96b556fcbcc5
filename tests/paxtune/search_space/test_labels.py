"""Paths of decisions and names of candidates."""

import pyglove as pg
import pytest

from paxtune.search_space.labels import (
    candidate_names,
    display_name,
    match_candidate,
    parameter_path,
)
from paxtune.search_space.space import Space
from tests.factories.toys import Block, Dense, toy
from trainer.symbolic.derived import derived
from trainer.symbolic.errors import UserError


def test_paths_exist_in_the_concrete_experiment():
    space = Space(toy())
    decisions = {'rate': 0.01, 'layer': 0, 'layer[=0/3].heads': 2, 'widths[0]': 3, 'widths[1]': 0}
    readable = space.readable(decisions)
    assert readable == {
        'rate': 0.01,
        'layer': 'Block',
        'layer.heads': 4,
        'widths[0]': 4,
        'widths[1]': 1,
    }
    experiment = space.materialize(decisions)
    for where, value in readable.items():
        found = experiment.sym_get(where)
        assert found == value or display_name(found).startswith(str(value))


@pytest.mark.parametrize(
    ('id_', 'expected'),
    [
        ('a[=0/2].b', 'a.b'),
        ('a[=0/2]', 'a[=0/2]'),
        ('a[=0/2][=1/2].b', 'a.b'),
        ('a[=0/2][=1/2]', 'a[=0/2][=1/2]'),
        ('a[0][=0/2][1].c', 'a[0][1].c'),
    ],
)
def test_path(id_, expected):
    assert parameter_path(id_) == expected


def test_candidate_names_are_plain_values_or_display_names():
    given = [1, True, 1.0, 'x', None, Dense(), Dense(16), Block(heads=pg.oneof([1, 2])), [1, 'a']]
    expected = [1, True, 1.0, 'x', None, 'Dense', 'Dense(width=16)', 'Block', "[1, 'a']"]
    assert [(type(a), a) for a in candidate_names(given)] == [(type(b), b) for b in expected]
    assert candidate_names([Dense(), Dense(width=pg.oneof([1, 2]))]) == ['Dense', 'Dense(width)']


def test_branches_have_the_names_of_their_decisions():
    depth, rate = pg.oneof([1, 2]), pg.floatv(0.0, 1.0)
    given = [
        None,
        pg.Dict(depth=depth),
        pg.Dict(deep=pg.Dict(rate=rate)),
        pg.Dict(kind='a', x=rate),
    ]
    names = [None, '{depth}', '{deep={rate}}', "{kind='a'}"]
    assert candidate_names(given) == names
    assert [match_candidate(name, names) for name in names] == [0, 1, 2, 3]
    same = [pg.Dict(kind='a', x=rate), pg.Dict(kind='a', y=rate), pg.Dict(kind='a', y=depth)]
    assert candidate_names(same) == ["{kind='a', x}", "{kind='a', y} #1", "{kind='a', y} #2"]
    assert candidate_names([float('nan'), float('inf')]) == ['nan', 'inf']


def test_dictionaries_are_called_by_the_constant_in_which_they_differ():
    rate = pg.floatv(0.0, 1.0)
    adam, sgd = pg.Dict(kind='adam', beta=rate), pg.Dict(kind='sgd', momentum=rate)
    space = Space(pg.Dict(optimizer=pg.oneof([adam, sgd])))
    for given in ('sgd', "{kind='sgd'}", pg.Dict(kind='sgd')):
        made = space.parse({'optimizer': given, 'optimizer.momentum': 0.5})
        assert space.readable(made) == {'optimizer': 'sgd', 'optimizer.momentum': 0.5}
    with pytest.raises(UserError, match='one of adam, sgd'):
        space.parse({'optimizer': 'lion'})
    assert candidate_names([pg.Dict(n=4), pg.Dict(n=8)]) == [4, 8]
    for others in ([pg.Dict(a=1), pg.Dict(b=2)], [pg.Dict(a=1, b=2), pg.Dict(a=1, b=3)]):
        assert all(str(name).startswith('{') for name in candidate_names(others))


@pytest.mark.parametrize(
    ('value', 'index'),
    [
        (1, 1),
        (True, 2),
        ('1', 0),
        (2, 3),
        ('2.0', 3),
        (Dense(16), 4),
        ('Dense(width=16)', 4),
        ('Block()', 5),
        ('None', 6),
        (None, 6),
        (0, None),
        ('block', None),
    ],
)
def test_matching_prefers_the_same_type(value, index):
    assert match_candidate(value, ['1', 1, True, 2.0, 'Dense(width=16)', 'Block', None]) == index


def test_names_of_derived_values_are_their_expressions():
    assert display_name(Dense(width=derived('4 * heads'))) == 'Dense(width=4 * heads)'
    value = pg.Dict(x=pg.oneof([derived('y * 2'), 3]), y=2)
    space = Space(value)
    decisions = space.parse({'x': 'y * 2'})
    assert space.readable(decisions) == {'x': 'y * 2'}
    assert space.materialize(decisions).x == 4


def test_lists_are_matched_by_text_regardless_of_spaces():
    space = Space(pg.Dict(x=pg.oneof([[0.1, 32], [0.01, 64]])))
    for written in ('[0.01, 64]', '[0.01,64]', ' [ 0.01, 64 ]', [0.01, 64]):
        assert space.parse({'x': written}) == {'x': 1}
    with pytest.raises(UserError, match=r'x must be one of \[0.1, 32\], \[0.01, 64\]'):
        space.parse({'x': '[0.01, 65]'})
