import errno
import shlex
import subprocess
import sys
from typing import Any

import pytest

from trainer import command
from trainer.symbolic.errors import UserError


def test_given_are_the_flags_of_the_process_unless_there_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, 'argv', ['/lib/trainer/main.py', '--exp=lm.C4Small'])
    assert command.given(None) == ['--exp=lm.C4Small']
    assert command.given(('--smoke',)) == ['--smoke']
    assert command.given([]) == []


@pytest.mark.parametrize(
    ('error', 'code', 'message'),
    [
        (KeyboardInterrupt(), 130, 'Interrupted.\n'),
        (UserError('no data'), 2, 'error: no data\n'),
        (
            OSError(errno.ENOSPC, 'No space left on device'),
            1,
            'error: no space is left on the disk of this run ([Errno 28] No space left on device). '
            'Make room, and resume: everything continues from its last checkpoint\n',
        ),
    ],
)
def test_a_command_exits_with_one_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(argv: object) -> int:
        raise error

    with pytest.raises(SystemExit) as exited:
        command.run_command(main)
    assert exited.value.code == code
    assert capsys.readouterr().err == message


def test_an_error_of_the_users_code_is_one_message_with_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(argv: object) -> int:
        return {'loss': 1}['los']

    with pytest.raises(SystemExit) as exited:
        command.run_command(main)
    assert exited.value.code == 1
    place = f'tests/trainer/test_command.py:{main.__code__.co_firstlineno + 1}'
    message = f"error: KeyError: 'los' ({place}). JAX_TRACEBACK_FILTERING=off shows the whole"
    assert capsys.readouterr().err == f'{message} traceback.\n'
    monkeypatch.setenv('JAX_TRACEBACK_FILTERING', 'off')
    with pytest.raises(KeyError):
        command.run_command(main)


def test_an_exit_of_the_users_code_is_no_end_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as exited:
        command.run_command(lambda argv: sys.exit(0))
    assert exited.value.code == 1
    assert capsys.readouterr().err.startswith(
        'error: SystemExit: 0 (tests/trainer/test_command.py:'
    )


def test_an_error_of_ours_has_its_traceback() -> None:
    main: Any = command.positive_int
    with pytest.raises(TypeError, match='int'):
        command.run_command(main)


def test_messages_are_folded_at_words_and_commands_can_be_copied() -> None:
    run = "  python -m paxtune.search --exp=my_exp.Wiki --tune 'x=floatv(1, 2)'"
    assert command.folded(f'To resume it:\n{run}', 40).split('\n') == [
        'To resume it:',
        '  python -m paxtune.search \\',
        '      --exp=my_exp.Wiki --tune \\',
        "      'x=floatv(1, 2)'",
    ]
    assert (
        command.folded('  task: 1\n  ' + 'word ' * 4, 12) == '  task: 1\n  word word\n  word word'
    )
    assert command.folded('x' * 20, 12) == 'x' * 20


def test_a_command_exits_with_its_code() -> None:
    with pytest.raises(SystemExit) as exited:
        command.run_command(lambda argv: 3)
    assert exited.value.code == 3


def test_a_message_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command.say('error: a\x1b[2J\r\x07b\n\tc')
    assert capsys.readouterr().out == 'error: a\\x1b[2J\\r\\x07b\n\tc\n'


def test_a_tilde_in_the_value_of_a_flag_is_the_home_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv('HOME', '/home/ada')
    flags = command.parser(None)
    flags.add_argument('--job_log_dir')
    command.add_list_flag(flags, '--prior_studies', 'DIR', 'studies')
    given = ['--job_log_dir=~/runs/a', '--prior_studies', '~/runs/b', 'runs/~c']
    args = flags.parse_args(given)
    assert args.job_log_dir == '/home/ada/runs/a'
    assert args.prior_studies == ['/home/ada/runs/b', 'runs/~c']


@pytest.mark.parametrize('ending', ['', 'sys.exit(3)'])
def test_a_reader_that_leaves_ends_a_command_without_a_message(ending: str) -> None:
    program = f"""
import sys
from trainer.command import run_command
def main(argv):
    print('line\\n' * 200_000)
    {ending}
    return 0
run_command(main)
"""
    line = f'{shlex.quote(sys.executable)} -c {shlex.quote(program)} | head -n 1'
    done = subprocess.run(['bash', '-c', line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ('line\n', '')
