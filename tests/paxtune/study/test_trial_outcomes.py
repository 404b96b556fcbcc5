"""Ends of trials and studies: signals, errors, limits, budgets, requests. No trainer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.error_patterns import ErrorPattern
from paxtune.config.faults import Faults
from paxtune.config.search import Search
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward
from paxtune.running.callbacks import Callback
from paxtune.running.runners import FunctionRunner
from paxtune.running.tuner import BadRewardError, Paused, StudyStoppedError, Tuner
from paxtune.schedulers import MedianStopping
from paxtune.search_space.constraints import Requires
from paxtune.storage.open_study import load_study, open_study
from paxtune.study import stop_requests
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import UserError

LOSS = MetricReward('minimize', 'loss')
AMBIGUOUS = MetricReward('minimize', Metric.eval('loss'))
SPACE = pg.Dict(x=pg.oneof([0, 1, 2, 3, 4, 5]))


def search(**fields: Any) -> Search:
    return Search(**({'objective': LOSS, 'budget': Budget(4)} | fields))


def run(function: Callable[..., Any], callbacks: Any = (), **fields: Any) -> Study:
    study = open_study(None, SPACE, search=search(**fields))
    Tuner(study, FunctionRunner(function), callbacks).run()
    return study


def states(study: Study) -> list[str]:
    return [trial.state for trial in study.trials]


# --- Signals ---


def test_a_skipped_trial_is_infeasible_with_its_reason() -> None:
    def skip(values: Any) -> None:
        raise SkipTrial('too wide for the data')

    study = run(skip)
    assert states(study) == ['INFEASIBLE'] * 4
    assert {trial.infeasible_reason for trial in study.trials} == {'too wide for the data'}
    assert not any(trial.is_failed for trial in study.trials)


def measuring(signal: Callable[[], Exception]) -> Callable[[Any], Iterator[dict[str, float]]]:
    def function(values: Any) -> Iterator[dict[str, float]]:
        yield {'loss': 3.0, 'other': 1.0}
        raise signal()

    return function


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
    assert trial.infeasible_reason == 'no time (before a reward was measured)'


class RaisingReward(MetricReward):
    """A reward that ends a trial itself."""

    def compute(self, metrics: Any) -> float:
        raise StopTrial('the reward says so', reward=1.5)


def test_signals_may_come_from_the_reward() -> None:
    study = run(lambda values: {'loss': 1.0}, objective=RaisingReward('minimize', 'loss'))
    assert [trial.reward for trial in study.trials] == [1.5] * 4


def test_a_replaced_reward_that_is_not_finite_is_infeasible() -> None:
    study = run(measuring(lambda: StopTrial('by hand', reward=float('nan'))))
    assert states(study) == ['INFEASIBLE'] * 4


# --- Errors ---


def failing(values: Any) -> float:
    if values.x % 2:
        raise KeyError(f'odd: {values.x}')
    return float(values.x)


OBJECTIVE = MetricReward('minimize', 'objective')


def test_by_default_every_error_is_its_trials_own() -> None:
    study = run(failing, objective=OBJECTIVE, budget=Budget(6))
    assert sorted(states(study)) == ['COMPLETED'] * 3 + ['INFEASIBLE'] * 3
    failed = [trial for trial in study.trials if trial.is_failed]
    assert len(failed) == 3
    assert all('KeyError' in str(trial.infeasible_reason) for trial in failed)


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
    with pytest.raises(BadRewardError, match=r"search\.objective\.metric: 'loss' was not measured"):
        run(lambda values: {'accuracy': 1.0})


# --- Limits ---


def test_a_trial_beyond_a_limit_is_infeasible_and_no_bad_reward() -> None:
    limits = [Limit(metric='latency', at_most=3.0)]
    study = run(lambda v: {'loss': 1.0, 'latency': v.x}, limits=limits, budget=Budget(6))
    beyond = [trial for trial in study.trials if trial.state == 'INFEASIBLE']
    assert sorted(trial.materialize().x for trial in beyond) == [4, 5]
    assert all('latency is' in str(trial.infeasible_reason) for trial in beyond)
    assert all(trial.reward is None and not trial.is_failed for trial in beyond)


# --- Budgets ---


def test_hours_of_all_trials_together_end_a_study(tmp_path: Path) -> None:
    fields = {'objective': OBJECTIVE, 'budget': Budget(6)}
    short = search(objective=OBJECTIVE, budget=Budget(6, hours=1e-9))
    with open_study(tmp_path, SPACE, search=short) as study:
        Tuner(study, FunctionRunner(lambda values: 1.0)).run()
        assert states(study) == ['COMPLETED']
        assert study.trials[0].seconds > 0
        assert study.done_reason == 'its 1e-09 hours are used up'
        assert study.suggest() is None
    with open_study(tmp_path, SPACE, search=search(**fields)) as study:
        assert not study.is_done
        Tuner(study, FunctionRunner(lambda values: 1.0)).run()
        assert states(study) == ['COMPLETED'] * 6


def test_a_trial_that_is_running_when_the_hours_end_is_not_lost(tmp_path: Path) -> None:
    def slow(values: Any) -> Iterator[dict[str, float]]:
        yield {'loss': 1.0}
        yield {'loss': 0.5}

    with open_study(tmp_path, SPACE, search=search(budget=Budget(4, hours=1e-9))) as study:
        Tuner(study, FunctionRunner(slow)).run()
        assert states(study) == ['ACTIVE']
        assert study.is_done
    with open_study(tmp_path, SPACE, search=search()) as study:
        Tuner(study, FunctionRunner(slow)).run()
        assert [trial.reward for trial in study.trials] == [0.5] * 4


@pytest.mark.parametrize(('goal', 'target'), [('minimize', 2.0), ('maximize', 3.0)])
def test_a_target_reward_ends_a_study(goal: str, target: float) -> None:
    reward = MetricReward(goal, 'objective')
    study = run(lambda v: float(v.x), objective=reward, budget=Budget(6, target_reward=target))
    rewards = [trial.reward or 0.0 for trial in study.trials]
    reached = [r <= target if goal == 'minimize' else r >= target for r in rewards]
    assert reached == [False] * (len(rewards) - 1) + [True]
    assert 'has reached the target reward' in str(study.done_reason)


def test_device_hours_count_devices() -> None:
    class Eight(FunctionRunner):
        num_devices = 8

    study = open_study(None, SPACE, search=search(budget=Budget(4, device_hours=1e9)))
    Tuner(study, Eight(lambda values: {'loss': 1.0})).run()
    assert [trial.record.devices for trial in study.trials] == [8] * 4
    spent = sum(trial.seconds * 8 for trial in study.trials) / 3600 * 0.999
    study.search.rebind({'budget.device_hours': spent})
    study.search.rebind({'budget.trials': 5})
    assert study.done_reason is not None
    assert 'device hours are used up' in study.done_reason


def test_a_space_that_is_searched_whole_needs_no_number() -> None:
    study = run(lambda values: {'loss': 1.0}, budget=Budget(None))
    assert len(study.trials) == 6


# --- Requests from outside ---


class Asking(Callback):
    """Asks for something at the first measurement."""

    def __init__(self, ask: Callable[[Study, Trial], None]) -> None:
        self._ask: Callable[[Study, Trial], None] | None = ask

    def on_measurement(self, study: Study, trial: Trial, measurement: Any) -> None:
        if self._ask is not None:
            self._ask(study, trial)
            self._ask = None


def two(values: Any) -> Iterator[dict[str, float]]:
    yield {'loss': 2.0}
    yield {'loss': 1.0}


def test_a_trial_can_be_asked_to_stop() -> None:
    study = run(
        two, [Asking(lambda study, trial: stop_requests.request_stop(study.store, trial.id))]
    )
    assert [trial.reward for trial in study.trials] == [2.0, 1.0, 1.0, 1.0]
    assert study.trials[0].stop_reason == 'stopped by request'


def test_a_study_can_be_asked_to_pause_and_goes_on_in_the_next_call() -> None:
    study = open_study(None, SPACE, search=search())
    asking = Asking(lambda study, trial: stop_requests.request_pause(study.store))
    with pytest.raises(Paused, match='studies stop'):
        Tuner(study, FunctionRunner(two), [asking]).run()
    assert states(study) == ['ACTIVE']
    Tuner(study, FunctionRunner(two), [asking]).run()
    assert [trial.reward for trial in study.trials] == [1.0] * 4


# --- Callbacks ---


class Heard(Callback):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_study_start(self, study: Study) -> None:
        self.events.append('study')

    def on_trial_start(self, study: Study, trial: Trial) -> None:
        self.events.append(f'start {trial.id}')

    def on_measurement(self, study: Study, trial: Trial, measurement: Any) -> None:
        self.events.append(f'{measurement.step}: {measurement.reward}')

    def on_trial_end(self, study: Study, trial: Trial) -> None:
        self.events.append(trial.state)

    def on_study_end(self, study: Study) -> None:
        self.events.append('end')


def test_callbacks_hear_of_everything_in_order() -> None:
    heard = Heard()
    run(two, [heard], budget=Budget(1))
    assert heard.events == ['study', 'start 1', '1: 2.0', '2: 1.0', 'COMPLETED', 'end']


def test_an_error_of_a_callback_ends_the_search_and_loses_nothing() -> None:
    class Raising(Heard):
        def on_trial_end(self, study: Study, trial: Trial) -> None:
            raise RuntimeError('no network')

    study, heard = open_study(None, SPACE, search=search()), Raising()
    with pytest.raises(RuntimeError, match='no network'):
        Tuner(study, FunctionRunner(two), [heard]).run()
    assert states(study) == ['COMPLETED']
    assert heard.events[-1] == 'end'


@pytest.mark.parametrize('method', ['on_trial_start', 'on_measurement', 'on_trial_end'])
def test_whatever_a_callback_raises_is_not_the_trials(method: str) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError('no network')

    callback = type('Broken', (Callback,), {method: broken})()
    study = open_study(None, SPACE, search=search())
    with pytest.raises(RuntimeError, match='no network'):
        Tuner(study, FunctionRunner(two), [callback]).run()
    assert [trial.is_failed for trial in study.trials] == [False]
    Tuner(study, FunctionRunner(two)).run()
    assert states(study) == ['COMPLETED'] * 4


# --- Functions ---


def test_a_function_is_tuned(tmp_path: Path) -> None:
    study = tune(
        lambda values: abs(values.x - 3),
        space={'x': pg.oneof([1, 2, 3, 4])},
        objective='minimize',
        job_log_dir=tmp_path,
    )
    with study:
        assert study.best is not None
        assert study.best.decisions == {'x': 3}
        assert sorted(trial.reward or 0.0 for trial in study.trials) == [0.0, 1.0, 1.0, 2.0]
    with load_study(tmp_path) as loaded:
        assert loaded.best is not None
        assert loaded.best.reward == 0.0


def test_a_function_may_take_the_trial_and_be_stopped_early() -> None:
    def function(values: Any, trial: Trial) -> Iterator[dict[str, float]]:
        for step in range(1, 4):
            yield {'loss': values.x / step, 'trial': trial.id}

    with tune(
        function,
        space=SPACE,
        num_trials=6,
        objective=LOSS,
        scheduler=MedianStopping(min_trials=2),
    ) as study:
        stopped = [trial for trial in study.trials if trial.stop_reason is not None]
        assert stopped
        assert all(trial.metrics['trial'] == trial.id for trial in study.trials)


def test_a_function_must_return_numbers() -> None:
    study = run(lambda values: 'good')
    assert 'the function must return a number or metrics by name' in str(
        study.trials[0].infeasible_reason
    )


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
    assert str(ended.infeasible_reason).startswith('cost is 5')
    assert study.best is None


def test_a_metric_with_a_limit_that_is_not_finite_is_beyond_it() -> None:
    limits = [Limit(metric='cost', at_most=1.0)]
    study = run(lambda values: {'loss': 1.0, 'cost': float('nan')}, limits=limits, budget=Budget(1))
    assert states(study) == ['INFEASIBLE']


def test_a_reward_that_cannot_be_made_is_the_users_error_and_no_trial_is_lost() -> None:
    study = open_study(None, SPACE, search=search(objective=AMBIGUOUS))
    with pytest.raises(BadRewardError, match='may be a/loss, b/loss'):
        Tuner(study, FunctionRunner(lambda v: {'a/loss': 1.0, 'b/loss': 2.0})).run()
    assert states(study) == ['ACTIVE']


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


def test_tell_takes_a_number_and_ends_trials_that_are_not_finite() -> None:
    with open_study(None, SPACE, search=search()) as study:
        for told, state in ((1.5, 'COMPLETED'), (float('nan'), 'INFEASIBLE')):
            trial = study.ask()
            assert trial is not None
            study.tell(trial, told)
            assert study.trials[-1].state == state
        assert study.best is not None
        assert study.best.reward == 1.5


class Anything(pg.Object):
    """A symbolic class that is no component."""

    x: int


def test_a_study_in_memory_takes_values_of_any_symbolic_class(tmp_path: Path) -> None:
    space = {'f': pg.oneof([Anything(1), Anything(2)])}
    with tune(lambda v: v.f.x, space=space, objective='minimize') as study:
        assert study.best is not None
        assert study.best.reward == 1
    with pytest.raises(UserError, match=r'must derive from trainer\.Component'):
        tune(lambda v: v.f.x, space=space, objective='minimize', job_log_dir=tmp_path / 'study')


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ({'objective': 'min'}, "expected 'minimize', 'maximize' or a reward"),
        ({'space': [pg.oneof([1, 2])]}, 'expected a dict or a symbolic object'),
        ({'budge': 1}, 'Did you mean budget'),
        ({'space': {'x': pg.floatv(0.0, 1.0)}}, 'num_trials'),
        ({'space': None}, 'a function needs one'),
    ],
)
def test_options_that_a_function_cannot_use_are_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    fields: dict[str, Any] = {'space': {'x': pg.oneof([1, 2])}, 'objective': 'minimize'} | given
    with pytest.raises(UserError, match=message):
        tune(lambda values: values.x, job_log_dir=tmp_path / 'study', **fields)
    assert not (tmp_path / 'study').exists()


def test_a_study_that_is_read_cannot_be_written(tmp_path: Path) -> None:
    tune(two, space=SPACE, objective=LOSS, num_trials=1, job_log_dir=tmp_path).close()
    with load_study(tmp_path) as study, pytest.raises(UserError, match='read_only=False'):
        study.add({'x': 1})
