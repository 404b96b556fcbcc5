"""Budgets and target rewards end studies."""

import dataclasses
import datetime
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.engines.base import Job
from paxtune.engines.threads import Threads
from paxtune.objectives.rewards import MetricReward
from paxtune.running import trial_json
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Tuner
from paxtune.storage.open_study import open_study
from paxtune.study.stopping_criteria import seconds_left, used_up
from paxtune.study.trial import Trial
from tests.factories.function_studies import OBJECTIVE, SPACE, run, search
from tests.factories.studies import ask, states
from trainer.symbolic.errors import UserError

ENDLESS: dict[str, Any] = {
    'space': {'x': pg.floatv(0.0, 1.0)},
    'objective': 'minimize',
    'algorithm': 'random_search',
}


def test_hours_of_all_trials_together_end_a_study(tmp_path: Path) -> None:
    fields = {'objective': OBJECTIVE, 'budget': Budget(6)}
    short = search(objective=OBJECTIVE, budget=Budget(6, hours=1e-9))
    with open_study(tmp_path, SPACE, search=short) as study:
        Tuner(study, FunctionRunner(lambda values: 1.0)).run()
        assert states(study) == ['COMPLETED']
        assert study.trials[0].seconds > 0
        assert study.done_reason == 'its 1e-09 hours are used up'
        assert study.ask() is None
    with open_study(tmp_path, SPACE, search=search(**fields)) as study:
        assert not study.is_done
        Tuner(study, FunctionRunner(lambda values: 1.0)).run()
        assert states(study) == ['COMPLETED'] * 6


def test_a_step_of_the_wall_clock_uses_up_no_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime.datetime):
        steps = 0

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            cls.steps += 1
            return datetime.datetime.now(tz) + datetime.timedelta(hours=10 * cls.steps)

    stepping = types.SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
    monkeypatch.setattr(trial_json, 'datetime', stepping)
    how = search(objective=OBJECTIVE, budget=Budget(3, hours=1.0))
    with open_study(tmp_path, SPACE, search=how) as study:
        Tuner(study, FunctionRunner(lambda values: 1.0)).run()
        assert states(study) == ['COMPLETED'] * 3
        assert Clock.steps >= 3


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


def _endless(values: Any) -> Iterator[float]:
    for _ in range(200):
        time.sleep(0.01)
        yield 1.0


def test_the_hours_of_paused_trials_are_not_left_to_others() -> None:
    with open_study(None, SPACE, search=search(objective=OBJECTIVE, budget=Budget(4, 1))) as study:
        paused = ask(study)
        paused.report(1, {'objective': 1.0})
        paused.set_time(3599.9, 1)
        paused.pause(1, 'the rung')
        Tuner(study, FunctionRunner(_endless)).run()
        assert states(study)[1] == 'ACTIVE' and study.is_done


def test_only_trials_that_run_have_a_share_of_the_hours() -> None:
    budget = Budget(4, hours=1.0)
    with open_study(None, SPACE, search=search(objective=OBJECTIVE, budget=budget)) as study:

        def left() -> float | None:
            return seconds_left(budget, study.trials, 0, 0.0, 1, study.store.is_alive)

        assert left() == 3600.0
        running = study.ask()
        assert running is not None and left() == 1800.0
        running.release('a signal')
        assert left() == 3600.0


def test_trials_that_run_at_the_same_time_share_the_hours() -> None:
    budget = Budget(4, hours=0.6 / 3600)
    with open_study(None, SPACE, search=search(objective=OBJECTIVE, budget=budget)) as study:
        Threads(2).run(Job(study, FunctionRunner(_endless), (), lambda: False))
        assert study.is_done
        assert 0.6 <= sum(trial.seconds for trial in study.trials) < 1.0


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
    assert [trial.record.run_time.devices for trial in study.trials] == [8] * 4
    spent = sum(trial.seconds * 8 for trial in study.trials) / 3600 * 0.999
    study.search.rebind({'budget.device_hours': spent})
    study.search.rebind({'budget.trials': 5})
    assert study.done_reason is not None
    assert 'device hours are used up' in study.done_reason


def test_a_space_that_is_searched_whole_needs_no_number() -> None:
    study = run(lambda values: {'loss': 1.0}, budget=Budget(None))
    assert len(study.trials) == 6


def test_a_timeout_needs_no_number_of_trials(capsys: pytest.CaptureFixture[str]) -> None:
    def slow(x: float) -> float:
        time.sleep(0.02)
        return x

    with tune(slow, timeout=datetime.timedelta(seconds=0.09), **ENDLESS) as study:
        assert 1 <= len(study.trials) <= 5
        assert study.num_trials is None
        assert study.done_reason == 'its 2.5e-05 hours are used up'
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f'{each.id}:' for each in study.trials]
    with tune(slow, timeout=60, num_trials=2, **ENDLESS) as study:
        assert study.search.budget == Budget(2, hours=1 / 60)
        assert study.done_reason == 'it has all of its 2 trials'
    with tune(slow, timeout=36, num_trials=2, engine=Threads(2), **ENDLESS) as study:
        assert study.search.budget.hours == 0.02


@pytest.mark.parametrize('given', [0, -1, '60', True, float('nan'), datetime.timedelta(0)])
def test_a_timeout_is_a_time(given: Any) -> None:
    with pytest.raises(UserError, match=r'^timeout=.*: expected seconds above 0'):
        tune(lambda x: x, timeout=given, **ENDLESS)


def test_a_timeout_is_no_second_number_of_hours() -> None:
    with pytest.raises(UserError, match=r'^timeout=60 and Budget\(hours=3\.0\): give one'):
        tune(lambda x: x, timeout=60, budget=Budget(2, hours=3.0), **ENDLESS)


def test_an_endless_search_is_refused() -> None:
    with pytest.raises(UserError, match=r'num_trials=20, .* or a time: timeout=3600'):
        tune(lambda x: x, **ENDLESS)


def test_seconds_that_are_used_up_are_named_as_seconds() -> None:
    how = search(objective=OBJECTIVE, budget=Budget(9, hours=0.01))
    study = open_study(None, SPACE, search=how)
    ask(study)
    record = study.trials[0].record
    ran = dataclasses.replace(record, run_time=dataclasses.replace(record.run_time, seconds=36.1))
    assert used_up(how.budget, [Trial(ran, study.context)], 1.0, 1) == (
        'its 36 seconds are used up'
    )
