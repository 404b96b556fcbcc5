"""The commands as a person runs them: processes, their exit codes, their one message."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.processes import ROOT, command
from trainer.command import module_of
from trainer.symbolic.errors import UserError

_RATES = '--exp=tests.factories.tunables.Rates'

_BAD_INPUT: list[tuple[str, list[str], str]] = [
    (
        'paxtune.search',
        ['--exp=lm.StdlibTunable', '--set', 'task.learner.lerning_rate=1'],
        'task.learner.learning_rate',
    ),
    (
        'paxtune.search',
        ['--exp=lm.StdlibTunable', '--set', 'train.num_train_steps=true'],
        'train.num_train_steps',
    ),
    (
        'paxtune.search',
        ['--exp=lm.StdlibTunable', '--tune', 'task.learner.learning_rate=floatv(1)'],
        'task.learner.learning_rate',
    ),
    ('paxtune.search', ['--exp=lm.StdlibTunabel'], 'Did you mean StdlibTunable or'),
    ('paxtune.search', [_RATES, '--job_log_dir=/proc/nowhere'], '--job_log_dir=/proc/nowhere'),
    ('paxtune.train', ['--exp=lm.C4Smal', '--job_log_dir=x'], 'Did you mean C4Small?'),
    ('trainer.main', [_RATES, '--job_log_dir=x'], 'task.learner.learning_rate'),
    ('trainer.convert', ['--from=/none', '--exp_out=a.py'], '/none has no config.json'),
    ('trainer.inspect_input', ['--exp=lm.C4Smal'], 'Did you mean C4Small?'),
    (
        'trainer.inspect_input',
        ['--exp=lm.StdlibTunable', '--set', 'eval_inputs.eval.reset_for_eval=false'],
        'eval_inputs.eval.reset_for_eval: ',
    ),
    (
        'trainer.main',
        [
            '--exp=lm.C4Small',
            '--smoke',
            '--job_log_dir=x',
            '--set',
            'eval_inputs.eval.repeat=true',
        ],
        'eval_inputs.eval.repeat: ',
    ),
    ('trainer.main', ['--exp=lm.C4Small', '--mode=eval_once', '--job_log_dir=/none'], '/none'),
]
_FIRST = {module: i for i, (module, *_) in reversed([*enumerate(_BAD_INPUT)])}.values()


@pytest.mark.parametrize(('module', 'flags', 'message'), _BAD_INPUT)
def test_bad_input_is_refused_with_exit_code_2(
    module: str, flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        module_of(module).main(flags)
    assert refused.value.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(('module', 'flags', 'message'), [_BAD_INPUT[i] for i in _FIRST])
def test_each_command_prints_one_message_for_bad_input(
    module: str, flags: list[str], message: str
) -> None:
    done = command(module, *flags)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith('error: ')
    assert message in done.stderr
    assert 'Traceback' not in done.stdout + done.stderr


def test_bad_input_is_refused_before_anything_slow_is_imported() -> None:
    # How long that takes is measured in benchmarks/refusal_time.py.
    code = (
        'import sys\nfrom paxtune import search\nfrom trainer.symbolic.errors import UserError\n'
        'flags = ["--exp=lm.StdlibTunable", "--set", "task.learner.lerning_rate=1"]\n'
        'try:\n    search.main(flags)\n'
        'except UserError:\n    print(*{name.split(".")[0] for name in sys.modules})\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert 'pyglove' in loaded
    assert not loaded & {'tensorflow', 'seqio', 'vizier', 'orbax', 'sqlalchemy', 'grpc'}


@pytest.mark.parametrize(
    'module', ['paxtune.search', 'paxtune.train', 'trainer.main', 'trainer.inspect_input']
)
def test_unknown_flags_are_refused(module: str) -> None:
    with pytest.raises(UserError, match='--nmu'):
        module_of(module).main(['--exp=lm.StdlibTunable', '--job_log_dir=x', '--nmu'])
