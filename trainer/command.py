"""Shared parts of the commands: flags, messages, exit codes, the compilation cache."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl.flags import argparse_flags

from trainer.symbolic.errors import (
    LostProcessError,
    OtherProcessError,
    SaveError,
    UserError,
    full_disk_text,
    is_disk_full,
)

_CACHE_BYTES = 4 * 2**30


def parser(description: str | None) -> argparse.ArgumentParser:
    """Makes a parser for the flags of a command and those of absl."""
    return argparse_flags.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_experiment_flags(flags: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds --exp, --set and --smoke."""
    flags.add_argument(
        '--exp',
        required=required,
        metavar='NAME',
        help='a name in search_spaces, such as lm.StdlibTunable, or any dotted path',
    )
    add_list_flag(
        flags,
        '--set',
        'PATH=VALUE',
        'override a value, such as task.learner.learning_rate=1e-3; fixes a decision',
    )
    flags.add_argument(
        '--smoke', action='store_true', help='run at the tiny size that the experiment defines'
    )


def add_list_flag(flags: argparse.ArgumentParser, name: str, metavar: str, help: str) -> None:
    """Adds a flag that takes any number of values, and may be repeated."""
    flags.add_argument(name, nargs='+', action='extend', default=[], metavar=metavar, help=help)


def add_tune_flag(flags: argparse.ArgumentParser) -> None:
    """Adds --tune."""
    add_list_flag(
        flags,
        '--tune',
        'PATH=DECISION',
        'search over a value, such as \'task.learner.learning_rate=floatv(1e-4,1e-2,"log")\'',
    )


def add_allow_changes_flag(flags: argparse.ArgumentParser) -> None:
    """Adds --allow_changes."""
    flags.add_argument(
        '--allow_changes',
        action='store_true',
        help='resume a run also with another task, other data or another seed',
    )


def add_process_flags(flags: argparse.ArgumentParser) -> None:
    """Adds --coordinator, --num_processes and --process_id, for `processes.start`."""
    flags.add_argument(
        '--coordinator',
        metavar='HOST:PORT',
        help='several processes or hosts: the host of process 0, and a free port there',
    )
    flags.add_argument('--num_processes', type=int, metavar='N', help='number of processes')
    flags.add_argument('--process_id', type=int, metavar='I', help='index of this one, from 0')


def decisions_given(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Parses `path=value` texts of decisions.

    Raises:
        UserError: a text has another form.

    Example:
        >>> decisions_given(['model.heads=4', 'rate[=0/2]=0.5'], '--decisions')
        {'model.heads': '4', 'rate[=0/2]': '0.5'}
    """
    found = {}
    for text in texts:
        # The path of a decision inside a choice has `[=` in it.
        parts = re.fullmatch(r'(.*?)(?<!\[)=(.*)', text, re.DOTALL)
        if parts is None:
            raise UserError(f'{flag}: expected path=value, not {text!r}')
        found[parts[1]] = parts[2]
    return found


def positive_int(text: str) -> int:
    """Type of flags for positive integers."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'expected an integer of at least 1, not {text}')
    return number


def run_command(main: Callable[[Sequence[str] | None], int]) -> None:
    """Runs a command and exits: with its code, or with 2 and one message after a UserError.

    The code is 1 if the disk is full or another process of the job failed, and 3 if one was lost.
    It is 130, with one line, after a Ctrl-C that the command does not handle, such as before the
    first step.
    """
    try:
        code = main(None)
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        code = 2
    except OtherProcessError as error:
        print(f'error: {error}', file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print('Interrupted.', file=sys.stderr)
        code = 130
    except (OSError, SaveError) as error:
        if not is_disk_full(error):
            raise
        print(f'error: {full_disk_text(error)}', file=sys.stderr)
        code = 1
    except LostProcessError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.stdout.flush()
        os._exit(3)  # JAX would wait for the lost process, and then abort.
    sys.stdout.flush()
    sys.exit(code)


def given(argv: Sequence[str] | None) -> list[str]:
    """The flags of a command; None means those of this process.

    Example:
        >>> given(['--exp=lm.C4Small'])
        ['--exp=lm.C4Small']
    """
    return sys.argv[1:] if argv is None else list(argv)


def enable_compilation_cache() -> None:
    """Shares compiled programs between processes, in $JAX_COMPILATION_CACHE_DIR or ~/.cache."""
    settings: dict[str, Any] = {
        'jax_persistent_cache_min_compile_time_secs': 0,
        'jax_persistent_cache_min_entry_size_bytes': -1,
    }
    if not os.environ.get('JAX_COMPILATION_CACHE_DIR'):
        base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
        settings['jax_compilation_cache_dir'] = str(Path(base) / 'paxtune' / 'xla')
        # The limit is for this directory alone. JAX stores nothing more in a directory with a
        # limit after a program without a limit has used it.
        settings['jax_compilation_cache_max_size'] = _CACHE_BYTES
    for name, value in settings.items():
        if 'jax' in sys.modules:
            sys.modules['jax'].config.update(name, value)
        else:  # For when it is imported.
            os.environ[name.upper()] = str(value)
