"""Time of `paxtune.tune` of a fast function, beyond its trials.

    python benchmarks/function_start.py --check

20 trials of a function of two numbers take 50 ms each. They run in processes of their own. A time
is that of `import paxtune` and the call of `paxtune.tune`, less one second of trials. The time of
the whole process stands beside it: it also has the start of Python, and PyGlove.

- *first*: the first process, which may read all libraries from the disk.
- *later*: the processes after it, with the median of some.
- *design*: later processes with quasi-random trials, which need no model.

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
FUNCTION = """
import sys
import time
import pyglove as pg
began = time.monotonic()
import paxtune

algorithm, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def error(x, y):
    time.sleep(seconds)
    return (x - 0.3) ** 2 + y

space = {'x': pg.floatv(0.0, 1.0), 'y': pg.floatv(0.0, 1.0)}
paxtune.tune(error, space=space, num_trials=count, objective='minimize', algorithm=algorithm)
print(time.monotonic() - began)
"""


def seconds(algorithm: str) -> tuple[float, float]:
    """Times of a call and of its process beyond the trials, in seconds."""
    given = {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
    began = time.monotonic()
    command = [sys.executable, '-c', FUNCTION, algorithm, str(TRIALS), str(SECONDS)]
    ended = subprocess.run(
        command, env=os.environ | given, check=True, stdout=subprocess.PIPE, text=True
    )
    process = time.monotonic() - began
    call = float(ended.stdout.split()[-1])
    return call - TRIALS * SECONDS, process - TRIALS * SECONDS


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    runs = {
        'first': [seconds('default')],
        'later': [seconds('default') for _ in range(3 if args.quick else 9)],
        'design': [seconds('quasi_random') for _ in range(1 if args.quick else 5)],
    }
    result: dict[str, float] = {}
    print(f'Seconds beyond {TRIALS} trials of {SECONDS * 1000:.0f} ms')
    print(f'{"":8} {"call":>6} {"process":>8}')
    for name, found in runs.items():
        call, process = map(statistics.median, zip(*found, strict=True))
        print(f'{name:8} {call:6.2f} {process:8.2f}')
        result |= {f'{name}_seconds': round(call, 2), f'{name}_process': round(process, 2)}
    print('RESULT ' + json.dumps(result))
    return int(args.check and result['later_seconds'] > GOAL)


if __name__ == '__main__':
    sys.exit(main())
