"""`python -m paxtune.train`: trials and decisions that are trained again, alone."""

import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from etils import epath

from paxtune import search, train
from paxtune.experiment import Tunable
from paxtune.storage.open_study import load_study
from tests.factories import tunables
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


@pytest.fixture(scope='module')
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A study of two trials, and what its search printed."""
    directory = tmp_path_factory.mktemp('search') / 'a study'
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run(directory, 'Rates', '--num_trials=2')
    return directory, out.getvalue()


@pytest.mark.slow
@pytest.mark.sentinel
def test_a_trial_trains_again_to_the_last_bit(
    searched: tuple[Path, str], tmp_path: Path, capsys: Any
) -> None:
    directory, _ = searched
    with load_study(directory) as study:
        best = study.best
    assert best is not None
    flags = [f'--study_dir={directory}', f'--job_log_dir={tmp_path / "alone"}']
    assert train.main([*flags, '--trial=best']) == 0
    assert final(tmp_path / 'alone') == best.reward
    with pytest.raises(UserError, match='holds another experiment'):
        train.main([*flags, f'--trial={3 - best.id}'])
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
def test_the_printed_command_trains_the_best_trial_in_a_new_process(
    searched: tuple[Path, str],
) -> None:
    directory, out = searched
    flags = printed_command(out)
    assert f'--exp={MODULE}.Rates' in flags
    with load_study(directory) as study:
        best = study.best
    assert best is not None
    *_, line, last, clock = passed(command('paxtune.train', *flags)).splitlines()
    assert re.match(r'step 6: .*eval/log_pplx=', line)
    assert last.startswith(f'Trained to step 6. In {directory}/best-{best.id}: metrics.jsonl')
    assert clock.startswith('Wall clock of this run: ')


def test_train_says_how_to_resume_with_the_flags_that_it_was_given(
    tmp_path: Path, capsys: Any
) -> None:
    flags = ['--exp=tests.factories.faulty_experiments.Slow', f'--job_log_dir={tmp_path}']
    flags += ['--decisions', 'task.learner.learning_rate=0.01']
    flags += ['--set', 'train_input.seconds=0.0', 'train_input.fault=SIGINT']
    assert train.main(flags) == 130
    again = shlex.join(['python', '-m', 'paxtune.train', *flags])
    assert f'To resume:\n  {again}\n' in capsys.readouterr().out


class FileInput(CountingInput):
    """An input whose data change with a file."""

    path: str

    def fingerprint(self) -> str:
        return f'{Path(self.path).read_text()} {self.batch_size}'


def filed() -> Tunable:
    """One step on the data of files, in batches of two sizes."""
    made = tunables.Rates()
    train_input = FileInput(batch_size=pg.oneof([4, 8]), is_training=True, path='')
    eval_inputs = {'eval': FileInput(batch_size=8, path='')}
    return made.rebind(
        {'train_input': train_input, 'eval_inputs': eval_inputs, 'train.num_train_steps': 1}
    )


@pytest.mark.pax('Lazy hypers in the')
@pytest.mark.slow
def test_a_trial_is_trained_on_its_own_data_and_no_other(tmp_path: Path) -> None:
    data, study = tmp_path / 'data', f'{tmp_path}/study'
    data.write_text('counting')
    flags = [f'--exp={__name__}.filed', f'--job_log_dir={study}', '--num_trials=2']
    where = [f'train_input.path={data}', f'eval_inputs.eval.path={data}']
    assert search.main([*flags, '--set', *where, 'task.learner.learning_rate=0.01']) == 0
    with load_study(study) as opened:
        assert {t.decisions['train_input.batch_size'] for t in opened.trials} == {4, 8}
    again = [f'--study_dir={study}', '--trial=1']
    for number in (1, 2):
        target = f'--job_log_dir={tmp_path / str(number)}'
        assert train.main([again[0], f'--trial={number}', target]) == 0
    data.write_text('other')
    with pytest.raises(UserError, match=r'eval_inputs\.eval: .* counting 8 in .* other 8 now'):
        train.main([*again, f'--job_log_dir={tmp_path / "alone"}'])
    assert not (tmp_path / 'alone').exists()


@pytest.mark.slow
def test_another_number_of_threads_is_reported(
    searched: tuple[Path, str], tmp_path: Path, capsys: Any
) -> None:
    study = tmp_path / 'study'
    shutil.copytree(searched[0], study)
    flags = [f'--study_dir={study}', '--trial=1']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "same"}']) == 0
    assert 'threads' not in capsys.readouterr().err
    (path,) = study.glob('trials/0001-*/trial.json')
    record = json.loads(path.read_text())
    record['machine']['threads'] = 1000
    path.write_text(json.dumps(record))
    assert train.main([*flags, f'--job_log_dir={tmp_path / "same"}']) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if 'threads' in line]
    assert warning.startswith('warning: trial 1 was trained with 1000 threads, and there are ')


INPUT = """
from tests.factories import tunables
from tests.factories.tiny import CountingInput


class Edited(CountingInput):
    def get_next(self):
        batch = super().get_next()
        return {name: rows.copy() for name, rows in batch.items()}


def Mine():
    made = tunables.Rates()
    return made.rebind({'eval_inputs': {'eval': Edited(batch_size=8)}})
"""


def write_module(directory: Path, source: str) -> None:
    (directory / 'edited_input.py').write_text(source)
    sys.modules.pop('edited_input', None)
    importlib.invalidate_caches()


@pytest.mark.slow
def test_changed_code_and_other_metrics_are_reported(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    write_module(tmp_path, INPUT)
    study, exp = tmp_path / 'study', '--exp=edited_input.Mine'
    assert search.main([exp, f'--job_log_dir={study}', '--num_trials=1']) == 0
    flags = [exp, f'--study_dir={study}', '--trial=1']
    capsys.readouterr()
    assert train.main([*flags, f'--job_log_dir={tmp_path / "same"}']) == 0
    same = capsys.readouterr()
    assert 'differs' not in same.out + same.err
    assert 'has changed' not in same.out + same.err
    changed = INPUT.replace('rows.copy()', "0 * rows if name == 'ids' else rows.copy()")
    assert changed != INPUT
    write_module(tmp_path, changed)
    assert train.main([*flags, f'--job_log_dir={tmp_path / "other"}']) == 0
    other = capsys.readouterr()
    (warning,) = [line for line in other.err.splitlines() if 'code' in line]
    named = 'the code of edited_input.Edited has changed'
    assert warning == f'warning: {named} since trial 1 began: its metrics may differ'
    first, *_, last = [line for line in other.out.splitlines() if 'differs' in line]
    pattern = r'differs from trial 1 at step (\d): eval/log_pplx \S+ → \S+; (.*)'
    found = [re.fullmatch(pattern, line) for line in (first, last)]
    assert all(found)
    assert [each.groups() for each in found if each] == [('2', named), ('6', named)]
    set_ = ['--set', 'train.num_train_steps=3']
    assert train.main([*flags, f'--job_log_dir={tmp_path / "set"}', *set_]) == 0
    assert 'differs' not in capsys.readouterr().out


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
def test_an_unknown_trial_is_refused(searched: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'has no trial 7: it has 1 to 2'):
        train.main([f'--study_dir={searched[0]}', '--trial=7', f'--job_log_dir={tmp_path}'])
