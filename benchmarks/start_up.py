"""Time until a search computes: from a command to its first train step.

    python benchmarks/start_up.py --check

- *help*: `python -m paxtune.search --help`, the whole process.
- *cold*: from the start of a search of `lm.StdlibTunable` to the end of its first train step, with
  an empty cache of compiled programs.
- *warm*: the same with the programs of an earlier run.
- *worker*: from the start of a worker process until it asks for its first trial (`start_up` in the
  profile of its search).

Goals, in the median: 1 s, 8 s, 4 s and 3 s on two idle cores. `--quick` repeats less often;
`--check` exits with 1 where a goal is missed. The load of the machine stands beside the times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOALS = {'help': 1.0, 'cold': 8.0, 'warm': 4.0, 'worker': 3.0}
SEARCH = ['--exp=lm.StdlibTunable', '--num_trials=1']
TO_FIRST_STEP = """
import os
import runpy
import sys

from trainer.runtime import step_events

step_events.notify = lambda *_: os._exit(42)
runpy.run_module('paxtune.search', run_name='__main__', alter_sys=True)
"""


def seconds(
    arguments: list[str], variables: Mapping[str, str] | None = None, code: int = 0
) -> float:
    """Wall-clock seconds of a process of Python; raises RuntimeError at another exit code."""
    given = {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)} | dict(variables or {})
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | given,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = time.monotonic() - began
    if done.returncode != code:
        raise RuntimeError(f'{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}')
    return passed


def first_step(directory: str, cache: str) -> float:
    """Seconds of a new search to its first train step."""
    run = tempfile.mkdtemp(dir=directory)
    arguments = ['-c', TO_FIRST_STEP, *SEARCH, f'--job_log_dir={run}']
    return seconds(arguments, {'JAX_COMPILATION_CACHE_DIR': cache}, code=42)


def worker(directory: str, cache: str) -> float:
    """Seconds of a worker process until it asks for a trial."""
    run = tempfile.mkdtemp(dir=directory)
    flags = ['--smoke', '--workers=1', f'--job_log_dir={run}']
    variables = {'JAX_COMPILATION_CACHE_DIR': cache}
    seconds(['-m', 'paxtune.search', *SEARCH, *flags], variables)
    show = ['-m', 'paxtune.studies', 'show', run, '--json']
    printed = subprocess.run([sys.executable, *show], cwd=ROOT, capture_output=True, check=True)
    return float(json.loads(printed.stdout)['profile']['start_up'])


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    times: dict[str, list[float]] = {name: [] for name in GOALS}
    with tempfile.TemporaryDirectory() as directory:
        warm = tempfile.mkdtemp(dir=directory)
        first_step(directory, warm)  # Fills the cache, and that of the disk.
        for _ in range(1 if args.quick else 5):  # Interleaved: all see the same machine.
            times['help'].append(seconds(['-m', 'paxtune.search', '--help']))
            times['cold'].append(first_step(directory, tempfile.mkdtemp(dir=directory)))
            times['warm'].append(first_step(directory, warm))
            times['worker'].append(worker(directory, warm))
    found = {name: statistics.median(measured) for name, measured in times.items()}
    for name, measured in times.items():
        rendered = (
            f'median {found[name]:5.2f} s  min {min(measured):5.2f} s  goal {GOALS[name]:.0f} s'
        )
        print(f'{name:7} {rendered}')
    print(f'load of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}')
    print('RESULT ' + json.dumps({f'{name}_seconds': round(s, 3) for name, s in found.items()}))
    return int(args.check and any(found[name] > goal for name, goal in GOALS.items()))


if __name__ == '__main__':
    sys.exit(main())
