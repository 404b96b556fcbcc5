"""Repeated suggestions of the default algorithm where the optimum lies at a bound.

    python benchmarks/optimum_at_bound.py --check

The sum of d numbers is minimized over [0, 1]^d, and over a logarithmic range, without a model to
train. A suggestion is repeated if all of its numbers are within 0.001 of the range of an earlier
one. There are 16, 16 and 24 trials in one, two and three dimensions, with five seeds: with all
results, and with the last trial pending, as with two workers.

Goal: no repeated suggestion, and the optimum itself is found. `--quick` has one seed and the two
smaller cases; `--check` exits with 1 where the goal is missed.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pyglove as pg

sys.path.insert(0, str(Path(__file__).parents[1]))

from paxtune.algorithms import Default, Observation, SuggestionContext
from paxtune.algorithms.encoding.unit_cube import FlatSpace

CASES = {1: 16, 2: 16, 3: 24}
RESOLUTION = 1e-3


def points(dimensions: int, is_log: bool, is_last_pending: bool, seed: int) -> np.ndarray:
    """Suggestions as unit values [trials, dimensions]."""
    number = pg.floatv(1e-4, 1.0, 'log') if is_log else pg.floatv(0.0, 1.0)
    spec = pg.dna_spec(pg.Dict({f'x{i}': number.clone() for i in range(dimensions)}))
    space, history = FlatSpace(spec), list[Observation]()

    def known() -> list[Observation]:
        if not is_last_pending or not history:
            return history
        *ended, last = history
        return [*ended, Observation(last.id, last.decisions, 'pending')]

    for id_ in range(1, CASES[dimensions] + 1):
        context = SuggestionContext(spec, seed, id_, known)
        decisions = Default().suggest(context).decisions
        score = -float(space.encode(decisions).sum())
        history.append(Observation(id_, decisions, 'completed', (score,)))
    return np.array([space.encode(each.decisions) for each in history])


def num_repeated(rows: np.ndarray) -> int:
    """Number of rows that are close to an earlier one."""
    apart = np.abs(rows[:, None] - rows[None]).max(axis=2)
    return int(np.any(np.tril(apart <= RESOLUTION, -1), axis=1).sum())


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    repeated, regret, suggestions, runs = 0, 0.0, 0, 0
    for dimensions in (1, 2) if args.quick else CASES:
        for is_log, is_last_pending in itertools.product((False, True), repeat=2):
            for seed in range(1 if args.quick else 5):
                rows = points(dimensions, is_log, is_last_pending, seed)
                own, best = num_repeated(rows), float(rows.sum(axis=1).min())
                scale = 'log' if is_log else 'linear'
                how = 'last pending' if is_last_pending else 'all results'
                print(f'{dimensions} {scale:6} {how:12} seed {seed}: {own} repeated, {best:.1e}')
                repeated, regret = repeated + own, max(regret, best)
                suggestions, runs = suggestions + len(rows), runs + 1
    found = {'suggestions': suggestions, 'distinct': suggestions - repeated, 'runs': runs}
    print(f'{repeated} repeated, largest regret {regret:.1e}')
    print('RESULT ' + json.dumps(found))
    return int(args.check and (repeated > 0 or regret > RESOLUTION))


if __name__ == '__main__':
    sys.exit(main())
