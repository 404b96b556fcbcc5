"""Runs the commands of paxtune: `paxtune COMMAND` is `python -m paxtune.COMMAND`.

    paxtune search --exp=lm.StdlibTunable --num_trials=16
    paxtune search --help
    eval "$(paxtune completion bash)"

`completion` prints a script that lets a shell complete commands, flags and their values.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import paxtune
from paxtune import completion
from trainer import command
from trainer.symbolic.errors import UserError, nearest

COMMANDS = {
    'search': 'searches the decisions of an experiment',
    'train': 'trains one trial, or an experiment whose decisions are given',
    'space': 'prints the search space of an experiment, and its costs',
    'studies': 'shows studies, and changes them',
    'serve': 'serves studies to many workers',
    'simulate': 'compares schedulers on recorded learning curves',
    'scale': 'transfers settings from small models to large ones',
    'supernet': 'ranks architectures with shared weights, and trains the best',
}
"""The modules of `paxtune` that are commands, with a line of help each."""


def main(argv: Sequence[str] | None) -> int:
    """Runs the command that the first word names; raises UserError for bad input."""
    args = parser().parse_args(argv)
    if args.command == completion.COMPLETION:
        print(completion.script(args.rest))
        return 0
    if args.command not in COMMANDS:
        names = [*COMMANDS, completion.COMPLETION]
        hint = nearest(args.command, names) or f'There are {", ".join(names)}.'
        raise UserError(f'paxtune has no command {args.command!r}. {hint}')
    # As `python -m` does: usage and messages name the command.
    sys.argv[:] = [f'paxtune {args.command}', *args.rest]
    code: int = command.module_of(f'paxtune.{args.command}').main(args.rest)
    return code


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the first word; the command parses the rest."""
    shells = ', '.join(completion.SHELLS)
    helps = {**COMMANDS, completion.COMPLETION: f'prints the script of a shell: {shells}'}
    lines = [f'  {name:12}{line}' for name, line in helps.items()]
    flags = argparse.ArgumentParser(
        'paxtune',
        description=__doc__,
        epilog='\n'.join(['commands:', *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags.add_argument('--version', action='version', version=f'paxtune {paxtune.__version__}')
    flags.add_argument('command', metavar='COMMAND', help='one of the commands below')
    flags.add_argument(
        'rest', nargs=argparse.REMAINDER, metavar='…', help='its flags; --help shows them'
    )
    return flags


def console() -> None:
    """Runs the console command `paxtune`."""
    if not sys.flags.safe_path:
        # Experiments in the current directory are found, as with `python -m`.
        sys.path.insert(0, os.getcwd())
    _run()


def _run() -> None:
    completion.complete(COMMANDS, parser())
    command.run_command(main)


if __name__ == '__main__':
    _run()
