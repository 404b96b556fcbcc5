"""Shows studies, and changes them.

    python -m paxtune.studies list [ROOT]
    python -m paxtune.studies portfolio [ROOT …] --out=known.json
    python -m paxtune.studies show|trials|best|pareto|diff|lineage|export|curves DIR …
    python -m paxtune.studies add|confirm|import|retry|delete|recover DIR …
    python -m paxtune.studies weights|lm_eval|ask|tell DIR …
    python -m paxtune.studies stop DIR [TRIAL …]
    python -m paxtune.studies report DIR --out=report.html
    python -m paxtune.studies page DIR or ROOT

DIR is the --job_log_dir of a search. While the search runs, only `stop` and the commands that read
work. For a study in a service, give --vizier_endpoint=HOST:PORT --study=NAME in place of DIR. If
the experiment uses your own classes, name it with --exp, as in the search: its module is imported.
`… studies show --help` describes one command. Each command takes --json.
Exit codes: 0 done, 2 bad input.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from paxtune.service import study_location

# Each file registers its commands.
from paxtune.studies import base, changing, files, looking, page, report, weights  # noqa: F401
from trainer import command


def main(argv: Sequence[str] | None) -> int:
    """Runs the command; raises UserError for bad input."""
    is_in_service = any(
        each.partition('=')[0] in (study_location.FLAG, study_location.STORAGE_FLAG)
        for each in command.given(argv)
    )
    flags = parser(is_in_service)
    args, rest = flags.parse_known_args(argv)
    # Python 3.11 ends a list of trials, which may be empty, where the first flag comes.
    if rest and hasattr(args, 'trials') and all(text.isdecimal() for text in rest):
        args.trials += map(int, rest)
    elif rest:
        args.parser.error(f'unrecognized arguments: {" ".join(rest)}')

    args.where = study_location.from_flags(args)
    with study_location.readable(args.where, Path(args.dir) if hasattr(args, 'dir') else None):
        args.run(args)
    return 0


def parser(is_in_service: bool = False) -> argparse.ArgumentParser:
    """Makes the parser of the command's flags; without DIR where a service keeps the study."""
    flags = command.parser(__doc__)
    commands = flags.add_subparsers(required=True, metavar='COMMAND')
    for each in sorted(base.COMMANDS, key=lambda each: not each.is_view):
        each.add_to(commands, is_in_service)
    return flags


if __name__ == '__main__':
    command.run_command(main)
