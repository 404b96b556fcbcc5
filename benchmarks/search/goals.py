"""The goals of `benchmarks/search_quality.py`, and the ratios that they are about."""

from collections.abc import Mapping, Sequence

from benchmarks.search import regret, tables
from benchmarks.search.methods import PEERS

PARALLEL = {'default_parallel': (96, 1.15), 'default_parallel_64': (128, 1.2)}
"""Number of trials of each parallel run, and the largest ratio to one trial at a time."""

MAX_ON_TABLES, MAX_ON_A_TABLE = 0.8, 1.1
GOALS_AT, INTERVAL_AT = (25, 50, 100), 50
TABLES = tuple(name.removeprefix('imdb_') for name in tables.NAMES)


def to_peers(count: int, logs: Mapping[str, regret.Logs]) -> dict[str, float]:
    """The default by the best peer after a number of trials: on all problems, on tables, on each.

    Prints what it finds.

    Args:
        count: number of trials.
        logs: logarithms of regrets by method and problem.
    """
    peers = {name: logs[name] for name in PEERS if name in logs}
    ours = logs.get('default', {})
    found: dict[str, float] = {}
    if not ours or not peers:
        return found
    print(f'after {count}: default by the best of {", ".join(peers)}')
    rivals = list(peers.values())
    on_tables = {name: ours[name] for name in TABLES if name in ours}
    for label, some in (('peers', ours), ('peers_tables', on_tables)):
        if set(some).intersection(*[set().union(*rivals)]):
            ratios = regret.ratios(some, rivals)
            print(f'  {label}: overall {ratios.overall}, on each problem {ratios.each}')
            found[f'default_to_{label}_{count}'] = ratios.overall.value
            found[f'default_to_{label}_{count}_low'] = ratios.overall.low
            found[f'default_to_{label}_{count}_high'] = ratios.overall.high
            found[f'default_to_each_best_{label}_{count}'] = ratios.each.value
    for name in on_tables:
        if any(name in each for each in rivals):
            ratio = regret.on_problem(name, ours, rivals)
            print(f'  {name}: {ratio}')
            found[f'default_to_peers_{name}_{count}'] = ratio.value
    print(f'  behind on: {", ".join(regret.behind(ours, rivals)) or "none"}')
    return found


def missed(ratios: Mapping[str, float], goal_at: int, counts: Sequence[int]) -> list[str]:
    """The goals that are missed, in words.

    Args:
        ratios: of `to_peers`, and those of `PARALLEL`, as '<method>_to_sequential'.
        goal_at: the number of trials of the goal over all problems.
        counts: numbers of trials of the goals on the tables; empty without tables.

    Example:
        >>> missed({'default_to_peers_50_low': 0.5, 'default_to_peers_tables_25': 0.9}, 50, (25,))
        ['on the tables after 25: 0.9, at most 0.8']
    """
    found = []

    def check(key: str, most: float, text: str, absent: float) -> None:
        value = ratios.get(key, absent)
        if value > most:
            found.append(f'{text}: {value:.3g}, at most {most}')

    check(f'default_to_peers_{goal_at}_low', 1.0, f'lower end after {goal_at}', 2.0)
    for method, (_, most) in PARALLEL.items():
        check(f'{method}_to_sequential', most, method, 0.0)
    for count in counts:
        check(f'default_to_peers_tables_{count}', MAX_ON_TABLES, f'on the tables after {count}', 0)
        for name in TABLES:
            check(f'default_to_peers_{name}_{count}', MAX_ON_A_TABLE, f'{name} after {count}', 0)
        if count == INTERVAL_AT:
            key = f'default_to_peers_tables_{count}_high'
            check(key, 1.0, f'upper end on the tables after {count}', 0)
    return found
