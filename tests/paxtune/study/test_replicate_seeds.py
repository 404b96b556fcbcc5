"""Replicates train with seeds of their own."""

import json
from pathlib import Path

import pytest

from paxtune import train
from paxtune.algorithms import (
    RegularizedEvolution,
)
from paxtune.api import tune
from paxtune.running.trial_spec import experiments
from paxtune.search_space.differences import differences
from paxtune.study.trial_experiments import reseeded
from paxtune.study.trial_paths import trial_directory
from tests.factories.studies import ask, opened, ran
from tests.factories.studies import finish_with as finish
from tests.factories.tunables import Rates
from trainer.inputs import MixtureInput, StdlibInput
from trainer.runtime.metric_writer import read_metrics


def test_all_seeds_of_training_grow_from_replicate_to_replicate() -> None:
    experiment = Rates()
    again = reseeded(experiment, 3)
    assert [str(each) for each in differences(experiment, again)] == ['train.random_seed: 0 → 2']
    assert reseeded(experiment, 1) is experiment
    part = StdlibInput(batch_size=8, sequence_length=4, split='train', is_training=True)
    mixed = MixtureInput(
        batch_size=2,
        is_training=True,
        inputs={'a': part, 'b': part.clone(deep=True, override={'input_random_seed': 7})},
        weights={'a': 1.0, 'b': 1.0},
    )
    experiment.rebind({'train_input': mixed})
    again = reseeded(experiment, 2)
    assert {str(each) for each in differences(experiment, again)} == {
        'train.random_seed: 0 → 1',
        'train_input.input_random_seed: 0 → 1',
        'train_input.inputs.a.input_random_seed: 0 → 1',
        'train_input.inputs.b.input_random_seed: 7 → 8',
    }


@pytest.mark.slow
def test_a_replicate_trains_with_another_seed_and_again_to_the_last_bit(
    tmp_path: Path,
) -> None:
    study = tune(Rates(), job_log_dir=tmp_path / 'study', num_trials=2, replicates=2)
    with study:
        first, second = study.trials
        assert first.decisions == second.decisions
        assert first.reward != second.reward
        assert second.materialize().train.random_seed == 1
        assert experiments(study, second)[''].train.random_seed == 1
        written = trial_directory(study.directory, second) / 'experiment.json'
        assert json.loads(written.read_text())['train']['random_seed'] == 1
    flags = [f'--study_dir={tmp_path / "study"}', '--trial=2']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "alone"}']) == 0
    measured = read_metrics(tmp_path / 'alone' / 'metrics.jsonl')
    assert measured[-1]['eval/log_pplx'] == second.reward


def test_a_replicate_begins_with_the_weights_that_the_first_begins_with() -> None:
    with opened(replicates=2, warm_start='parent', algorithm=RegularizedEvolution(1, 1)) as study:
        ran(study, 1.0, 1.0)
        first, second = ask(study), None
        finish(first, 2.0)
        second = ask(study)
        assert (first.lineage.parent, first.lineage.warm_start) == (1, 1)
        assert (
            second.lineage.parent,
            second.lineage.warm_start,
            second.lineage.replicate_of_here,
        ) == (1, 1, 3)
