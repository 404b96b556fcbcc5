"""`python -m paxtune.space`: what it shows of a space."""

import re

import pytest

from paxtune import space as command
from tests.factories.tunables import DIMS, HIDDEN, SIZE, WithoutData
from trainer.symbolic.errors import UserError

MODULE = 'tests.factories.tunables'


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert command.main(list(flags)) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_command_measures(capsys):
    flags = ['--set', f'{HIDDEN}=32', 'search.limits=[]', 'task.learner.learning_rate=0.1']
    flags += ['--tune', 'task.model.embedding.dims=oneof([8, 16])', '--samples=0']
    plain = shown(capsys, f'--exp={MODULE}.Widths', *flags)
    assert 'bytes of the train state' in plain
    assert 'bytes of device memory' not in plain
    assert 'Limits' not in plain
    measured = shown(capsys, f'--exp={MODULE}.Widths', *flags, '--measured')
    assert 'bytes of device memory' in measured
    assert 'seconds per step' in measured


def test_the_command_shows_limits_and_what_a_task_counts(capsys):
    out = shown(capsys, f'--exp={MODULE}.Widths', '--samples=0')
    assert re.search('num_params ≤ 4000 +2 of 4 +50%', out)
    assert re.search('all of them +1 of 4 +25%', out)
    assert 'FLOPs per token' in out
    out = shown(capsys, f'--exp={MODULE}.Images', '--samples=0')
    assert 'FLOPs per example' in out
    assert 'FLOPs per token' not in out


@pytest.mark.pax('Debug files: space')
def test_the_command(capsys):
    out = shown(capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=3')
    assert 'one of 8, 12, 16' in out
    assert 'an integer from 1 to 4' in out
    assert f'{SIZE}  embedding.dims / num_heads' in out
    assert 'Size: 12 different experiments' in out
    assert '3 × twelve is unlucky' in out
    assert 'parameters' in out
    assert 'FLOPs per token' in out
    assert out == shown(
        capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=3'
    )
    assert out != shown(
        capsys, f'--exp={MODULE}.Following', '--num_costed=12', '--samples=2', '--seed=4'
    )


def test_a_sweep_is_shown_with_its_rows(capsys):
    out = shown(capsys, f'--exp={MODULE}.Table', '--num_costed=0')
    assert 'one of [8, 2], [16, 4]' in out
    assert f'{DIMS}' in out
    assert 'shared.sweep[1]' in out
    assert 'Size: 2 different experiments' in out
    assert 'Costs' not in out


def test_experiments_without_data_and_search_can_be_shown(capsys):
    out = shown(
        capsys, '--exp=tests.factories.tunables.WithoutData', '--num_costed=2', '--samples=0'
    )
    assert WithoutData().train_input.__class__.__name__ == 'NoData'
    assert 'Costs of 2 samples' in out
    assert 'Samples' not in out
    flags = ['--exp=lm.C4Small', '--smoke', '--num_costed=0', '--tune']
    out = shown(capsys, *flags, 'task.learner.learning_rate=floatv(1e-4, 1e-2, "log")')
    assert 'a number from 0.0001 to 0.01' in out
    assert 'Size: infinite (some decisions are continuous)' in out


def test_values_can_be_set(capsys):
    flags = [f'--exp={MODULE}.Following', '--num_costed=0', '--set', f'{DIMS}=8']
    assert 'Size: 4 different experiments' in shown(capsys, *flags)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match='--samples must not be negative: -1'):
        command.main([f'--exp={MODULE}.Following', '--samples=-1'])
    with pytest.raises(UserError, match='There is nothing to search'):
        command.main(['--exp=lm.C4Small'])
