"""The knowledge and the figures of `benchmarks/search_tables.py`."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import search_tables
from benchmarks.search import earlier, flags, ours, regret, tables
from benchmarks.search.methods import Earlier, Refused
from benchmarks.search.problems import Known, Problem
from trainer.learner.optimizers import AdamW


def table() -> Problem:
    hp = np.array([[1e-4, 0.5], [1e-3, 0.99], [1e-2, 0.999]])
    names = ['learning_rate', 'beta1']
    return tables.table_problem('small', names, hp, np.array([3.0, 2.0, 1.0]))


def large_tables() -> dict[str, Problem]:
    rng = np.random.default_rng(0)
    hp = 10 ** rng.uniform(-5, -1, (40, 2))
    names = ['learning_rate', 'l1']
    return {
        name: tables.table_problem(name, names, hp, rng.uniform(1, 2, 40))
        for name in ('a', 'b', 'c')
    }


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


@pytest.mark.parametrize(('kind', 'sources', 'sign'), [('one', 1, -1), ('negated', 2, 1)])
def test_a_search_learns_from_searches_of_other_tables(
    kind: Earlier, sources: int, sign: int
) -> None:
    problems = large_tables()
    study = earlier.make(kind, problems['b'], 0, problems, length=6).study
    assert len({each.source for each in study.record.priors}) == sources
    assert len(study.record.priors) == 6 * sources
    assert all(1 <= sign * each.scores[0] <= 2 for each in study.record.priors)
    best = max(study.record.priors, key=lambda each: each.scores)
    first = study.ask()
    assert first is not None and first.view.by_id == best.decisions


def test_earlier_studies_without_another_table_are_refused() -> None:
    with pytest.raises(Refused, match='no other problem'):
        earlier.make('one', table(), 0, {'small': table()})


def test_shuffled_scores_belong_to_other_trials() -> None:
    trials = [({'learning_rate': float(i)}, None if i == 3 else float(i)) for i in range(9)]
    found = [*earlier.changed('shuffled', table(), trials, random.Random(0))]
    assert [values for values, _ in found] == [values for values, _ in trials]
    assert found[3][1] is None and found != trials
    assert {value for _, value in found} == {value for _, value in trials}


def test_many_trials_at_a_time_are_run_where_two_rounds_fit() -> None:
    arguments = flags.parser('')
    for trials, is_run in ((50, False), (128, True)):
        arguments.set_defaults(only=None, problems=None, seeds=1, trials=trials)
        plan = search_tables.planned(arguments.parse_args([]), {'small': table()})
        assert ('default_known_parallel_64' in {method.name for method, _ in plan}) == is_run


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
