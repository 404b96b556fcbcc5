"""Schedulers that pause, promote and fork trials that train."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from paxtune import search, train, tune
from paxtune.schedulers import PopulationBasedTraining, PromotingAsha
from paxtune.storage.open_study import load_study
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import trial_directory
from tests.factories.tunables import Rates
from trainer.checkpoints.checkpoint import saved_checkpoints
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.runtime.throughput import THROUGHPUT_METRICS

pytestmark = pytest.mark.slow

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


def _fixture(exp: str) -> Any:
    """A fixture of the study of an experiment, which is searched once."""

    @pytest.fixture(scope='module')
    def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyView]:
        directory = tmp_path_factory.mktemp(exp)
        searched(directory, exp)
        with load_study(directory) as found:
            yield found

    return study


promoted, population = _fixture('Promoted'), _fixture('Population')


@pytest.mark.sentinel
def test_a_promoted_trial_is_bitwise_one_that_was_never_interrupted(
    promoted: StudyView, tmp_path: Path
) -> None:
    assert {trial.status for trial in promoted.trials} == {'completed', 'stopped'}
    whole = [trial for trial in promoted.trials if trial.status == 'completed']
    assert all(trial.record.pauses == (2, 4) for trial in whole)
    for trial in whole:
        alone = run(trial.materialize(), tmp_path / str(trial.id))
        expected = {each.step: exact(each.metrics) for each in alone}
        assert {each.step: exact(each.metrics) for each in trial.measurements} == expected


def record_of(study: StudyView, trial: Trial) -> dict[str, Any]:
    path = trial_directory(study.directory, trial) / 'trial.json'
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_record_of_a_trial_lists_its_pauses(promoted: StudyView) -> None:
    for trial in promoted.trials:
        record = record_of(promoted, trial)
        assert record['state'] == trial.status
        assert record['pauses'] == list(trial.record.pauses)
        assert record['stopped'] == (trial.status == 'stopped')
        events = [event['event'] for event in record['history']]
        assert events.count('paused') == len(trial.record.pauses)
        assert events.count('claimed') == events.count('promoted') + 1


def test_a_fork_goes_on_from_the_state_of_its_parent(population: StudyView) -> None:
    forks = [trial for trial in population.trials if trial.lineage.forked_from is not None]
    assert len(forks) == 2
    for fork in forks:
        parent, step = fork.lineage.forked_from or (0, 0)
        record = record_of(population, fork)
        assert record['weights_from'] == [parent, step]
        assert record['resumed_from'][0] == step
        assert (trial_directory(population.directory, fork) / 'forked_from.json').exists()
        # What the parent was measured at there, its fork is, too: the same weights.
        measured = {each.step: each.metrics for each in population.trial(parent).measurements}
        first = fork.measurements[0]
        assert first.step == step
        assert first.metrics['eval/log_pplx'] == measured[step]['eval/log_pplx']
        assert first.metrics['spent_tokens'] > 0


@pytest.mark.sentinel
def test_a_fork_trains_again_alone_to_the_last_bit(population: StudyView, tmp_path: Path) -> None:
    forks = [each for each in population.trials if each.lineage.forked_from]
    fork = next(trial for trial in forks[::-1] if not trial.stop_reason)
    flags = [f'--study_dir={population.directory}', f'--exp={MODULE}.Population']
    for _ in range(2):  # The second time there is nothing left to do.
        assert train.main([*flags, f'--trial={fork.id}', f'--job_log_dir={tmp_path}']) == 0
    assert read_metrics(tmp_path / 'metrics.jsonl')[-1]['eval/log_pplx'] == fork.reward
    parent, step = fork.lineage.forked_from or (0, 0)
    assert read_metrics(tmp_path / f'lineage/{parent}/metrics.jsonl')[-1]['step'] == step


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


def test_workers_pause_promote_and_fork_likewise(tmp_path: Path) -> None:
    trials = searched(tmp_path, 'Population', '--workers=2')
    assert all(trial.is_terminal for trial in trials)
    assert any(trial.lineage.forked_from for trial in trials)
    completed = [trial for trial in trials if trial.status == 'completed']
    assert completed
    with load_study(tmp_path) as study:
        for trial in completed:
            checkpoints = epath.Path(trial_directory(study.directory, trial)) / 'checkpoints'
            assert saved_checkpoints(checkpoints)
