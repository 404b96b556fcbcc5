"""Time of `paxtune.tune` of a fast function, beyond its trials.

    python benchmarks/function_start.py --check

20 trials of a function of two numbers take 50 ms each. They run in processes of their own. The
time of a process is that from its start to its end, with all imports, less one second of trials.

- *first*: the first process, which may read all libraries from the disk.
- *later*: the processes after it, with the median of some.
- *design*: a later process with quasi-random trials, which needs no model.

Goal: a later process takes at most 2 s beyond its trials. `--quick` has fewer processes; `--check`
exits with 1 where the goal is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRIALS, SECONDS = 20, 0.05
GOAL = 2.0
FUNCTION = f"""
import time
import pyglove as pg
import paxtune

def error(x, y):
    time.sleep({SECONDS})
    return (x - 0.3) ** 2 + y

space = {{'x': pg.floatv(0.0, 1.0), 'y': pg.floatv(0.0, 1.0)}}
paxtune.tune(error, space=space, num_trials={TRIALS}, objective='minimize', algorithm=%r)
"""


def seconds(algorithm: str) -> float:
    """Time of a process beyond its trials, in seconds."""
    given = {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
    began = time.monotonic()
    command = [sys.executable, '-c', FUNCTION % algorithm]
    subprocess.run(command, env=os.environ | given, check=True)
    return time.monotonic() - began - TRIALS * SECONDS


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    times = 1 if args.quick else 5
    found = {
        'first': seconds('default'),
        'later': statistics.median(seconds('default') for _ in range(times)),
        'design': statistics.median(seconds('quasi_random') for _ in range(times)),
    }
    for name, value in found.items():
        print(f'{name:8} {value:6.2f} s beyond {TRIALS} trials of {SECONDS * 1000:.0f} ms')
    print('RESULT ' + json.dumps({f'{name}_seconds': round(v, 2) for name, v in found.items()}))
    return int(args.check and found['later'] > GOAL)


if __name__ == '__main__':
    sys.exit(main())
