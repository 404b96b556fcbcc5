"""Time of a suggestion for a stock Vizier client: `paxtune.serve` beside Vizier's own server.

    python benchmarks/vizier_protocol.py --check

One client, a process with google-vizier alone, asks both servers in turn: 50 trials of five
parameters on each, with their default algorithms, which are Gaussian processes. Then 50 more by
random search, where the protocol takes most of the time. Both servers keep their studies in memory,
or in an SQLite file (ours). A suggestion is timed from the call to its parameters; imports and
compilation count.

Goal: with the defaults, the median and the sum are at most a fifth of those of Vizier's server.
`--quick` runs 4 trials; `--check` exits with 1 where the goal is missed.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STOCK = ROOT / 'benchmarks' / 'load' / 'stock_vizier.py'
GOAL = 5.0
SERVERS = ('paxtune', 'vizier')


@contextlib.contextmanager
def started(*command: str) -> Iterator[str]:
    """Runs a server while entered. Yields the first line that it prints."""
    environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'PYTHONWARNINGS': 'ignore'}
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def measure(algorithm: str, trials: int, endpoints: list[str]) -> list[list[float]]:
    """Seconds of each suggestion of each server, in a client of its own."""
    rounds: list[list[float]] = []
    with (
        tempfile.TemporaryDirectory() as elsewhere,
        subprocess.Popen(
            [sys.executable, '-I', str(STOCK), 'run', algorithm, str(trials), *endpoints],
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            rounds.append(json.loads(line))
            print(
                f'{algorithm} {len(rounds)}', *(f'{each:.3f} s' for each in rounds[-1]), flush=True
            )
    assert process.returncode == 0
    return [list(column) for column in zip(*rounds, strict=True)]


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    trials = 4 if args.quick else 50
    result: dict[str, float] = {'trials': trials}
    with tempfile.TemporaryDirectory() as directory:
        ours = ['-m', 'paxtune.serve', f'--database={directory}/a.db', '--port=0', '--insecure']
        with started(*ours) as line, started('-I', str(STOCK), 'serve') as theirs:
            endpoints = [line.split(' at ')[1].split(' ')[0], theirs]
            for algorithm in ('DEFAULT', 'RANDOM_SEARCH'):
                found = measure(algorithm, trials, endpoints)
                for name, seconds in zip(SERVERS, found, strict=True):
                    median, most = statistics.median(seconds), max(seconds)
                    print(
                        f'{algorithm:14} {name:8} median {median:8.4f} s  longest {most:8.3f} s  '
                        f'sum {sum(seconds):8.2f} s',
                        flush=True,
                    )
                    result[f'{algorithm.lower()}_{name}_median_seconds'] = float(f'{median:.3g}')
                key = f'{algorithm.lower()}_times_vizier'
                mine, other = map(statistics.median, found)
                result[f'{key}_median'] = round(other / mine, 2)
                result[f'{key}_sum'] = round(sum(found[1]) / sum(found[0]), 2)
    print('RESULT ' + json.dumps(result))
    is_met = min(result['default_times_vizier_median'], result['default_times_vizier_sum']) >= GOAL
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
