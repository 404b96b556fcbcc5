"""The file of a portfolio: good decisions of the studies below directories."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paxtune.storage.open_study import load_study
from paxtune.storage.similar_studies import databases
from paxtune.study.portfolio import portfolio, trials_of
from trainer.command import say
from trainer.symbolic.errors import UserError, in_short


def portfolio_of(roots: Sequence[str], count: int) -> dict[str, Any]:
    """Makes the portfolio of all studies in directories and below, as JSON.

    A study that cannot be read, or has too little to say, is skipped with a line.

    Args:
        roots: the directories.
        count: the number of decisions at most.

    Raises:
        UserError: there is no such directory, or no study is left.
    """
    with contextlib.ExitStack() as held:
        found = {}
        for root in roots:
            if not Path(root).is_dir():
                raise UserError(f'{root}: there is no such directory: name one of studies')
            for path in databases(Path(root)):
                try:
                    study = held.enter_context(load_study(path.parent))
                    trials_of(study)
                # The file may be of any version, or anything else.
                except Exception as error:
                    say(f'Left out: {path.parent}: {in_short(error)}', sys.stderr)
                else:
                    found[str(path.parent)] = study
        if not found:
            raise UserError(f'There are no studies to learn from in {", ".join(roots)} and below.')
        return {'portfolio': portfolio([*found.values()], count), 'studies': [*found]}
