"""`python -m paxtune.train`: trials and decisions that are trained again, alone."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from paxtune import train
from paxtune.storage.open_study import load_study
from tests.factories.searches import MODULE, run
from tests.factories.tiny import CountingInput
from tests.servers.processes import command, passed
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import UserError


def printed_command(out: str) -> list[str]:
    """Returns the flags of the command that a finished study prints."""
    python, m, module, *flags = shlex.split(out[out.index('To train it:') :].splitlines()[1])
    assert [python, m, module] == ['python', '-m', 'paxtune.train']
    return flags


def final(directory: epath.Path | Path) -> float:
    """The last evaluation of a run, bit for bit."""
    records = read_metrics(directory / 'metrics.jsonl')
    return [each['eval/log_pplx'] for each in records if 'eval/log_pplx' in each][-1]


@pytest.mark.slow
@pytest.mark.sentinel
def test_a_trial_trains_again_to_the_last_bit(tmp_path: Path, capsys: Any) -> None:
    run(tmp_path / 'study')
    with load_study(tmp_path / 'study') as study:
        best = study.best
    assert best is not None
    capsys.readouterr()
    flags = [f'--study_dir={tmp_path / "study"}', '--trial=best']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "alone"}']) == 0
    assert final(tmp_path / 'alone') == best.reward
    mine = [f'--job_log_dir={tmp_path / "mine"}', f'--exp={MODULE}.Rates', '--decisions']
    rate = best.decisions['task.learner.learning_rate']
    assert train.main([*mine, f'task.learner.learning_rate={rate!r}']) == 0
    assert final(tmp_path / 'mine') == best.reward
    assert f'eval/log_pplx={best.reward:.6g} ' in capsys.readouterr().out


@pytest.mark.slow
def test_it_trains_in_a_store_as_well(store: epath.Path, tmp_path: Path, capsys: Any) -> None:
    flags = [f'--exp={MODULE}.Rates', '--decisions', 'task.learner.learning_rate=0.01']
    for directory in (tmp_path, store):
        assert train.main([*flags, f'--job_log_dir={directory}']) == 0
    assert len(re.findall(r'step 6: .*eval/log_pplx=', capsys.readouterr().out)) == 2
    assert final(tmp_path) == final(store)


@pytest.mark.slow
def test_the_printed_command_trains_the_best_trial(tmp_path: Path, capsys: Any) -> None:
    trials = run(tmp_path / 'a study', 'Rates', '--num_trials=1')
    flags = printed_command(capsys.readouterr().out)
    assert f'--exp={MODULE}.Rates' in flags
    assert train.main(flags) == 0
    *_, line, last = capsys.readouterr().out.splitlines()
    assert line.startswith('step 6: ')
    assert f'eval/log_pplx={trials[0].reward:.6g} ' in line
    assert last.startswith(f'Trained to step 6. In {tmp_path / "a study"}/best-1: metrics.jsonl')


@pytest.mark.slow
def test_the_printed_command_needs_nothing_of_this_process(tmp_path: Path, capsys: Any) -> None:
    run(tmp_path / 'study', 'Failures')
    flags = printed_command(capsys.readouterr().out)
    assert 'step 6: ' in passed(command('paxtune.train', *flags))


def test_train_says_how_to_resume_with_the_flags_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[list[str]] = []

    def fake(
        experiment: Any, job_log_dir: str, resume_command: list[str], allow_changes: bool
    ) -> int:
        said.append(resume_command)
        return 0

    monkeypatch.setattr('trainer.main.train', fake)
    flags = [
        f'--exp={MODULE}.Rates', '--decisions', 'task.learner.learning_rate=0.01',
        f'--job_log_dir={tmp_path}',
    ]  # fmt: skip
    train.main(flags)
    monkeypatch.setattr('sys.argv', ['/lib/paxtune/train.py', *flags])
    train.main(None)
    assert said == [['python', '-m', 'paxtune.train', *flags]] * 2


@pytest.mark.slow
def test_a_trial_is_not_trained_on_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / 'study', 'Rates', '--num_trials=1')
    monkeypatch.setattr(CountingInput, 'fingerprint', lambda self: 'other')
    target = tmp_path / 'alone'
    with pytest.raises(UserError, match=r'train_input: .* was counting in .* and is other now'):
        train.main([f'--study_dir={tmp_path / "study"}', '--trial=1', f'--job_log_dir={target}'])
    assert not target.exists()


@pytest.mark.pax('Lazy hypers in the')
@pytest.mark.slow
def test_data_that_a_trial_chose_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingInput, 'fingerprint', lambda self: f'{self.batch_size}')
    flags = ['--tune', 'train_input.batch_size=oneof([4, 8])', '--set', 'train.num_train_steps=1']
    trials = run(tmp_path / 'study', 'Rates', *flags)
    sizes = {trial.decisions['train_input.batch_size']: trial.id for trial in trials}
    assert sizes.keys() == {4, 8}
    for number in sizes.values():
        target = f'--job_log_dir={tmp_path / str(number)}'
        study = f'--study_dir={tmp_path / "study"}'
        assert train.main([study, f'--trial={number}', target]) == 0


@pytest.mark.slow
def test_another_number_of_threads_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run(tmp_path / 'study', 'Rates', '--num_trials=1')
    flags = [f'--study_dir={tmp_path / "study"}', '--trial=1']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "same"}']) == 0
    assert 'threads' not in capsys.readouterr().err
    monkeypatch.setattr('os.sched_getaffinity', lambda pid: set(range(1000)))
    assert train.main([*flags, f'--job_log_dir={tmp_path / "other"}']) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if 'threads' in line]
    assert warning.startswith('warning: trial 1 was trained with ')
    assert 'and there are 1000 here' in warning


@pytest.mark.slow
def test_a_directory_of_another_trial_is_refused(tmp_path: Path) -> None:
    run(tmp_path / 'study', 'Rates', '--num_trials=2')
    flags = [f'--study_dir={tmp_path / "study"}', f'--job_log_dir={tmp_path / "alone"}']
    assert train.main([*flags, '--trial=1']) == 0
    with pytest.raises(UserError, match='holds another experiment'):
        train.main([*flags, '--trial=2'])
    assert train.main([*flags, '--trial=1']) == 0


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--exp={exp}'], r'task.learner.learning_rate: a number from 0.0001 to 0.1'),
        (['--exp={exp}', '--decisions', 'task.lr=1'], 'task.lr is no decision|task.lr'),
        ([], '--exp'),
        (['--study_dir={dir}/none', '--trial=best'], 'There is no study'),
        (['--exp={exp}', '--trial=1'], '--trial needs --study_dir'),
        (['--study_dir={dir}/none', '--trial=1', '--smoke'], 'go with --exp'),
        (['--study_dir={dir}/none', '--trial=1', '--allow_changes'], 'go with --exp'),
    ],
)
def test_bad_input_to_train_is_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    made = [flag.format(exp=f'{MODULE}.Rates', dir=tmp_path) for flag in flags]
    with pytest.raises(UserError, match=message):
        train.main([*made, f'--job_log_dir={tmp_path / "alone"}'])
    assert not (tmp_path / 'alone').exists()


@pytest.mark.slow
def test_an_unknown_trial_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 'Rates', '--num_trials=1')
    with pytest.raises(UserError, match=r'has no trial 7: it has 1 to 1'):
        train.main([f'--study_dir={tmp_path}', '--trial=7', f'--job_log_dir={tmp_path / "x"}'])
