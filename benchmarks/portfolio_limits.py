"""Choice of the portfolio's two limits, with problems left out.

    python benchmarks/portfolio_limits.py

`Portfolio` suggests by a Gaussian process where its information is above the upper limit, by TPE
below the lower. Candidates: always TPE; 0.1 to 0.3 nats; 0.25 to 0.5, which are its own; 0.5 to 1;
always the process. Each has 6 seeds and 50 trials on all problems of
`benchmarks/search_quality.py`.

Each problem is left out once, and each family of tables (GRU, LSTM, IRNN, VRNN) with all of its
tables. The candidate with the least geometric mean of normalized regrets on the others is chosen.
Its regret on what was left out is compared with that of the portfolio's own limits. It is compared
with that of the best candidate there, too, which one cannot know.

Cells are kept in `--cache_dir`, as those of `search_quality.py`. A full run takes about two hours
on two cores. `--quick` has 3 problems, 2 seeds and 15 trials.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import search_quality
from benchmarks.search import flags as shared
from benchmarks.search import methods
from benchmarks.search.cells import Cell
from benchmarks.search.methods import LIMITED, Method
from benchmarks.search.problems import problems
from benchmarks.search.regret import Logs

ROOT = Path(__file__).parents[1]
CURRENT = 'limits_0.25_0.5'
FAMILIES = ('GRU', 'IRNN', 'LSTM', 'VRNN')


def families(names: Sequence[str]) -> dict[str, list[str]]:
    """The tables by the architecture in their names.

    Example:
        >>> families(['patch32_GRU64_bs128', 'mixed', 'patch32_GRU64'])
        {'GRU': ['patch32_GRU64_bs128', 'patch32_GRU64']}
    """
    found = {family: [name for name in names if f'_{family}' in name] for family in FAMILIES}
    return {family: its for family, its in found.items() if its}


def chosen(logs: Mapping[str, Logs], without: Sequence[str]) -> str:
    """The candidate with the least mean logarithm on all problems but some.

    Example:
        >>> a, b = {'x': np.zeros(2), 'y': np.ones(2)}, {'x': np.ones(2), 'y': np.zeros(2)}
        >>> chosen({'a': a, 'b': b}, ['x']), chosen({'a': a, 'b': b}, ['y'])
        ('b', 'a')
    """
    names = sorted(set.intersection(*(set(each) for each in logs.values())).difference(without))
    return min(logs, key=lambda candidate: _mean(logs[candidate], names))


def _mean(of_candidate: Logs, names: Sequence[str]) -> float:
    return float(np.mean([of_candidate[name].mean() for name in names]))


def show(
    logs: Mapping[str, Logs], kind: str, folds: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Prints each choice. Returns ratios of regrets on what was left out, over all folds."""
    choices, own, best = [], [], []
    print(f'\n{kind} left out: chosen, its regret there; that of each candidate')
    for fold, names in folds.items():
        choice = chosen(logs, names)
        there = {candidate: _mean(each, names) for candidate, each in logs.items()}
        choices.append(choice)
        own.append(there[choice] - there[CURRENT])
        best.append(there[choice] - min(there.values()))
        figures = ', '.join(f'{name} {math.exp(value):.3g}' for name, value in there.items())
        print(f'{fold:30} {choice:16} {math.exp(there[choice]):.3g}; {figures}')
    counts = {name: choices.count(name) for name in logs if name in choices}
    print(f'chosen: {counts}')
    return {
        f'{kind}_chosen_to_current': math.exp(np.mean(own)),
        f'{kind}_chosen_to_best': math.exp(np.mean(best)),
    }


def planned(names: Sequence[str], is_quick: bool) -> list[tuple[Method, Cell]]:
    """The cells of this run, the first seeds first."""
    made = []
    for method in LIMITED:
        key = f'{methods.fingerprint(method)}{methods.problems_fingerprint()}'
        seeds, trials = (2, 15) if is_quick else (method.seeds, method.trials)
        made += [
            (method, Cell(method.name, name, seed, trials, key))
            for name in names
            for seed in range(seeds)
        ]
    return sorted(made, key=lambda each: each[1].seed)


def main() -> int:
    args = shared.parsed(shared.parser(__doc__), None)
    all_ = problems(args.data_dir)
    names = [name for name in all_ if name in search_quality.QUICK or not args.quick]
    plan = planned(names, args.quick)
    num_failed = search_quality.run_missing(plan, args.data_dir, args.cache_dir)
    count = plan[0][1].trials
    logs = search_quality.regrets(search_quality.read(plan, args.cache_dir), all_, count)
    for candidate, each in logs.items():
        print(f'{candidate:16} {math.exp(_mean(each, sorted(each))):.3g} over {len(each)} problems')
    if num_failed:
        return 1
    found = show(logs, 'problem', {name: [name] for name in names})
    if len(names) > len(grouped := families(names)) > 1:
        found |= show(logs, 'family', grouped)
    print('RESULT ' + json.dumps({name: round(value, 4) for name, value in found.items()}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
