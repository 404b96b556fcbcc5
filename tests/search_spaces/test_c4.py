"""`lm.C4Tunable` on small C4 data, and without data."""

from pathlib import Path

import pytest

from paxtune import search
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from search_spaces import lm
from tests.factories.c4_data import make_tfds_directory
from tests.servers.processes import command, passed
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import smoke

_SMALL = [
    'task.model.embedding.dims=96',
    'train_input.batch_size=4',
    'train_input.sequence_length=32',
    'eval_inputs.eval.batch_size=16',
    'eval_inputs.eval.sequence_length=64',
    'train.num_train_steps=4',
    'train.evaluation.every=2',
    'train.checkpoints.every=2',
]


@pytest.mark.slow
def test_c4_tunable_runs_on_c4_data_shrunk_by_set_alone(tmp_path: Path) -> None:
    make_tfds_directory(tmp_path / 'c4')
    where = [f'{path}.data_dir={tmp_path / "c4"}' for path in ('train_input', 'eval_inputs.eval')]
    flags = ['--exp=lm.C4Tunable', '--num_trials=1', f'--job_log_dir={tmp_path / "study"}']
    passed(command('paxtune.search', *flags, '--set', *_SMALL, *where))
    with load_study(tmp_path / 'study') as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED']
        best = study.best
    assert best is not None
    assert best.reward is not None
    assert 0 < best.reward < 12


def test_without_c4_there_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('C4_DATA_DIR', 'TFDS_DATA_DIR'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', str(tmp_path))
    flags = ['--exp=lm.C4Tunable', '--num_trials=4', f'--job_log_dir={tmp_path / "study"}']
    with pytest.raises(UserError) as raised:
        search.main(flags)
    for text in ('tensorflow_datasets', 'train_input.data_dir', 'C4_DATA_DIR', '--smoke'):
        assert text in str(raised.value)
    assert not (tmp_path / 'study').exists()


def test_a_smoke_run_has_the_space_of_a_whole_one() -> None:
    assert Space(smoke(lm.C4Tunable())).ids == Space(lm.C4Tunable()).ids
