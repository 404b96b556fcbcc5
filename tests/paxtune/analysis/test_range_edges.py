"""Decisions of the best trial at the edge of their range."""

from typing import Any

import pyglove as pg
import pytest

import paxtune
from paxtune.analysis.range_edges import at_edges
from paxtune.command_line import summary
from trainer.symbolic.ranges import intv


@pytest.mark.parametrize(
    'decision, number, is_at_edge',
    [
        (pg.floatv(0.0, 10.0), 0.05, True),
        (pg.floatv(0.0, 10.0), 9.95, True),
        (pg.floatv(0.0, 10.0), 0.15, False),
        (pg.floatv(1e-4, 1.0, 'log'), 1.05e-4, True),
        (pg.floatv(1e-4, 1.0, 'log'), 2e-4, False),
        (pg.floatv(0.1, 10.0, 'rlog'), 9.9999, True),
        (intv(1, 1000), 1000, True),
        (intv(1, 1000), 999, False),
        (intv(0, 1), 1, False),
        (pg.oneof([4, 2, 8]), 1, True),
        (pg.oneof([4, 2, 8]), 0, False),
        (pg.oneof([2, 4]), 0, False),
        (pg.oneof(['a', 'b', 'c']), 0, False),
    ],
)
def test_numbers_at_an_end_of_their_range_are_found(
    decision: Any, number: Any, is_at_edge: bool
) -> None:
    assert ('x' in at_edges(pg.dna_spec(pg.Dict(x=decision)), {'x': number})) == is_at_edge


def test_inactive_decisions_are_at_no_edge() -> None:
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a', pg.floatv(0.0, 1.0)])))
    assert at_edges(spec, {'x': 0}) == {}
    assert at_edges(spec, {'x': 1, 'x[=1/2]': 0.0}) == {'x[=1/2]': (0.0, 1.0)}


def test_the_end_of_a_search_names_them() -> None:
    space = pg.Dict(rate=pg.floatv(0.0, 1.0), layers=intv(1, 9))
    seeds = [{'rate': 0.5, 'layers': 9}, {'rate': 0.25, 'layers': 1}]
    study = paxtune.tune(
        lambda values: values.rate,
        space=space,
        num_trials=2,
        objective='maximize',
        initial_trials=seeds,
    )
    assert '\n  layers (1 to 9)\n' in summary(study, 'x')
    assert '\n  rate (' not in summary(study, 'x')
