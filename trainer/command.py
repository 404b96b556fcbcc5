"""Shared parts of the commands: flags, messages, exit codes, the compilation cache."""

import argparse
import importlib
import importlib.util
import os
import re
import select
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from absl.flags import argparse_flags

from trainer.runtime import garbage_collection, wall_clock
from trainer.symbolic.errors import (
    LostProcessError,
    OtherProcessError,
    UserError,
    full_disk_text,
    is_disk_full,
    nearest,
)
from trainer.symbolic.user_code import described, user_line

if TYPE_CHECKING:
    from trainer.experiment import Experiment

_LOST = 3


class _Parser(argparse_flags.ArgumentParser):
    """Names the flags that are near to an unknown one, and expands `~/` in all values.

    Attributes:
        other_names: flags to write, by the names that other programs have for them.
    """

    other_names: Mapping[str, str] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # A shell expands `--flag ~/x`, but not `--flag=~/x`.
        found, others = super().parse_known_args(args, namespace)
        for name, value in vars(found).items():
            setattr(found, name, expanded(value))
        return found, others

    def error(self, message: str) -> NoReturn:
        if message.startswith('unrecognized arguments: --'):
            unknown = message.split()[2].partition('=')[0]
            other = self.other_names.get(unknown.replace('-', '_').replace('__', '--', 1))
            near = f'Write {other}' if other else nearest(unknown, self._option_string_actions)
            raise UserError(f'{message}. {near or "--help lists the flags"}')
        super().error(message)
        raise AssertionError('argparse exits')


def expanded(value: Any) -> Any:
    """Replaces `~` at the start of a path, or of paths in a list, by the home directory."""
    if isinstance(value, list):
        return [expanded(each) for each in value]
    is_path = isinstance(value, str) and (value == '~' or value.startswith('~/'))
    return os.path.expanduser(value) if is_path else value


def module_of(name: str) -> ModuleType:
    """Imports the module that `python -m name` runs: `name`, or `__main__` of a package."""
    spec = importlib.util.find_spec(name)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(f'{name}.__main__' if is_package else name)


