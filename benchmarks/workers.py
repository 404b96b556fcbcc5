"""Speed of a study with two workers, beside one that has the cores of one of them.

    python benchmarks/workers.py --quick --check

Both searches run the same trials of `lm.StdlibTunable`, of one structure, each trial on half of
this machine's cores. One search runs after the other, with one warm compilation cache. Goal: two
workers take at most 0.65 of the wall clock of one. `--quick` trains for fewer steps, so that
starting the processes weighs more; `--check` exits with 1 where the goal is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOAL = 0.65
TRIALS = 8
BLOCK = 'task.model.stack.layers[0]'
ONE_STRUCTURE = (
    'task.model.stack.repeats=2',
    f'{BLOCK}.attention.num_heads=2',
    f'{BLOCK}.feed_forward=FeedForward(hidden_dims=192)',
)


def seconds(workers: int, steps: int, directory: Path) -> float:
    """Wall-clock seconds of a search whose workers have half of the cores each."""
    cores = sorted(os.sched_getaffinity(0))
    half = cores[: len(cores) // 2 * workers] or cores
    command = [
        *['taskset', '-c', ','.join(map(str, half))],
        *[sys.executable, '-m', 'paxtune.search', '--exp=lm.StdlibTunable'],
        *[f'--workers={workers}', f'--num_trials={TRIALS}', '--algorithm=random_search'],
        *[f'--job_log_dir={directory / str(workers)}', '--set', f'train.num_train_steps={steps}'],
        *[f'train.evaluation.every={steps}', 'search.scheduler=null', *ONE_STRUCTURE],
    ]
    environment = {**os.environ, 'JAX_COMPILATION_CACHE_DIR': str(directory.parent / 'compiled')}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    steps = 30 if args.quick else 150
    with tempfile.TemporaryDirectory() as scratch:
        # What is compiled is compiled before anything is timed.
        seconds(2, 1, Path(scratch) / 'warm')
        taken = {workers: seconds(workers, steps, Path(scratch) / 'timed') for workers in (1, 2)}
    for workers, value in taken.items():
        print(f'{workers} workers, {TRIALS} trials of {steps} steps: {value:.1f} s')
    ratio = taken[2] / taken[1]
    print('RESULT ' + json.dumps({'two_to_one': round(ratio, 3), 'cores': os.cpu_count()}))
    return int(args.check and ratio > GOAL)


if __name__ == '__main__':
    sys.exit(main())
