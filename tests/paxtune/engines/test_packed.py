"""Searches whose trials train as one program."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest

import paxtune
from paxtune.engines.packed import Packed
from paxtune.running.json_logs import LOGS
from paxtune.study.trial import Trial
from tests.factories import searches as killed
from tests.factories.searches import run
from tests.factories.tunables import Rates
from tests.servers.processes import command, passed
from trainer.symbolic.errors import UserError

_RATES = '--tune=task.learner.learning_rate=oneof([0.001,0.01,1e38,0.03])'


def by_step(trial: Trial) -> dict[int, float | None]:
    return {each.step: each.reward for each in trial.measurements}


def require_equal(packed: list[Trial], alone: list[Trial]) -> None:
    """Compares decisions, outcomes and rewards of trials that nothing has stopped."""
    assert [each.decisions for each in packed] == [each.decisions for each in alone]
    for one, other in zip(packed, alone, strict=True):
        assert one.status == other.status
        assert by_step(one) == pytest.approx(by_step(other), rel=1e-4)


def test_packed_trials_have_the_rewards_of_the_same_trials_alone(tmp_path: Path) -> None:
    flags = 'Rates', '--num_trials=5', '--seed=4'
    packed = run(tmp_path / 'packed', *flags, '--pack=3')
    require_equal(packed, run(tmp_path / 'alone', *flags))
    assert all(trial.seconds > 0 for trial in packed)


def test_a_trial_that_diverges_is_infeasible_and_harms_no_other(tmp_path: Path) -> None:
    flags = 'Rates', '--num_trials=4', '--algorithm=grid', _RATES
    packed = run(tmp_path / 'packed', *flags, '--pack=4')
    require_equal(packed, run(tmp_path / 'alone', *flags))
    assert [trial.state for trial in packed].count('INFEASIBLE') == 1


@pytest.mark.slow
def test_the_same_packed_search_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    first, second = (
        run(tmp_path / name, 'Kinds', '--num_trials=10', '--pack=3') for name in ('a', 'b')
    )
    assert killed.told(first) == killed.told(second)


@pytest.mark.slow
@pytest.mark.parametrize('scheduler', ['promoting_asha(min_resource=2)', 'asha(min_resource=2)'])
def test_stopped_and_promoted_trials_have_the_rewards_of_the_same_trials_alone(
    tmp_path: Path, scheduler: str
) -> None:
    given = scheduler.replace('promoting_asha', 'PromotingAsha').replace('asha', 'Asha')
    flags = 'Rates', '--num_trials=9', '--seed=1'
    packed = run(tmp_path / 'packed', *flags, f'--scheduler={given}', '--pack=3')
    whole = {trial.id: by_step(trial) for trial in run(tmp_path / 'alone', *flags)}
    assert len({len(trial.measurements) for trial in packed}) > 1
    if 'promoting' in scheduler:
        assert any(trial.record.pauses and trial.state == 'COMPLETED' for trial in packed)
    for trial in packed:
        for step, reward in by_step(trial).items():
            assert reward == pytest.approx(whole[trial.id][step], rel=1e-4)


@pytest.mark.slow
def test_a_killed_packed_search_goes_on_alone(tmp_path: Path) -> None:
    flags = ['--exp=tests.factories.tunables.Rates', '--num_trials=6', '--seed=2']
    flags += [f'--job_log_dir={tmp_path / "packed"}']
    died = command('paxtune.search', *flags, '--pack=3', kill='saved:2')
    assert died.returncode == -signal.SIGKILL, died.stderr
    passed(command('paxtune.search', *flags))
    alone = run(tmp_path / 'alone', 'Rates', *flags[1:3])
    require_equal(killed.trials_of(tmp_path / 'packed'), alone)


@pytest.mark.slow
def test_a_population_is_trained_packed(tmp_path: Path) -> None:
    scheduler = 'PopulationBasedTraining(population_size=3, interval=2)'
    packed = run(tmp_path, 'Rates', '--num_trials=6', '--pack=3', f'--scheduler={scheduler}')
    assert any(trial.lineage.forked_from is not None for trial in packed)
    assert all(math.isfinite(trial.reward) for trial in packed if trial.reward is not None)


@pytest.mark.slow
def test_packed_trials_of_several_workers_have_logs_of_their_own(tmp_path: Path) -> None:
    flags = 'Rates', '--num_trials=8', '--seed=4'
    packed = run(tmp_path / 'packed', *flags, '--workers=2', '--pack=2')
    alone = {str(each.decisions): each for each in run(tmp_path / 'alone', *flags)}
    assert {str(each.decisions) for each in packed} == alone.keys()
    for trial in packed:
        assert by_step(trial) == pytest.approx(by_step(alone[str(trial.decisions)]), rel=1e-4)
    lines = [
        json.loads(line)
        for log in (tmp_path / 'packed' / LOGS).glob('*.jsonl')
        for line in log.read_text().splitlines()
    ]
    begun = [line for line in lines if line['message'].startswith('begins: ')]
    assert sorted(line['trial'] for line in begun) == [trial.id for trial in packed]
    for line in begun:
        assert line['message'] == f'begins: {packed[line["trial"] - 1].decisions}'
        assert line['worker'].endswith(('/0', '/1'))


def test_packed_trials_of_a_scheduler_that_measures_choose_by_themselves(tmp_path: Path) -> None:
    study = paxtune.tune(Rates(), job_log_dir=tmp_path, num_trials=3, seed=4, engine=Packed('auto'))
    with study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 3


def test_a_function_is_not_packed(tmp_path: Path) -> None:
    def objective(x: Any) -> float:
        return float(x)

    with pytest.raises(UserError, match='--pack is for the trials of experiments'):
        paxtune.tune(
            objective, space={'x': paxtune.intv(1, 3)}, objective='minimize', engine=Packed(2)
        )
