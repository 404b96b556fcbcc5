"""Compares policies on recorded learning curves, without any training.

    python -m paxtune.studies curves runs/lm.StdlibTunable --out=curves.json
    python -m paxtune.simulate --table=curves.json --policy=none,asha,median --workers=8

runs studies in a simulator, with simulated workers and a simulated clock: the same policies and
algorithms, on what was recorded. A table may also be an .npz file with the arrays hp_names [d],
hp [n, d] and a metric [n, t], such as those of TaskSet; then --metric and --goal say what is good.
Exit codes: 0 done, 2 bad input.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from paxtune.printing import FORMATS
from trainer import command
from trainer.errors import UserError

if TYPE_CHECKING:
    from paxtune.algorithms import Algorithm
    from paxtune.policies import Policy
    from paxtune.simulation.table import CurveTable
    from trainer.component import Component

    C = TypeVar('C', bound=Component)


def main(argv: Sequence[str] | None) -> int:
    """Runs the command.

    Raises:
        UserError: bad input.
    """
    args = _flags().parse_args(argv)

    from paxtune.printing import write
    from paxtune.simulation.comparison import compare, document
    from paxtune.simulation.files import read

    table = read(args.table, args.metric, args.goal)
    algorithm = _algorithm(args.algorithm, table)
    policies = {name: _policy(name, table) for name in _split(args.policy)}
    num_trials = args.num_trials or min(64, len(table.rows))
    found = compare(
        table,
        policies,
        algorithm,
        num_trials=num_trials,
        workers=args.workers,
        seeds=args.seeds,
    )
    what = (
        f'{num_trials} of {len(table.rows)} trials, {args.workers} workers, {args.seeds} seeds; '
        f'{table.metric}, {table.goal}d: {table.best:.6g} is the best there'
    )
    write(document(table, found, what), args.format)
    return 0


def _flags() -> argparse.ArgumentParser:
    flags = command.parser(__doc__)
    flags.add_argument(
        '--table', required=True, metavar='FILE', help='what studies curves wrote, or .npz'
    )
    flags.add_argument(
        '--policy',
        default='none,asha,promoting_asha,median_stopping',
        metavar='POLICY,…',
        help="which to compare: none, asha, median_stopping, 'Asha(min_budget=3)', …; one that is "
        'only named has its lowest rung at a 27th of the longest trial',
    )
    flags.add_argument('--algorithm', default='random_search', help='as in a search')
    flags.add_argument('--workers', type=_count, default=1, help='how many trials run at once')
    flags.add_argument(
        '--num_trials', type=_count, help='in each run; 64 by default, or as many as there are'
    )
    flags.add_argument('--seeds', type=_count, default=20, help='runs of each policy; 20')
    flags.add_argument('--metric', help='of an .npz file: the array that is the reward')
    flags.add_argument('--goal', choices=('minimize', 'maximize'), help='of an .npz file')
    flags.add_argument('--format', choices=FORMATS, default='table')
    return flags


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'expected a number from 1 on, not {text}')
    return number


def _split(text: str) -> list[str]:
    """What commas outside of brackets divide.

    Example:
        >>> _split('none,Asha(min_budget=3, reduction_factor=4), median')
        ['none', 'Asha(min_budget=3, reduction_factor=4)', 'median']
    """
    parts, depth = [''], 0
    for letter in text:
        depth += (letter in '([{') - (letter in ')]}')
        if letter == ',' and depth == 0:
            parts.append('')
        else:
            parts[-1] += letter
    return list(dict.fromkeys(part.strip() for part in parts))


def _policy(text: str, table: 'CurveTable') -> 'Policy | None':
    """The policy of that name, its lowest rung chosen by the table; None for 'none'."""
    from paxtune import policies
    from paxtune.named_parts import classes_by_name, spelled
    from paxtune.policies.rungs import first_rung

    if text == 'none':
        return None
    classes = classes_by_name(policies, policies.Policy)
    longest = max(row.steps for row in table.rows)
    steps = (step for row in table.rows for step in row.spent['steps'])
    known = {'min_budget': first_rung(steps, longest)}
    return _component('--policy', spelled('--policy', text, classes, known), policies.Policy)


def _algorithm(text: str, table: 'CurveTable') -> 'Algorithm':
    """The algorithm of that name.

    Raises:
        UserError: there is none, or it cannot search the table's space.
    """
    from paxtune import algorithms
    from paxtune.algorithms import dotted
    from paxtune.named_parts import classes_by_name, spelled

    classes = classes_by_name(algorithms, algorithms.Algorithm)
    found = _component('--algorithm', spelled('--algorithm', text, classes), algorithms.Algorithm)
    if isinstance(found, algorithms.DnaGenerator | algorithms.VizierDesigner):
        dotted.import_named(found.maker)  # As in a search: a person has named it.
    found.check_space(table.spec, 1)
    return found


def _component(flag: str, text: str, kind: 'type[C]') -> 'C':
    from trainer import literals

    found = literals.parse(text, f'{flag}={text}')
    if not isinstance(found, kind):
        raise UserError(f'{flag}={text}: expected one of {kind.__name__.lower()}s, by its name')
    return found


if __name__ == '__main__':
    command.run_command(main)
