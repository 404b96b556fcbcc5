import errno
import os
import subprocess
import sys
from pathlib import Path
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


# A program that sets no limit stores something, then a command does.
COMPILING = """
import jax
from jax.experimental.compilation_cache import compilation_cache
from trainer.command import enable_compilation_cache

jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
jax.jit(lambda x: x + 1)(1.0)
compilation_cache.reset_cache()
enable_compilation_cache()


@jax.jit
def compiled_by_a_command(x):
    return x + 2


compiled_by_a_command(1.0)
"""


def compile_with(**environment: str) -> None:
    others = {k: v for k, v in os.environ.items() if k != 'JAX_COMPILATION_CACHE_DIR'}
    done = subprocess.run(
        [sys.executable, '-W', 'error', '-c', COMPILING],
        env=others | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_compiled_programs_are_stored_where_the_user_says(tmp_path: Path) -> None:
    compile_with(JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    assert list(tmp_path.glob('*compiled_by_a_command*'))


@pytest.mark.slow
def test_compiled_programs_are_stored_in_a_directory_of_limited_size(tmp_path: Path) -> None:
    compile_with(XDG_CACHE_HOME=str(tmp_path))
    stored = tmp_path / 'paxtune' / 'xla'
    # JAX writes down when an entry was used where it may have to delete the oldest.
    assert list(stored.glob('*compiled_by_a_command*-atime'))


def test_a_message_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command.say('error: a\x1b[2J\r\x07b\n\tc')
    assert capsys.readouterr().out == 'error: a\\x1b[2J\\r\\x07b\n\tc\n'
