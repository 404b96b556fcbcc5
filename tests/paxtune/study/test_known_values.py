"""The known values of a search: whose value counts, in which terms, and that a study keeps them."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget, MetricReward, Search, tune
from paxtune.algorithms import RandomSearch
from paxtune.search_space.decisions import Decisions, all_slots
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_plan, open_study
from paxtune.study.known_values import DEFAULT, GIVEN, OWN, in_words, interval, known_values
from paxtune.study.plan import SearchPlan
from paxtune.study.record import KnownDecision
from paxtune.study.record_checks import DamagedRecordError, check_study
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv
from trainer.symbolic.usual_values import UsualValue, choice

LOSS = MetricReward('minimize', 'loss')


class Glass(Component):
    tint: str = 'clear'


class Lamp(Component):
    watts: float = 60.0
    hours: int = 1000
    volts: float = 230.0
    glass: Any = 'clear'

    usual = {
        'watts': UsualValue(40.0, 20.0, 80.0, 'Edison 1880'),
        'hours': UsualValue(500, 250, 1000, 'Swan 1881'),
        'glass': choice('frosted', 'Pipkin 1925'),
    }


def known(value: Any, base: Any = None, **search: Any) -> dict[str, KnownDecision]:
    return known_values(Space(value), Search(LOSS, Budget(9), **search), base)


def watts(low: float, high: float, scale: str = 'log') -> Any:
    return Lamp(watts=pg.floatv(low, high, scale))


def test_a_usual_value_has_a_deviation_on_the_scale_of_its_range() -> None:
    assert known(watts(10.0, 160.0)) == {'watts': KnownDecision(40.0, 0.25, 'Edison 1880')}
    linear = known(watts(0.0, 200.0, 'linear'))['watts']
    assert (linear.value, linear.deviation) == pytest.approx((40.0, 0.15))
    reversed_ = known(watts(10.0, 160.0, 'rlog'))['watts']
    assert reversed_.value == 40.0 and 0.02 < reversed_.deviation < 0.25


@pytest.mark.parametrize(
    ('low', 'high', 'value', 'deviation'),
    [
        (50.0, 200.0, 50.0, math.log(80 / 50) / math.log(4)),
        (1.0, 30.0, 30.0, math.log(30 / 20) / math.log(30)),
        (30.0, 60.0, 40.0, 0.5),
        (1.0, 40.0, 40.0, math.log(2) / math.log(40)),
    ],
)
def test_a_usual_value_outside_a_range_stands_at_its_nearer_end(
    low: float, high: float, value: float, deviation: float
) -> None:
    found = known(watts(low, high))['watts']
    assert (found.value, found.deviation) == pytest.approx((value, deviation))


def test_a_range_without_usual_values_means_something_else() -> None:
    assert known(watts(100.0, 200.0)) == {}
    assert known(watts(1.0, 10.0)) == {}


def test_integers_and_choices_have_usual_values() -> None:
    made = known(
        Lamp(
            watts=pg.oneof([5.0, 10.0, 50.0, 100.0]),
            hours=intv(1, 4000),
            glass=pg.oneof(['clear', 'frosted', Glass(pg.oneof(['red', 'blue']))]),
        )
    )
    assert {id_: each.value for id_, each in made.items()} == {'watts': 2, 'hours': 500, 'glass': 1}
    assert isinstance(made['hours'].value, int)
    assert made['watts'].deviation == pytest.approx(0.25, abs=0.1)
    assert made['glass'].deviation == pytest.approx(0.32)
    assert known(Lamp(glass=pg.oneof(['red', 'blue']))) == {}


def test_neighbours_of_a_usual_value_may_come() -> None:
    # The usual interval ends at the first of these numbers.
    watts_ = pg.oneof([80.0, 160.0, 320.0])
    made = known(Lamp(watts=watts_, hours=intv(999, 1003), volts=pg.floatv(1.0, 2.0)))
    assert made['watts'].value == 0
    assert made['watts'].deviation == pytest.approx(0.5 / 3)
    assert made['hours'].value == 999
    assert made['hours'].deviation >= 0.5 / 5


def test_each_candidate_has_its_own_usual_values() -> None:
    value = pg.Dict(
        lamp=pg.oneof([watts(10.0, 160.0), None, Lamp(hours=intv(1, 4000))]),
        two=pg.manyof(2, [watts(10.0, 160.0), 'none', 'some']),
    )
    made = known(value)
    assert [*made] == [
        'lamp[=0/3].watts', 'lamp[=2/3].hours', 'two[0][=0/3].watts', 'two[1][=0/3].watts',
    ]  # fmt: skip


def test_the_value_of_the_experiment_counts_before_the_usual_one() -> None:
    opened = watts(10.0, 160.0)
    assert known(opened, Lamp(watts=20.0)) == {'watts': KnownDecision(20.0, 0.25, OWN)}
    # The experiment states no other value than the default of the class.
    assert known(opened, Lamp())['watts'].reason == 'Edison 1880'
    assert known(opened, Lamp(watts=5.0))['watts'].reason == 'Edison 1880', 'outside of the range'
    volts = Lamp(volts=pg.floatv(100.0, 300.0))
    assert known(volts, Lamp()) == {'volts': KnownDecision(230.0, 0.2, DEFAULT)}


def test_the_value_of_the_user_counts_before_all_others() -> None:
    opened, own = watts(10.0, 160.0), Lamp(watts=20.0)
    assert known(opened, own, prior={'watts': 80.0}) == {'watts': KnownDecision(80.0, 0.2, GIVEN)}
    interval_ = known(opened, own, prior={'watts': [20.0, 80.0]})['watts']
    assert (interval_.value, interval_.deviation) == pytest.approx((40.0, 0.25))
    assert known(opened, own, prior=None) == {}
    nested = pg.Dict(lamp=pg.oneof([None, opened.clone()]))
    assert known(nested, prior={'lamp.watts': 80.0})['lamp[=1/2].watts'].value == 80.0


@pytest.mark.parametrize(
    ('prior', 'message'),
    [
        ({'wats': 1.0}, r'^search\.prior: wats is no decision'),
        ({'watts': 1.0}, r'^search\.prior: watts must be a number from 10\.0 to 160\.0: 1\.0'),
        ({'watts': math.nan}, r'watts must be .*: nan'),
        ({'watts': 'many'}, r"watts must be .*: 'many'"),
        ({'watts': True}, r'watts must be .*: True'),
        ({'watts': [80.0, 20.0]}, r'watts must be .*an interval \[low, high\]'),
        ({'watts': [1.0, 2.0]}, r'watts must be .*an interval \[low, high\]'),
        ({'watts': [20.0, 30.0, 40.0]}, r'watts must be .*an interval \[low, high\]'),
        ({'hours': 2.5}, r'hours must be an integer from 1 to 9: 2\.5'),
        ({'glass': ['clear', 'red']}, r'glass must be one of clear, red: '),
    ],
)
def test_values_of_users_that_do_not_fit_are_refused(
    prior: Mapping[str, Any], message: str
) -> None:
    value = Lamp(pg.floatv(10.0, 160.0), intv(1, 9), glass=pg.oneof(['clear', 'red']))
    with pytest.raises(UserError, match=message):
        SearchPlan.compile(value, Search(LOSS, Budget(9), prior=dict(prior)))


def test_an_algorithm_without_use_for_them_gets_no_known_values() -> None:
    opened = watts(10.0, 160.0)
    assert known(opened, algorithm=RandomSearch()) == {}


def test_known_values_are_printed_with_their_reasons() -> None:
    value = Lamp(pg.floatv(10.0, 160.0, 'log'), intv(1, 4000))
    found, space = known(value, prior={'watts': [30.0, 60.0]}), Space(value)
    assert in_words(space, found) == 'watts=42.4 (given); hours=500 (Swan 1881)'
    low, high = interval(all_slots(space.spec)[0], found['watts']) or (0.0, 0.0)
    assert (low, high) == pytest.approx((30.0, 60.0))


def _suggested(directory: Path | None, plan: SearchPlan, count: int) -> list[Decisions]:
    made = []
    with open_plan(directory, plan) as study:
        for _ in range(count):
            trial = study.ask()
            assert trial is not None
            made.append(trial.view.by_id)
            study.tell(trial, {'loss': abs(trial.view.by_id['watts'] - 30.0)})
    return made


def _plan(**search: Any) -> SearchPlan:
    return SearchPlan.compile(watts(10.0, 160.0), Search(LOSS, Budget(12), **search))


def test_a_resumed_study_keeps_its_known_values_though_the_code_has_others(tmp_path: Path) -> None:
    whole = _suggested(None, _plan(), 12)
    begun = _suggested(tmp_path, _plan(), 6)
    other = {'watts': KnownDecision(150.0, 0.02, 'Coolidge 1910')}
    later = _suggested(tmp_path, dataclasses.replace(_plan(), known=other), 6)
    assert begun + later == whole
    with load_study(tmp_path) as study:
        assert study.record.known == {'watts': KnownDecision(40.0, 0.25, 'Edison 1880')}


def test_a_resumed_study_refuses_another_prior(tmp_path: Path) -> None:
    _suggested(tmp_path, _plan(), 1)
    with pytest.raises(UserError, match=r'(?s)another experiment.*prior'):
        open_plan(tmp_path, _plan(prior={'watts': 80.0}))


def test_a_study_that_recorded_none_goes_on_with_the_values_of_the_user_alone(
    tmp_path: Path,
) -> None:
    plan = _plan(prior={'watts': 80.0})
    _suggested(tmp_path, plan, 1)
    with open_plan(tmp_path, plan) as study:
        study.store.update_study(lambda record: dataclasses.replace(record, known=None))
    with open_plan(tmp_path, plan) as study:
        assert study.suggester.context(2).prior['watts'].value == 80.0


@pytest.mark.parametrize(
    'wrong',
    [
        {'volts': KnownDecision(1.0, 0.2, '')},
        {'watts': KnownDecision(1.0, 0.2, '')},
        {'watts': KnownDecision(math.nan, 0.2, '')},
        {'watts': KnownDecision(40.0, math.nan, '')},
        {'watts': KnownDecision(40.0, -1.0, '')},
    ],
)
def test_known_values_of_another_program_must_be_legal(wrong: dict[str, KnownDecision]) -> None:
    record = _plan().record(False, [])
    check_study(record)
    with pytest.raises(DamagedRecordError, match='known value'):
        check_study(dataclasses.replace(record, known=wrong))


def _function(**space: Any) -> tuple[Callable[..., float], dict[str, Any]]:
    return lambda **values: sum(map(float, values.values())), space


def _known_of(**space: Any) -> dict[str, Any]:
    function, values = _function(**space)
    study = tune(function, space=values, num_trials=1, objective='minimize', quiet=True)
    return {id_: each.value for id_, each in (study.record.known or {}).items()}


def test_arguments_have_usual_values_by_their_names() -> None:
    assert _known_of(
        learning_rate=pg.floatv(1e-5, 1.0, 'log'),
        Beta1=pg.floatv(0.5, 0.99),
        dropout=pg.floatv(0.0, 0.5),
        size=pg.floatv(0.0, 1.0),
    ) == {'learning_rate': 1e-3, 'Beta1': 0.9, 'dropout': 0.1}


def test_the_other_arguments_tell_which_learning_rate_is_meant() -> None:
    rate = pg.floatv(1e-5, 1.0, 'log')
    sgd = _known_of(lr=rate, momentum=pg.floatv(0.0, 0.99), wd=pg.floatv(1e-6, 1e-2, 'log'))
    assert sgd == {'lr': 0.1, 'momentum': 0.9, 'wd': 1e-4}
    boosting = _known_of(learning_rate=rate, n_estimators=intv(10, 1000), max_depth=intv(1, 12))
    assert boosting == {'learning_rate': 0.1, 'max_depth': 6}


def test_a_search_of_a_function_prints_its_known_values_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def search(num_trials: int, **options: Any) -> str:
        def loss(lr: float) -> float:
            return lr

        space = {'lr': pg.floatv(1e-5, 1.0, 'log')}
        tune(loss, space=space, num_trials=num_trials, objective='minimize', **options)
        return capsys.readouterr().err

    begun = search(1, job_log_dir=tmp_path)
    assert begun.startswith('Known values: lr=0.001 (Kingma & Ba 2015')
    assert 'prior=None searches without them' in begun
    assert 'Known values' not in search(2, job_log_dir=tmp_path)
    assert 'Known values' not in search(1, prior=None)
    assert 'lr=0.0316 (given)' in search(1, prior={'lr': (1e-2, 1e-1)})
    assert not search(1, quiet=True)


def test_a_space_that_no_function_takes_has_no_values_by_name() -> None:
    space = pg.Dict(lr=pg.floatv(1e-5, 1.0, 'log'))
    with open_study(None, space, search=Search(LOSS, Budget(2))) as study:
        assert study.record.known == {}
