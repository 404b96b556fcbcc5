"""The knowledge and the figures of `benchmarks/search_tables.py`."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks import search_tables
from benchmarks.search import ours, regret, tables
from benchmarks.search.problems import Known, Problem
from trainer.learner.optimizers import AdamW


def table() -> Problem:
    hp = np.array([[1e-4, 0.5], [1e-3, 0.99], [1e-2, 0.999]])
    names = ['learning_rate', 'beta1']
    return tables.table_problem('small', names, hp, np.array([3.0, 2.0, 1.0]))


def test_known_values_of_tables_are_those_that_adam_states() -> None:
    rate, stated = AdamW().usual_rate(None), AdamW.usual
    assert rate is not None
    assert tables.KNOWN['learning_rate'] == Known(rate.value, rate.low, rate.high)
    assert dataclasses.astuple(tables.KNOWN['epsilon']) == pytest.approx(
        (stated['epsilon'].value, stated['epsilon'].low, stated['epsilon'].high)
    )
    for label in ('l1', 'l2'):
        none = stated[f'{label}_regularizer_weight']
        assert tables.KNOWN[label] == Known(none.value, none.low, none.high)
    for label, name in (('one_minus_beta1', 'b1'), ('one_minus_beta2', 'b2')):
        values = (1 - stated[name].value, 1 - stated[name].high, 1 - stated[name].low)
        assert dataclasses.astuple(tables.KNOWN[label]) == pytest.approx(values)


def test_a_mirrored_value_is_as_far_on_the_other_side_of_the_middle() -> None:
    problem = table()
    mirrored = problem.knowing('mirrored').known
    assert dataclasses.astuple(mirrored['learning_rate']) == pytest.approx(
        (1e-3, 1 / 3000, 1 / 300)
    )
    assert mirrored['one_minus_beta1'].value == pytest.approx(5e-3)
    assert problem.knowing('none').known == {}
    assert problem.knowing('known').known == problem.known


def test_the_first_trial_of_a_search_with_a_prior_has_its_values() -> None:
    first = [
        ours.make('default', problem, 0).ask()
        for problem in (table().knowing('known'), table().knowing('mirrored'))
    ]
    assert first[0]['one_minus_beta1'] == pytest.approx(0.1)
    assert first[1]['one_minus_beta1'] == pytest.approx(5e-3)


def test_means_of_logarithms_have_a_floor(tmp_path: Path) -> None:
    cells = [{'seed': 0, 'values': [3.0, 2.0, 1.0]}, {'seed': 1, 'values': [None, None, None]}]
    found = search_tables.logs({('a', 'small'): cells}, {'small': table()}, [2, 3])
    expected = [(np.log(1.0) + np.log(search_tables.FLOOR)) / 2, 0.0]
    assert found['a']['small'] == pytest.approx(expected)
    assert regret.logs([0.0]) == pytest.approx(np.log([regret.FLOOR]))


def test_ratios_are_compared_with_the_goals(capsys: pytest.CaptureFixture[str]) -> None:
    by_method = {
        'optuna_tpe': {'small': np.zeros(4)},
        'default_known': {'small': np.full(4, np.log(0.5))},
    }
    ratios = search_tables.compared({'10': by_method})
    assert ratios == {'default_known_to_optuna_tpe_10': pytest.approx(0.5)}
    assert '0.5 (0.5–0.5)' in capsys.readouterr().out
    assert search_tables.missed(ratios) == [
        'default_known to optuna_tpe after 10: 0.5, at most 0.3'
    ]
