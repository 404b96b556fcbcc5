"""Time that a command takes to refuse bad input, beside an interpreter that only imports JAX.

    python benchmarks/refusal_time.py --quick --check

Goal: a refusal under three seconds on an idle two-core machine. `--quick` repeats less often;
`--check` exits with 1 where the goal is missed.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOAL_SECONDS = 3.0
COMMANDS = {
    'import jax': ['-c', 'import jax'],
    'unknown field': ['--set', 'task.learner.lerning_rate=1'],
    'wrong type': ['--set', 'train.num_train_steps=true'],
    'bad decision': ['--tune', 'task.learner.learning_rate=floatv(1)'],
}


def seconds(flags: list[str]) -> float:
    """Wall-clock seconds of one process."""
    search = ['-m', 'paxtune.search', '--exp=lm.StdlibTunable']
    arguments = flags if flags[0] == '-c' else [*search, *flags]
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    repeats = 3 if args.quick else 10
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):  # Interleaved, so that all see the same machine.
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    best = {name: min(measured) for name, measured in times.items()}
    for name, measured in times.items():
        print(f'{name:15} min {min(measured):.2f} s  median {sorted(measured)[repeats // 2]:.2f} s')
    slowest = max(value for name, value in best.items() if name != 'import jax')
    result = {'refusal_seconds': slowest, 'ratio_to_import_jax': slowest / best['import jax']}
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    return int(args.check and slowest >= GOAL_SECONDS)


if __name__ == '__main__':
    sys.exit(main())
