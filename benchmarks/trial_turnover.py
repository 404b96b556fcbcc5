"""Time of small trials beyond their steps, beside Optuna and Ray Tune with the same flax model.

    python benchmarks/trial_turnover.py --check

32 trials of about one second of steps: a byte-level model of 0.1M parameters on the sources of
Python's standard library, with two evaluations. Learning rate, weight decay and warm-up are
searched. All methods train one trial at a time, and all trials to their ends.

- *paxtune*: `python -m paxtune.search --scheduler=none` with its defaults, checkpoints included.
- *optuna*, *ray*: a plain flax loop as users write it. The objective makes the model and its
  compiled step. Optuna has TPE, and Ray Tune its random search in `tune.Tuner`.
- *optuna best*, *ray best*: their best practice. One compiled step takes the numbers as arguments
  and lives outside of the objective. JAX keeps compiled programs on the disk. Ray reuses actors.

Peers write no checkpoints. The methods take turns, in each repeat once. Wall clocks are those of
whole processes, in the median of the repeats; *first* is the first one, before any program is on
the disk. *Beyond* is the time between the ends of two trials, less steps and evaluations: the
median from the second trial on, of all repeats.

Goals: at most 0.3 s beyond; a third of the wall clock of each peer as users write it, and not more
than that of the best practice of either. `--quick` has 4 trials and one repeat, so that the start
counts. Its goals are 0.6 of Optuna's wall clock as users write it, and 1.15 of its best practice.
`--check` exits with 1 where a goal is missed. `--only=optuna` leaves out Ray Tune.

Seconds of CPUs stand beside the wall clock: other work on the machine changes them less.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.turnover.runs import OPTUNA, OURS, RAY, Run, run, write_text
from benchmarks.turnover.setting import Setting

BEYOND = 0.3
METHODS = {
    OURS: (OURS, False),
    OPTUNA: (OPTUNA, False),
    RAY: (RAY, False),
    f'{OPTUNA} best': (OPTUNA, True),
    f'{RAY} best': (RAY, True),
}
"""Tuner and whether it has its best practice, by name."""

LONG = {OPTUNA: 3.0, RAY: 3.0, f'{OPTUNA} best': 1.0, f'{RAY} best': 1.0}
SHORT = {OPTUNA: 1 / 0.6, f'{OPTUNA} best': 1 / 1.15}
"""The least wall clock of peers by ours, in a search of 32 trials and of 4."""


def measure(setting: Setting, repeats: int, peers: Sequence[str]) -> dict[str, list[Run]]:
    """Runs our method and those of the peers, which take turns."""
    methods = {name: each for name, each in METHODS.items() if each[0] in (OURS, *peers)}
    found: dict[str, list[Run]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        write_text(base)
        for repeat in range(repeats):
            for name, (tuner, is_best) in methods.items():
                mine = dataclasses.replace(setting, seed=repeat, is_best_practice=is_best)
                done = run(tuner, mine, base, f'{repeat}-{name.replace(" ", "-")}')
                require_same_trials(name, done, setting)
                found[name].append(done)
                clocks = f'{done.seconds:6.1f} s, {done.cpu_seconds:6.1f} of CPUs'
                print(f'repeat {repeat + 1}: {name:11} {clocks}', file=sys.stderr)
    return found


def require_same_trials(name: str, done: Run, setting: Setting) -> None:
    """Raises RuntimeError unless a run has trained all trials to their ends."""
    ends = [trial.losses[-1][1] for trial in done.trials if trial.losses]
    if ends != [setting.steps] * setting.trials:
        raise RuntimeError(f'{name}: trials end at steps {ends}, not all at {setting.steps}')


def figures(runs: Sequence[Run]) -> dict[str, float]:
    """The figures of a method."""
    trials = [trial for each in runs for trial in each.trials]
    return {
        'seconds': statistics.median(each.seconds for each in runs),
        'first': runs[0].seconds,
        'cpu': statistics.median(each.cpu_seconds for each in runs),
        'beyond': statistics.median(value for each in runs for value in each.beyond()),
        'steps': statistics.median(trial.step_seconds for trial in trials),
        'evaluations': statistics.median(trial.eval_seconds for trial in trials),
        'params': trials[0].num_params,
        'loss': statistics.median(trial.losses[0][2] for trial in trials),
    }


def ratios(found: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Wall clock of each peer by ours, in the median of the repeats."""
    ours = [each.seconds for each in found[OURS]]
    return {
        name: statistics.median(each.seconds / own for each, own in zip(runs, ours, strict=True))
        for name, runs in found.items()
        if name != OURS
    }


def missed(beyond: float, by_ours: Mapping[str, float], goals: Mapping[str, float]) -> list[str]:
    """Lists the goals that are missed."""
    found = [] if beyond <= BEYOND else [f'{beyond:.2f} s beyond steps, more than {BEYOND}']
    for name, goal in goals.items():
        if (ratio := by_ours.get(name, goal)) < goal:
            found.append(f'{name} takes {ratio:.2f} of our wall clock, less than {goal:.2f}')
    return found


def show(rows: Mapping[str, Mapping[str, float]], by_ours: Mapping[str, float]) -> None:
    """Prints the table."""
    names = 'wall clock   first     cpu  by ours  beyond   steps   evals  params  first loss'
    print(' ' * 12, names)
    for name, row in rows.items():
        print(
            f'{name:12} {row["seconds"]:8.1f} s {row["first"]:7.1f} {row["cpu"]:7.1f}'
            f' {by_ours.get(name, 1.0):8.2f}'
            f' {row["beyond"]:7.3f} {row["steps"]:7.3f} {row["evaluations"]:7.3f}'
            f' {row["params"]:7.0f} {row["loss"]:11.3f}'
        )


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--repeats', type=int, help='3, or 1 with --quick')
    flags.add_argument('--only', choices=(OPTUNA, RAY), help='one peer')
    args = flags.parse_args()
    repeats = args.repeats or (1 if args.quick else 3)
    setting = Setting(4 if args.quick else 32, steps=50, every=25)
    found = measure(setting, repeats, [args.only] if args.only else [OPTUNA, RAY])
    rows = {name: figures(runs) for name, runs in found.items()}
    if len({row['params'] for row in rows.values()}) > 1:
        raise RuntimeError('the methods train models of different sizes')
    by_ours = ratios(found)
    show(rows, by_ours)
    goals = missed(rows[OURS]['beyond'], by_ours, SHORT if args.quick else LONG)
    for text in goals:
        print(f'missed: {text}')
    result = {f'{name}_seconds'.replace(' ', '_'): row['seconds'] for name, row in rows.items()}
    result |= {f'{name}_cpu_seconds'.replace(' ', '_'): row['cpu'] for name, row in rows.items()}
    result['paxtune_beyond'] = rows[OURS]['beyond']
    result |= {f'{name}_by_ours'.replace(' ', '_'): ratio for name, ratio in by_ours.items()}
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    return int(args.check and bool(goals))


if __name__ == '__main__':
    sys.exit(main())
