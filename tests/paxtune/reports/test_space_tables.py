"""Rows of decisions, followers, and samples of a space."""

import random

import pyglove as pg

from paxtune.algorithms.encoding.sampling import draw
from paxtune.reports.space_tables import followers, samples
from paxtune.search_space.decision_rows import DecisionRow, rows
from paxtune.search_space.space import Space
from tests.factories.toys import toy
from trainer.symbolic.derived import derived
from trainer.symbolic.ranges import intv


def test_rows_say_what_is_legal_and_when_it_is_open():
    value = toy(widths=pg.manyof(2, [1, pg.oneof([2, 3])], distinct=False, sorted=True))
    found = rows(Space(value))
    assert found == [
        DecisionRow('rate', 'a number from 0.0001 to 0.1', 'log', ''),
        DecisionRow('layer', 'one of Block, Dense, Dense(width=16)', '', ''),
        DecisionRow('layer.heads', 'one of 1, 2, 4', '', 'layer = Block'),
        DecisionRow('widths', f'2 of 1, {_inner_label(value)}, in this order', '', ''),
        DecisionRow('widths[0][=1/2]', 'one of 2, 3', '', f'widths[0] = {_inner_label(value)}'),
        DecisionRow('widths[1][=1/2]', 'one of 2, 3', '', f'widths[1] = {_inner_label(value)}'),
    ]


def _inner_label(value):
    space = Space(value)
    return space.candidate_names(space.spec.elements[-1].subchoice(0))[1]


def test_conditions_of_conditions():
    inner = pg.Dict(b=pg.oneof([pg.Dict(c=intv(1, 3)), 0]))
    found = rows(Space(pg.Dict(a=pg.oneof([inner, 1]))))
    assert [row.path for row in found] == ['a', 'a.b', 'a.b.c']
    assert found[2].legal == 'an integer from 1 to 3'
    assert found[2].condition == 'a = {b} and a.b = {c}'
    assert found[2].scale == 'linear'


def test_followers_are_found_in_candidates_and_in_shared_decisions():
    value = pg.Dict(
        x=pg.oneof([pg.Dict(y=derived('z * 2')), 1]),
        z=pg.oneof([1, 2], name='n'),
        w=pg.oneof([1, 2], name='n'),
    )
    assert followers(Space(value)) == {'x.y': 'z * 2', 'z': 'shared.n', 'w': 'shared.n'}


def test_samples_are_drawn_from_the_seed_or_all_that_there_are():
    space = Space(toy())
    assert samples(space, 3, 7) == samples(space, 3, 7) != samples(space, 3, 8)
    rng = random.Random(7)
    assert samples(space, 3, 7) == [draw(space.spec, rng) for _ in range(3)]
    assert samples(Space(pg.Dict(x=pg.oneof([1, 2]))), 3, 7) == [{'x': 0}, {'x': 1}]
