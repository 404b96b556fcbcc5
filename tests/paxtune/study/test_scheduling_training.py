"""Schedulers that pause, promote and fork trials that train."""

import json
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from paxtune import search, train, tune
from paxtune.schedulers import PopulationBasedTraining, PromotingAsha
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from tests.factories.tunables import Rates
from trainer.checkpoints.checkpoint import saved_checkpoints
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.throughput import THROUGHPUT_METRICS

MODULE = 'tests.paxtune.study.test_scheduling_training'
"""Its experiments are named by it."""


def Promoted() -> Any:
    """Four trials of six steps, evaluated every two; one or two of them come to their end."""
    made = Rates()
    made.rebind({'search.scheduler': PromotingAsha(min_resource=2, reduction_factor=2)})
    return made


def Population() -> Any:
    """Three trials of six steps, and two that take the place of others."""
    made = Rates()
    made.rebind(
        {
            'search.scheduler': PopulationBasedTraining(population_size=3, interval=2),
            'search.budget.trials': 5,
        }
    )
    return made


def searched(directory: Path, exp: str, *flags: str) -> list[Trial]:
    args = [f'--exp={MODULE}.{exp}', f'--job_log_dir={directory}', *flags]
    assert search.main(args) == 0
    with load_study(directory) as study:
        return study.trials


def exact(metrics: Any) -> dict[str, float]:
    """Metrics without what measures the machine."""
    return {name: value for name, value in metrics.items() if name not in THROUGHPUT_METRICS}


@pytest.mark.sentinel
def test_a_promoted_trial_is_bitwise_one_that_was_never_interrupted(tmp_path: Path) -> None:
    trials = searched(tmp_path / 'study', 'Promoted')
    assert {trial.status for trial in trials} == {'completed', 'stopped'}
    promoted = [trial for trial in trials if trial.status == 'completed']
    assert all(trial.record.pauses == (2, 4) for trial in promoted)
    for trial in promoted:
        alone = run(trial.materialize(), tmp_path / str(trial.id))
        whole = {each.step: exact(each.metrics) for each in alone}
        assert {each.step: exact(each.metrics) for each in trial.measurements} == whole


def test_the_record_of_a_trial_lists_its_pauses(tmp_path: Path) -> None:
    trials = searched(tmp_path, 'Promoted')
    with load_study(tmp_path) as study:
        for trial in trials:
            record = json.loads(
                (trial_directory(study.directory, trial) / 'trial.json').read_text()
            )
            assert record['state'] == trial.status
            assert record['pauses'] == list(trial.record.pauses)
            assert record['stopped'] == (trial.status == 'stopped')
            events = [event['event'] for event in record['history']]
            assert events.count('paused') == len(trial.record.pauses)
            assert events.count('claimed') == events.count('promoted') + 1


def test_a_fork_goes_on_from_the_state_of_its_parent(tmp_path: Path) -> None:
    trials = searched(tmp_path, 'Population')
    forks = [trial for trial in trials if trial.lineage.forked_from is not None]
    assert len(forks) == 2
    with load_study(tmp_path) as study:
        for fork in forks:
            parent, step = fork.lineage.forked_from or (0, 0)
            directory = trial_directory(study.directory, fork)
            record = json.loads((directory / 'trial.json').read_text())
            assert record['weights_from'] == [parent, step]
            assert record['resumed_from'][0] == step
            assert (directory / 'forked_from.json').exists()
            # What the parent was measured at there, its fork is, too: the same weights.
            measured = {each.step: each for each in study.trial(parent).measurements}
            assert fork.measurements[0].step == step
            assert (
                fork.measurements[0].metrics['eval/log_pplx']
                == measured[step].metrics['eval/log_pplx']
            )
            assert fork.measurements[0].metrics['spent_tokens'] > 0


@pytest.mark.sentinel
def test_a_fork_trains_again_alone_to_the_last_bit(tmp_path: Path) -> None:
    trials = searched(tmp_path / 'study', 'Population')
    fork = next(
        trial for trial in trials[::-1] if trial.lineage.forked_from and not trial.stop_reason
    )
    flags = [f'--study_dir={tmp_path / "study"}', f'--exp={MODULE}.Population']
    target = tmp_path / 'alone'
    for _ in range(2):  # The second time there is nothing left to do.
        assert train.main([*flags, f'--trial={fork.id}', f'--job_log_dir={target}']) == 0
    assert read_metrics(target / 'metrics.jsonl')[-1]['eval/log_pplx'] == fork.reward
    parent, step = fork.lineage.forked_from or (0, 0)
    assert read_metrics(target / f'lineage/{parent}/metrics.jsonl')[-1]['step'] == step


def test_the_parent_checkpoint_of_a_waiting_fork_is_kept(tmp_path: Path) -> None:
    """Its parent saves at every step, and keeps only the last two."""
    flags = ['--set', 'train.checkpoints.every=1', 'train.checkpoints.keep=1']
    trials = searched(tmp_path, 'Population', *flags)
    assert all(trial.status in ('completed', 'stopped') for trial in trials)
    assert any(trial.lineage.forked_from is not None for trial in trials)


def test_seconds_are_a_resource(tmp_path: Path) -> None:
    made = Promoted()
    scheduler = PromotingAsha(
        min_resource=1e-9, max_resource=1e9, unit='seconds', reduction_factor=10**6
    )
    made.rebind({'search.scheduler': scheduler, 'search.budget.trials': 2})
    with tune(made, job_log_dir=tmp_path) as study:
        assert all(trial.record.pauses for trial in study.trials)
        assert any(trial.status == 'completed' for trial in study.trials)


@pytest.mark.parametrize('exp', ['Promoted', 'Population'])
def test_workers_pause_promote_and_fork_likewise(exp: str, tmp_path: Path) -> None:
    trials = searched(tmp_path, exp, '--workers=2')
    assert all(trial.is_terminal for trial in trials)
    assert any(trial.status == 'completed' for trial in trials)
    with load_study(tmp_path) as study:
        for trial in trials:
            if trial.status == 'completed':
                checkpoints = epath.Path(trial_directory(study.directory, trial)) / 'checkpoints'
                assert saved_checkpoints(checkpoints)


pytestmark = pytest.mark.slow
