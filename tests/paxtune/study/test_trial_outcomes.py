"""Ends of trials: signals, errors, limits, constraints. No trainer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.config.budget import Budget
from paxtune.config.error_patterns import ErrorPattern
from paxtune.config.faults import Faults
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.trial_errors import BadRewardError, StudyStoppedError
from paxtune.running.tuner import Tuner
from paxtune.search_space.constraints import Requires
from paxtune.storage.open_study import open_study
from tests.factories.function_studies import OBJECTIVE, SPACE, run, search, two
from tests.factories.studies import states
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import UserError

AMBIGUOUS = MetricReward('minimize', Metric.eval('loss'))


def test_a_skipped_trial_is_infeasible_with_its_reason() -> None:
    def skip(values: Any) -> None:
        raise SkipTrial('too wide for the data')

    study = run(skip)
    assert states(study) == ['INFEASIBLE'] * 4
    assert {trial.reason for trial in study.trials} == {'too wide for the data'}
    assert not any(trial.is_failed for trial in study.trials)


def measuring(signal: Callable[[], Exception]) -> Callable[[Any], Iterator[dict[str, float]]]:
    def function(values: Any) -> Iterator[dict[str, float]]:
        yield {'loss': 3.0, 'other': 1.0}
        raise signal()

    return function


@pytest.mark.pax('treats_early_stopped_trials_as_done')
def test_a_stopped_trial_keeps_its_last_measurement_and_is_never_the_best() -> None:
    study = run(measuring(lambda: StopTrial('good enough')))
    trial = study.trials[0]
    assert (trial.state, trial.reward, trial.stop_reason) == ('COMPLETED', 3.0, 'good enough')
    assert study.best is None


def test_a_stop_may_replace_the_reward() -> None:
    trial = run(measuring(lambda: StopTrial('by hand', reward=0.5))).best
    assert trial is not None
    assert (trial.reward, trial.reason, trial.stop_reason) == (0.5, 'by hand', None)
    assert trial.metrics == {'loss': 3.0, 'other': 1.0}


def test_a_stop_may_replace_metrics_and_the_reward_is_made_again() -> None:
    trial = run(measuring(lambda: StopTrial('by hand', metrics={'loss': 0.25}))).best
    assert trial is not None
    assert trial.reward == 0.25
    assert trial.metrics == {'loss': 0.25, 'other': 1.0}


def test_a_stop_before_anything_was_measured_is_infeasible() -> None:
    def stop(values: Any) -> None:
        raise StopTrial('no time')

    trial = run(stop).trials[0]
    assert trial.reason == 'no time (before a reward was measured)'


class RaisingReward(MetricReward):
    """A reward that ends a trial itself."""

    def compute(self, metrics: Any) -> float:
        raise StopTrial('the reward says so', reward=1.5)


@pytest.mark.pax('PolicyError')
def test_signals_may_come_from_the_reward() -> None:
    study = run(lambda values: {'loss': 1.0}, objective=RaisingReward('minimize', 'loss'))
    assert [trial.reward for trial in study.trials] == [1.5] * 4


def test_a_replaced_reward_that_is_not_finite_is_infeasible() -> None:
    study = run(measuring(lambda: StopTrial('by hand', reward=float('nan'))))
    assert states(study) == ['INFEASIBLE'] * 4


def failing(values: Any) -> float:
    if values.x % 2:
        raise KeyError(f'odd: {values.x}')
    return float(values.x)


@pytest.mark.pax(5, 'Any other exception')
def test_by_default_every_error_is_its_trials_own() -> None:
    study = run(failing, objective=OBJECTIVE, budget=Budget(6))
    assert sorted(states(study)) == ['COMPLETED'] * 3 + ['INFEASIBLE'] * 3
    failed = [trial for trial in study.trials if trial.is_failed]
    assert len(failed) == 3
    assert all('KeyError' in str(trial.reason) for trial in failed)


def test_an_error_that_stops_the_study_leaves_its_trial_to_be_resumed(tmp_path: Path) -> None:
    stop = [ErrorPattern(type='LookupError', message='odd')]
    fields = {
        'objective': OBJECTIVE,
        'budget': Budget(6),
        'faults': Faults(errors_to_stop_study=stop),
    }
    with open_study(tmp_path, SPACE, search=search(**fields)) as study:
        with pytest.raises(StudyStoppedError, match=r"trial \d raised KeyError: 'odd"):
            Tuner(study, FunctionRunner(failing)).run()
        assert states(study)[-1] == 'ACTIVE'
        Tuner(study, FunctionRunner(lambda values: 0.0)).run()
        assert states(study) == ['COMPLETED'] * 6


@pytest.mark.pax('`errors_to_skip`')
def test_only_errors_to_skip_are_skipped() -> None:
    skip = [ErrorPattern(type='KeyError')]
    study = run(failing, objective=OBJECTIVE, budget=Budget(6), faults=Faults(errors_to_skip=skip))
    assert states(study).count('INFEASIBLE') == 3
    with pytest.raises(StudyStoppedError):
        run(failing, objective=OBJECTIVE, budget=Budget(6), faults=Faults(errors_to_skip=[]))


def test_signals_and_rewards_that_are_not_finite_are_no_errors() -> None:
    study = run(
        measuring(lambda: SkipTrial('no')), faults=Faults(errors_to_skip=[], max_failures=0)
    )
    assert states(study) == ['INFEASIBLE'] * 4
    study = run(
        lambda values: {'loss': float('inf')}, faults=Faults(errors_to_skip=[], max_failures=0)
    )
    assert states(study) == ['INFEASIBLE'] * 4


def test_too_many_failures_stop_the_study() -> None:
    with pytest.raises(StudyStoppedError, match='2 trials have failed'):
        run(failing, objective=OBJECTIVE, budget=Budget(6), faults=Faults(max_failures=1))


def test_a_metric_that_is_never_measured_is_the_users_error() -> None:
    with pytest.raises(BadRewardError, match=r"search\.objective\.metric: 'loss' is not measured"):
        run(lambda values: {'accuracy': 1.0})


def test_a_reward_that_cannot_be_made_is_the_users_error_and_no_trial_is_lost() -> None:
    study = open_study(None, SPACE, search=search(objective=AMBIGUOUS))
    with pytest.raises(BadRewardError, match='may be a/loss, b/loss'):
        Tuner(study, FunctionRunner(lambda v: {'a/loss': 1.0, 'b/loss': 2.0})).run()
    assert states(study) == ['ACTIVE']


def test_tell_takes_a_number_and_ends_trials_that_are_not_finite() -> None:
    with open_study(None, SPACE, search=search()) as study:
        for told, state in ((1.5, 'COMPLETED'), (float('nan'), 'INFEASIBLE')):
            trial = study.ask()
            assert trial is not None
            study.tell(trial, told)
            assert study.trials[-1].state == state
        assert study.best is not None
        assert study.best.reward == 1.5


def test_a_trial_beyond_a_limit_is_infeasible_and_no_bad_reward() -> None:
    limits = [Limit(metric='latency', at_most=3.0)]
    study = run(lambda v: {'loss': 1.0, 'latency': v.x}, limits=limits, budget=Budget(6))
    beyond = [trial for trial in study.trials if trial.state == 'INFEASIBLE']
    assert sorted(trial.materialize().x for trial in beyond) == [4, 5]
    assert all('latency is' in str(trial.reason) for trial in beyond)
    assert all(trial.reward is None and not trial.is_failed for trial in beyond)


@pytest.mark.parametrize('way', ['tell', 'reward', 'metrics', 'stop'])
def test_a_limit_holds_however_a_trial_ends(way: str) -> None:
    study = open_study(None, SPACE, search=search(limits=[Limit(metric='cost', at_most=1.0)]))
    trial = study.ask()
    assert trial is not None
    trial.report(1, {'loss': 0.1, 'cost': 5.0})
    if way == 'tell':
        study.tell(trial)
    elif way == 'stop':
        trial.stop('by hand')
    else:
        given: dict[str, Any] = {'reward': 0.1} if way == 'reward' else {'metrics': {'loss': 0.1}}
        trial.conclude('by hand', **given)
    (ended,) = study.trials
    assert (ended.state, ended.rewards) == ('INFEASIBLE', ())
    assert str(ended.reason).startswith('cost is 5')
    assert study.best is None


def test_a_metric_with_a_limit_that_is_not_finite_is_beyond_it() -> None:
    limits = [Limit(metric='cost', at_most=1.0)]
    study = run(lambda values: {'loss': 1.0, 'cost': float('nan')}, limits=limits, budget=Budget(1))
    assert states(study) == ['INFEASIBLE']


def test_a_finite_space_in_which_nothing_is_feasible_is_an_error() -> None:
    never = [Requires('x > 9', 'x is too small')]
    with pytest.raises(UserError, match='nothing in the search space is feasible: x is too small'):
        run(two, constraints=never)


def test_a_constraint_without_a_value_is_reported_or_forbids() -> None:
    with pytest.raises(UserError, match='y does not exist'):
        run(two, constraints=[Requires('y > 9', 'never')])
    space = pg.Dict(a=pg.oneof([pg.Dict(k=1), pg.Dict(k=2), pg.Dict(z=1)]))
    bound = search(constraints=[Requires('a.k < 2', 'k is too large')], budget=Budget(None))
    with open_study(None, space, search=bound) as study:
        Tuner(study, FunctionRunner(two)).run()
        assert [trial.materialize().a for trial in study.trials] == [{'k': 1}]
