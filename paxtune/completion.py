"""Completion of the command `paxtune` in a shell, by argcomplete: flags, files, names, studies.

It completes the experiments and parts of a search that the packages register. No module of the
user is imported.
"""

import argparse
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer import command
from trainer.symbolic.errors import UserError

COMPLETION = 'completion'
"""The command that prints `script`."""

SHELLS = ('bash', 'zsh', 'fish')

_VARIABLE = '_ARGCOMPLETE'
"""Set where a shell asks for completions; the number of the word that the command begins with."""


def script(words: Sequence[str]) -> str:
    """Returns the script that makes a shell complete `paxtune`; raises UserError for others."""
    if len(words) != 1 or words[0] not in SHELLS:
        known = f'{", ".join(SHELLS[:-1])} or {SHELLS[-1]}'
        given = f', not {" ".join(words)}' if words else ''
        raise UserError(f'paxtune completion SHELL: expected {known} as the shell{given}')

    from argcomplete.shell_integration import shellcode

    return shellcode(['paxtune'], shell=words[0])


def complete(commands: Collection[str], parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks for completions, and exits; does nothing in any other process.

    Args:
        commands: the names of the modules of `paxtune` that have a `parser`.
        parser: the parser of the first word.
    """
    if _VARIABLE not in os.environ:
        return
    # A shell has no place for a message: an error completes nothing.
    try:
        _complete(commands, parser)
    finally:
        os._exit(1)


def _complete(commands: Collection[str], parser: argparse.ArgumentParser) -> None:
    from argcomplete.completers import SuppressCompleter
    from argcomplete.finders import CompletionFinder
    from argcomplete.lexers import split_line

    _, _, _, words, _ = split_line(os.environ['COMP_LINE'], int(os.environ['COMP_POINT']))
    first = int(os.environ[_VARIABLE])
    if len(words) > first and words[first] in commands:
        # The command is then the program, and its flags come after it.
        os.environ[_VARIABLE] = str(first + 1)
        parser = command.module_of(f'paxtune.{words[first]}').parser()
    else:
        _add_words(parser, [*commands, COMPLETION])
    _add_completers(parser)
    has_positionals = any(not action.option_strings for action in parser._actions)

    class Finder(CompletionFinder):
        """Describes no value: argcomplete shows 'None' in zsh for values of `--flag=value`."""

        def quote_completions(self, *args: Any) -> list[str]:
            found: list[str] = super().quote_completions(*args)
            for each in found:
                self._display_completions.setdefault(each, '')
            return found

    Finder()(
        parser,
        always_complete_options=not has_positionals,
        default_completer=SuppressCompleter(),
    )


def _add_words(parser: argparse.ArgumentParser, commands: Sequence[str]) -> None:
    """Completes the commands, and the shells after the command that prints a script."""
    for action in parser._actions:
        if action.dest == 'command':
            action.completer = lambda **_: commands  # type: ignore[attr-defined]
        elif action.dest == 'rest':
            action.completer = lambda parsed_args, **_: (  # type: ignore[attr-defined]
                SHELLS if parsed_args.command == COMPLETION else []
            )


def _add_completers(parser: argparse.ArgumentParser) -> None:
    from argcomplete.completers import FilesCompleter

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _add_completers(each)
        elif action.dest in _COMPLETERS:
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]
        elif 'FILE' in (action.metavar or ''):
            action.completer = FilesCompleter()  # type: ignore[attr-defined]


def _experiments(**_: object) -> list[str]:
    from trainer.experiment import Experiment
    from trainer.symbolic import registry

    return registry.available(Experiment)[0]


def _algorithms(**_: object) -> list[str]:
    from paxtune.algorithms import Algorithm
    from paxtune.config.named_components import classes_of

    return [*classes_of(Algorithm)]


def _schedulers(**_: object) -> list[str]:
    from paxtune.config.named_components import classes_of
    from paxtune.schedulers import Scheduler

    return ['none', *classes_of(Scheduler)]


def _studies(prefix: str, **_: object) -> list[str]:
    """Completes the directory of a study, and directories that contain studies."""
    head = os.path.dirname(prefix)
    found = list(_directories(head, prefix))
    return found if prefix else [*found, *_directories('runs', '')]


def _directories(head: str, prefix: str) -> Iterator[str]:
    folder = Path(head)
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        path = os.path.join(head, each.name)
        if each.is_dir() and path.startswith(prefix) and not each.name.startswith('.'):
            yield path if (each / 'study.db').exists() else f'{path}/'


_COMPLETERS: dict[str, Callable[..., list[str]]] = {
    'exp': _experiments,
    'algorithm': _algorithms,
    'scheduler': _schedulers,
    **dict.fromkeys(
        ('dir', 'study_dir', 'job_log_dir', 'prior_studies', 'learn_from', 'fork_study'), _studies
    ),
}
"""By the name of the flag, without dashes."""
