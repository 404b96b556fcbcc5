"""Checks of a study: no effect, no gain over a baseline, regressions, limits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.analysis.checks import Check, checks
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.reports import study_report
from paxtune.reports.study_tables import summary
from paxtune.reports.tables import to_text
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError

SPACE = pg.Dict(x=pg.floatv(0.0, 1.0))
Metrics = Mapping[str, float]


def study_of(told: Iterable[Metrics], **fields: Any) -> Study:
    """A study whose trials end with metrics, one after another."""
    told = list(told)
    search = Search(
        fields.pop('objective', MetricReward('minimize', 'loss')),
        Budget(len(told)),
        algorithm=RandomSearch(),
        **fields,
    )
    study = open_study(None, SPACE, search=search)
    for metrics in told:
        trial = study.ask()
        assert trial is not None
        study.tell(trial, metrics)
    return study


def losses(*values: float) -> list[Metrics]:
    return [{'loss': value} for value in values]


def found(study: Study, kind: str, baseline: int | None = None) -> list[Check]:
    return [each for each in checks(study, baseline) if each.kind == kind]


def warned(study: Study) -> list[str]:
    return [each.kind for each in checks(study) if each.is_warning]


# --- Effect ---


@pytest.mark.parametrize(
    ('values', 'is_warning'),
    [
        ((1.0, 3.0, 2.9, 1.1, 1.5, 2.6, 2.2, 1.7, 1.2, 2.8), True),
        ((1.0, 1.1, 3.0, 3.1, 5.0, 5.1, 2.0, 2.1, 4.0, 4.1), False),
    ],
)
def test_effects_are_compared_with_the_noise_of_replicates(
    values: Sequence[float], is_warning: bool
) -> None:
    (effect,) = found(study_of(losses(*values), replicates=2), 'effect')
    assert effect.is_warning == is_warning
    assert effect.value is not None and (effect.value > 0.05) == is_warning
    assert ('replicates' in effect.message) == is_warning


def test_equal_rewards_have_no_effect() -> None:
    (effect,) = found(study_of(losses(*[2.0] * 5)), 'effect')
    assert effect.is_warning and 'the same in all trials' in effect.message


def test_without_replicates_no_effect_is_claimed() -> None:
    assert found(study_of(losses(1.0, 1.1, 0.9, 1.2, 1.05)), 'effect') == []


def test_few_configurations_warn_of_nothing() -> None:
    assert warned(study_of(losses(2.0, 2.0, 2.0, 2.0))) == []


def test_rewards_of_any_size_can_be_checked() -> None:
    study = study_of(losses(*[1e300, 1e300, 1.0, 1.0, 2.0, -1e308, 3.0, 1e-320, 1.0, 1.0]))
    assert {each.kind for each in checks(study)} == {'gain'}
    study = study_of(
        losses(*[1e300, 1.0, 1e308, 1.0, 2.0, -1e308, 3.0, 1e-320, 1.0, 1.0]), replicates=2
    )
    assert warned(study) == ['effect', 'gain']


# --- Gain ---


def test_a_gain_over_the_first_trial_is_stated() -> None:
    (gain,) = found(study_of(losses(2.0, 3.0, 1.5, 4.0, 5.0)), 'gain')
    assert not gain.is_warning
    assert gain.value == pytest.approx(0.25)
    assert gain.message == 'Trial 3 improves loss over the baseline, trial 1, by 0.5 (25.0%).'


def test_a_first_trial_that_stays_the_best_is_no_gain() -> None:
    (gain,) = found(study_of(losses(1.0, 3.0, 1.5, 4.0, 5.0)), 'gain')
    assert gain.is_warning and 'No gain' in gain.message


def test_any_completed_trial_can_be_the_baseline() -> None:
    study = study_of(losses(1.0, 3.0, 1.5, 4.0, 5.0))
    (gain,) = found(study, 'gain', baseline=4)
    assert gain.value == pytest.approx(0.75) and 'trial 4' in gain.message
    with pytest.raises(UserError, match='trial 6 is no baseline'):
        checks(study, baseline=6)


@pytest.mark.parametrize(('spread', 'is_warning'), [(3.0, True), (0.01, False)])
def test_a_gain_within_the_noise_is_none(spread: float, is_warning: bool) -> None:
    means = (5.0, 4.8, 4.9, 5.1, 4.5)
    values = [mean + sign * spread for mean in means for sign in (-1, 1)]
    (gain,) = found(study_of(losses(*values), replicates=2), 'gain')
    assert gain.is_warning == is_warning
    assert ('noise may explain' in gain.message) == is_warning


def test_each_objective_has_its_gain() -> None:
    goals = Objectives([MetricReward('minimize', 'loss'), MetricReward('maximize', 'hits')])
    rows = [(2.0, 9.0), (1.0, 3.0), (3.0, 4.0), (4.0, 5.0), (5.0, 1.0)]
    study = study_of(({'loss': loss, 'hits': hits} for loss, hits in rows), objective=goals)
    assert [(each.name, each.is_warning) for each in found(study, 'gain')] == [
        ('loss', False), ('hits', True)
    ]  # fmt: skip


# --- Regressions ---


@pytest.mark.parametrize(
    ('limit', 'is_warning'),
    [
        (Limit('delay', at_most=100.0), True),
        (Limit('delay', at_least=0.0), False),
        (Limit('delay', at_least=0.0, at_most=100.0), False),
        (Limit('other', at_most=1.0), False),
    ],
)
def test_a_limited_metric_that_got_worse_is_a_regression(limit: Limit, is_warning: bool) -> None:
    told = [{'loss': 2.0, 'delay': 10.0}, {'loss': 1.0, 'delay': 12.0}]
    regressions = found(study_of(told, limits=[limit]), 'regression')
    assert [each.name for each in regressions] == ['delay'] * is_warning
    if is_warning:
        assert regressions[0].value == pytest.approx(0.2)
        assert '12 after 10' in regressions[0].message


@pytest.mark.parametrize(('params', 'is_warning'), [(120.0, True), (104.0, False), (80.0, False)])
def test_costs_regress_without_a_limit(params: float, is_warning: bool) -> None:
    told = [{'loss': 2.0, 'num_params': 100.0}, {'loss': 1.0, 'num_params': params}]
    assert bool(found(study_of(told), 'regression')) == is_warning


def test_the_metric_of_the_reward_is_no_regression() -> None:
    told = [{'num_params': 100.0}, {'num_params': 200.0}]
    goal = MetricReward('maximize', 'num_params')
    assert found(study_of(told, objective=goal), 'regression') == []


@pytest.mark.parametrize(('spread', 'is_warning'), [(40.0, False), (0.1, True)])
def test_regressions_are_compared_with_the_noise(spread: float, is_warning: bool) -> None:
    told = [
        {'loss': loss, 'delay': delay + sign * spread}
        for loss, delay in ((3.0, 50.0), (2.0, 60.0), (1.0, 70.0))
        for sign in (-1, 1)
    ]
    study = study_of(told, replicates=2, limits=[Limit('delay', at_most=1000.0)])
    assert bool(found(study, 'regression')) == is_warning


# --- Limits ---


@pytest.mark.parametrize(('broken', 'is_warning'), [(7, True), (4, False), (0, False)])
def test_each_limit_has_the_share_of_trials_that_keep_to_it(broken: int, is_warning: bool) -> None:
    told = [{'loss': 1.0, 'delay': 9.0 if i < broken else 1.0, 'size': 1.0} for i in range(8)]
    limits = [Limit('delay', at_most=5.0), Limit('size', at_most=5.0)]
    delay, size = found(study_of(told, limits=limits), 'limit')
    assert (delay.value, delay.is_warning) == (1 - broken / 8, is_warning)
    assert delay.message.startswith(f'{8 - broken} of 8 trials keep to delay ≤ 5')
    assert (size.value, size.is_warning) == (1.0, False)


def test_trials_that_end_before_a_measurement_count_for_their_limit() -> None:
    search = Search(
        MetricReward('minimize', 'loss'),
        Budget(6),
        algorithm=RandomSearch(),
        limits=[Limit('num_params', at_most=10.0), Limit('delay', at_most=5.0)],
    )
    with open_study(None, SPACE, search=search) as study:
        for _ in range(5):
            trial = study.ask()
            assert trial is not None
            trial.fail('num_params is 20, above its limit of 10')
        trial = study.ask()
        assert trial is not None
        trial.fail('out of memory')
        (limit,) = found(study, 'limit')
    assert (limit.name, limit.value, limit.is_warning) == ('num_params ≤ 10', 0.0, True)


def test_few_trials_beyond_a_limit_are_no_warning() -> None:
    told = [{'loss': 1.0, 'delay': 9.0}]
    (limit,) = found(study_of(told, limits=[Limit('delay', at_most=5.0)]), 'limit')
    assert limit.value == 0.0 and not limit.is_warning


# --- Reports ---


def test_show_and_the_report_have_the_checks() -> None:
    study = study_of(losses(1.0, 3.0, 1.5, 4.0, 5.0))
    page = summary(study)
    assert [each['kind'] for each in page.data['checks']] == ['gain']
    assert 'No gain' in to_text(page.tables[-1])
    parts = {each.key: each for each in study_report.sections(study, 'here', '')}
    assert parts['checks'].data == page.data['checks']
    assert 'warning' in to_text(parts['checks'].tables[0])


def test_an_empty_study_has_no_checks() -> None:
    study = open_study(None, SPACE, search=Search(None, Budget(1)))
    assert checks(study) == [] and summary(study).data['checks'] == []
