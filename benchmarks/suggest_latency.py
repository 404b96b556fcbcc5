"""Time of a suggestion, beside stock Vizier and Optuna's samplers.

    python benchmarks/suggest_latency.py --check

There are 10, 25, 50, 100 and 1,000 trials before, drawn at random, of a space of five ranges and
one choice. The methods are paxtune's algorithms that can search it, Optuna's TPE and Gaussian
process, and Vizier's default designer, all with their defaults. Each makes a first suggestion with
these trials, compilation included. Some later ones follow, each after another trial; their median
is given. The Gaussian process and the default have processes of their own, one after
another. Programs that others compile are kept on disk, in a directory that is empty at first.
Vizier takes 8 s a suggestion, so it is asked
less often, and not with 1,000 trials.

The default makes more suggestions with two rewards, and while 64 trials run: 50, 100 and 200 trials
have ended then. Their seconds are those of the processor.

What XLA compiles is counted: the Gaussian process compiles nothing. And a study of it runs with
trials of 3 s: a worker waits from the end of one to the beginning of the next.

Goals: the Gaussian process is at least 4 times as fast as stock Vizier with 10 and 25 trials, 2.5
times with 100. No worker waits for 0.2 s. With two rewards, or while 64 trials run, a suggestion
takes at most 0.5 s.

Optuna is installed into `.venv-search` when this is first run. `--quick` has 10 and 25 trials only;
`--check` exits with 1 where a goal is missed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.environments import python_of

ROOT = Path(__file__).parents[1]
WORKER = ROOT / 'benchmarks' / 'search' / 'latency.py'
GP = 'gp_bandit'
GOALS = {10: 4.0, 25: 4.0, 100: 2.5}
WAIT_GOAL, CROWDED_GOAL = 0.2, 0.5
CROWDED = ((2, 0), (1, 64))
"""Numbers of rewards and of running trials."""


class Bench:
    """Runs processes that measure, with one directory for what they compile."""

    def __init__(self, compiled: str) -> None:
        """Starts nothing yet.

        Args:
            compiled: an empty directory.
        """
        self._compiled = compiled
        self._environment = os.environ | {
            'JAX_PLATFORMS': 'cpu',
            'PYTHONWARNINGS': 'ignore',
            'TF_CPP_MIN_LOG_LEVEL': '3',
        }

    def ask(self, kind: str, python: Path | None = None, **arguments: Any) -> list[Any]:
        """The figures that a process gives."""
        if kind == 'stock_vizier':  # As its service does.
            changed = {'JAX_ENABLE_X64': 'True'}
        else:
            changed = {'JAX_COMPILATION_CACHE_DIR': self._compiled}
        done = subprocess.run(
            [str(python or sys.executable), str(WORKER), kind, json.dumps(arguments)],
            cwd=ROOT,
            env=self._environment | changed,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


Figures = dict[tuple[str, int], float]
"""Seconds of a later suggestion, by the name of the method and how many trials there were."""


def show(figures: list[Any]) -> Figures:
    """Prints figures. Returns what later suggestions take."""
    found: Figures = {}
    for each in figures:
        name, size = each['method'], each['size']
        first, *later = each['seconds']
        found[name, size] = statistics.median(later)
        print(
            f'{name:30} {size:5} trials  first {first:8.3f} s  later {found[name, size]:8.4f} s'
            f'  compiled {each["compiled"][0]:3} {max(each["compiled"][1:]):3}',
            flush=True,
        )
    return found


def measure(bench: Bench, names: list[str], is_quick: bool) -> Figures:
    """All suggestions."""
    sizes = [10, 25] if is_quick else [10, 25, 50, 100, 1000]
    later: dict[str, Any] = {'sizes': sizes, 'later': 3 if is_quick else 5}
    alone = [name for name in (GP, 'default') if name in names]
    others = [name for name in names if name not in alone]
    found = show(bench.ask('ours', methods=others, **later))
    for name in alone:
        found |= show(bench.ask('ours', methods=[name], **later))
    optuna = ['optuna_tpe', 'optuna_gp']
    found |= show(bench.ask('optuna_samplers', python_of('search'), methods=optuna, **later))
    few = later | {'sizes': sizes[:4], 'later': 1 if is_quick else 2}
    found |= show(bench.ask('stock_vizier', methods=['stock_vizier'], **few))
    return found


def longest_crowded(bench: Bench, is_quick: bool) -> float:
    """Longest median of suggestions with two rewards, or while 64 trials run, in seconds."""
    arguments: dict[str, Any] = {'sizes': [50] if is_quick else [50, 100, 200], 'later': 5}
    found: Figures = {}
    for rewards, running in CROWDED:
        found |= show(bench.ask('crowded', num_rewards=rewards, num_running=running, **arguments))
    return max(found.values())


def longest_wait(bench: Bench, is_quick: bool) -> float:
    """Longest wait of a worker, in seconds, where a trial takes 3 s."""
    (gaps,) = bench.ask('waits', num_trials=6 if is_quick else 12, seconds=3.0)
    print(f'between trials: median {statistics.median(gaps):.3f} s, longest {max(gaps):.3f} s')
    return max(gaps)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    with tempfile.TemporaryDirectory(prefix='suggest_latency') as compiled:
        bench = Bench(compiled)
        (names,) = bench.ask('names')
        found = measure(bench, names, args.quick)
        result: dict[str, Any] = {}
        for size in GOALS:
            if (GP, size) in found and ('stock_vizier', size) in found:
                ratio = found['stock_vizier', size] / found[GP, size]
                result[f'times_stock_vizier_{size}'] = round(ratio, 2)
        for (name, size), seconds in found.items():
            if size == max(each for _, each in found):
                result[f'{name}_seconds_{size}'] = float(f'{seconds:.3g}')
        if GP in names:
            result['longest_wait_seconds'] = round(longest_wait(bench, args.quick), 4)
            result['longest_crowded_seconds'] = round(longest_crowded(bench, args.quick), 4)
        else:
            print(f'left out: {GP}, which paxtune does not have')
    print('RESULT ' + json.dumps(result))
    is_met = (
        result.get('longest_wait_seconds', math.inf) < WAIT_GOAL
        and result.get('longest_crowded_seconds', math.inf) <= CROWDED_GOAL
        and all(
            result[name] >= goal
            for size, goal in GOALS.items()
            if (name := f'times_stock_vizier_{size}') in result
        )
    )
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
