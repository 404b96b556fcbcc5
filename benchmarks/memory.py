"""Memory of a search whose trials change in structure.

    python benchmarks/memory.py --check

`python -m paxtune.search` trains 200 tiny models, for four steps each. Depth, width, heads and the
width of feed-forward layers are random, so most trials compile programs of their own. After each
trial, the resident memory (RSS) of the process is read. The first 20 trials fill what a process
keeps, such as its compiled programs.

Goal: the median of the last 20 trials is less than 10 % above that of trials 11 to 20. `--quick`
has 12 trials, and compares the last 6 with trials 4 to 6. `--check` exits with 1 where the goal is
missed.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOAL, TRIALS, FIRST = 1.1, 200, 20
QUICK_TRIALS, QUICK_FIRST = 12, 6
PAGE = os.sysconf('SC_PAGE_SIZE')
EXPERIMENT = 'benchmarks.turnover.experiment.structures'


def measure(trials: int) -> list[float]:
    """Runs a search. Returns MiB after each trial."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(sys.executable, '-u', '-m', 'paxtune.search', f'--exp={EXPERIMENT}'),
            *('--algorithm=random_search', '--scheduler=none', f'--num_trials={trials}'),
            f'--job_log_dir={directory}/study',
        ]
        # Its compiled programs are not those of an earlier run.
        given = {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'XDG_CACHE_HOME': directory}
        with subprocess.Popen(
            command, env=os.environ | given, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            found = []
            for line in process.stdout:
                if ended := re.match(r'trial (\d+): (\w+)[;( ]', line):
                    if ended[2] == 'infeasible':
                        raise RuntimeError(line)
                    if ended[2] == 'completed':
                        found.append(resident(process.pid))
                        print(f'trial {ended[1]}: {found[-1]:.0f} MiB', file=sys.stderr)
    if process.returncode or len(found) != trials:
        raise RuntimeError(f'{len(found)} of {trials} trials, exit code {process.returncode}')
    return found


def resident(pid: int) -> float:
    """MiB of resident memory of a process."""
    return int(Path(f'/proc/{pid}/statm').read_text().split()[1]) * PAGE / 2**20


def growth(memory: Sequence[float], first: int) -> float:
    """The last `first` trials by the second half of the first ones."""
    return statistics.median(memory[-first:]) / statistics.median(memory[first // 2 : first])


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    began = time.monotonic()
    trials, first = (QUICK_TRIALS, QUICK_FIRST) if args.quick else (TRIALS, FIRST)
    memory = measure(trials)
    print('trials     MiB')
    for number in range(first, trials + 1, first):
        print(f'{number:6} {memory[number - 1]:7.0f}')
    ratio = growth(memory, first)
    print(f'{ratio - 1:+.1%} after the first {first} trials, {time.monotonic() - began:.0f} s')
    print('RESULT ' + json.dumps({'growth': round(ratio, 3), 'last_mib': round(memory[-1], 1)}))
    return int(args.check and ratio >= GOAL)


if __name__ == '__main__':
    sys.exit(main())