def parser(
    description: str | None, other_names: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """Makes a parser for the flags of a command and of absl.

    Args:
        other_names: flags to write, by the names that other programs have for them.
    """
    made = _Parser(
        prog=_program(),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.other_names = other_names or {}
    return made


def _program() -> str:
    """Returns the words that run this command."""
    main = sys.modules['__main__']
    spec = getattr(main, '__spec__', None)
    if spec is not None and sys.argv[0] == getattr(main, '__file__', None):
        return f'python -m {spec.name.removesuffix(".__main__")}'
    return Path(sys.argv[0]).name


def add_experiment_flags(flags: argparse.ArgumentParser, required: bool = True) -> None:
    """Adds --exp, --set and --smoke."""
    flags.add_argument(
        '--exp',
        required=required,
        metavar='NAME',
        help='experiment in search_spaces, such as lm.StdlibTunable, or any dotted path',
    )
    add_list_flag(
        flags,
        '--set',
        'PATH=VALUE',
        'set a field, such as task.learner.learning_rate=1e-3; a decision becomes fixed',
    )
    flags.add_argument(
        '--smoke', action='store_true', help='run at the tiny size that the experiment defines'
    )


def experiment_of(args: argparse.Namespace) -> 'Experiment':
    """The experiment of the flags of `add_experiment_flags`; raises UserError on bad input."""
    from trainer.experiment import Experiment
    from trainer.symbolic import overrides, registry

    found = registry.find(args.exp, Experiment)
    return overrides.override(overrides.smoke(found) if args.smoke else found, args.set)


def add_list_flag(flags: argparse.ArgumentParser, name: str, metavar: str, help: str) -> None:
    """Adds a flag that takes any number of values, and may be repeated."""
    flags.add_argument(name, nargs='+', action='extend', default=[], metavar=metavar, help=help)


def add_tune_flag(flags: argparse.ArgumentParser) -> None:
    """Adds --tune."""
    add_list_flag(
        flags,
        '--tune',
        'PATH=DECISION',
        'search over a field, such as \'task.learner.learning_rate=floatv(1e-4,1e-2,"log")\'',
    )


def add_allow_changes_flag(flags: argparse.ArgumentParser) -> None:
    """Adds --allow_changes."""
    flags.add_argument(
        '--allow_changes',
        action='store_true',
        help='resume a run even if its task, data or seed has changed',
    )


def add_process_flags(flags: argparse.ArgumentParser) -> None:
    """Adds --coordinator, --num_processes and --process_id, for `processes.start`."""
    flags.add_argument(
        '--coordinator',
        metavar='HOST:PORT',
        help='train in several processes: address of process 0. auto, the default in a TPU pod, '
        'srun, mpirun or Kubernetes Job, finds it there; none: one process',
    )
    flags.add_argument('--num_processes', type=int, metavar='N', help='number of processes')
    flags.add_argument('--process_id', type=int, metavar='I', help='index of this process, from 0')


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


def run_command(main: Callable[[Sequence[str] | None], int], trains: bool = False) -> None:
    """Runs a command and exits: with its code, or with one message and the code of a UserError.

    An error or exit of the user's code, a full disk, and the failure of another process are one
    message, too, and code 1. The code is 3 if another process was lost, and 130, with one line,
    after a Ctrl-C that the command does not handle, such as before the first step.

    Args:
        main: (arguments; None for the command line) -> exit code.
        trains: garbage is not collected until `garbage_collection.end_start_up`, which `main` calls
            before it trains.
    """
    if trains:
        garbage_collection.begin_start_up()
    try:
        with wall_clock.measuring(wall_clock.of_process()):
            code = main(None)
    except KeyboardInterrupt:
        print('Interrupted.', file=sys.stderr)
        code = 130
    except SystemExit as error:
        if user_line(error) is None:  # argparse ends a command so.
            has_reader()
            raise
        say(f'error: {described(error)}', sys.stderr)
        code = 1
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not has_reader():
            sys.exit(0)
        code, message = _refusal(error)
        say(f'error: {message}', sys.stderr)
        if code == _LOST:
            has_reader()
            os._exit(code)  # JAX would wait for the lost process, and then abort.
    has_reader()
    sys.exit(code)


def has_reader() -> bool:
    """Flushes standard output; returns False where its reader has left, as in `… | head`.

    Nothing more can be written then, not even at exit.
    """
    try:
        sys.stdout.flush()
        if not _has_left():
            return True
    except BrokenPipeError:
        pass
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return False


def _has_left() -> bool:
    """Returns True for a pipe without a reader. A failed write may have left nothing to flush."""
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in pipe.poll(0))
    except (OSError, ValueError, AttributeError):  # No file, or another system.
        return False


def _refusal(error: Exception) -> tuple[int, object]:
    """The exit code and the message of an error; raises it where only a traceback helps."""
    if isinstance(error, UserError):
        return error.exit_code, error
    for kind, code in {OtherProcessError: 1, LostProcessError: _LOST}.items():
        if isinstance(error, kind):
            return code, error
    if isinstance(error, MemoryError):
        return 1, 'there is not enough memory'
    if is_disk_full(error):
        return 1, full_disk_text(error)
    # The switch of JAX.
    if user_line(error) is None or os.environ.get('JAX_TRACEBACK_FILTERING') == 'off':
        raise error
    return 1, f'{described(error)}. JAX_TRACEBACK_FILTERING=off shows the whole traceback.'


def say_once(*lines: str) -> None:
    """Prints lines in the first process of several."""
    from trainer.runtime import processes

    if processes.is_first():
        say('\n'.join(lines))


def say(text: str, file: TextIO | None = None) -> None:
    """Prints a message, `printable` and `fitted`."""
    out = file or sys.stdout
    print(fitted(printable(text), out), file=out, flush=True)


def counted(count: int, noun: str) -> str:
    """Renders a number of things.

    Example:
        >>> counted(1, 'trial'), counted(2, 'trial')
        ('1 trial', '2 trials')
    """
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'


def printable(text: str) -> str:
    """Escapes control characters, except for line ends and tabs.

    The text of a file must neither steer a terminal nor change its direction of writing.

    Example:
        >>> printable('a' + chr(27) + '[2J')
        'a\\\\x1b[2J'
    """
    lines = text.split('\n')
    return '\n'.join(each if each.isprintable() else ''.join(map(_escaped, each)) for each in lines)


def _escaped(character: str) -> str:
    is_control = unicodedata.category(character).startswith('C') and character != '\t'
    return character.encode('unicode_escape').decode() if is_control else character


def fitted(text: str, out: TextIO, taken: int = 0) -> str:
    """The text, for a terminal `folded`: it would fold lines inside of words.

    Args:
        text: lines.
        out: where they are written.
        taken: columns that something before the text takes.
    """
    return folded(text, shutil.get_terminal_size().columns - taken) if out.isatty() else text


def folded(text: str, width: int) -> str:
    """Folds lines at words. Lines of a command end in a backslash, so that it can be copied.

    Example:
        >>> print(folded('To resume:\\n  python -m paxtune.search --exp=lm.C4Small', 40))
        To resume:
          python -m paxtune.search \\
              --exp=lm.C4Small
    """
    return '\n'.join(_fold(line, width) for line in text.split('\n'))


def _fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    margin = line[: len(line) - len(line.lstrip())]
    words, end = line.split(), ''
    if line.startswith('  python -m '):
        words, end = list(map(shlex.quote, shlex.split(line))), ' \\'
    lines = [margin + words[0]]
    for word in words[1:]:
        if len(f'{lines[-1]} {word}{end}') <= width:
            lines[-1] += f' {word}'
        else:
            lines[-1] += end
            lines.append(margin + ('    ' if end else '') + word)
    return '\n'.join(lines)


def given(argv: Sequence[str] | None) -> list[str]:
    """The flags of a command; None means those of this process.

    Example:
        >>> given(['--exp=lm.C4Small'])
        ['--exp=lm.C4Small']
    """
    return sys.argv[1:] if argv is None else list(argv)
