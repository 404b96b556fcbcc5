"""The protocol between a shell and the command that it completes."""

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from trainer import command
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    import argparse

COMPLETION = 'completion'
"""The command that prints `script`."""

SHELLS = ('bash', 'zsh', 'fish')

_VARIABLE = '_ARGCOMPLETE'
"""Set where a shell asks for completions; the number of the word that the command begins with."""


def script(words: Sequence[str]) -> str:
    """Returns the script that makes a shell complete `paxtune`; raises UserError for others."""
    if len(words) != 1 or words[0] not in SHELLS:
        given = ' '.join(words) or 'nothing'
        raise UserError(f'completion: expected a shell: {", ".join(SHELLS)}, not {given}')

    from argcomplete.shell_integration import shellcode

    return shellcode(['paxtune'], shell=words[0])


def complete(commands: Collection[str], parser: 'argparse.ArgumentParser') -> None:
    """Answers a shell that asks for completions, and exits; does nothing in any other process.

    Args:
        commands: the names of the modules of `paxtune` that have a `parser`.
        parser: that of the first word.
    """
    if _VARIABLE not in os.environ:
        return
    # The shell shows nothing of what is printed, and a traceback is of no use to it.
    try:
        _complete(commands, parser)
    finally:
        os._exit(1)


def _complete(commands: Collection[str], parser: 'argparse.ArgumentParser') -> None:
    from argcomplete.completers import SuppressCompleter
    from argcomplete.finders import CompletionFinder
    from argcomplete.lexers import split_line

    from paxtune.completion.values import add_completers, add_words

    _, _, _, words, _ = split_line(os.environ['COMP_LINE'], int(os.environ['COMP_POINT']))
    first = int(os.environ[_VARIABLE])
    if len(words) > first and words[first] in commands:
        # The command is then the program, and its flags come after it.
        os.environ[_VARIABLE] = str(first + 1)
        module = command.module_of(f'paxtune.{words[first]}')
        parser = module.parser()
    else:
        add_words(parser, [*commands, COMPLETION], SHELLS)
    add_completers(parser)
    has_positionals = any(not action.option_strings for action in parser._actions)

    class Finder(CompletionFinder):
        """Describes no value: argcomplete shows 'None' in zsh for those of `--flag=value`."""

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
