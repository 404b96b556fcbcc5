"""Wall clock to a stated loss, beside Optuna with Hyperband and Ray Tune with ASHA.

    python benchmarks/time_to_target.py --check

The model, the text and the space are those of `trial_turnover.py`, with trials of 160 steps and an
evaluation after every 20. All tuners run one trial at a time, at most 64:

- *paxtune*: `python -m paxtune.search` with its defaults, the scheduler included.
- *optuna*: TPE and `HyperbandPruner`, around a plain flax loop as users write it.
- *ray*: `ASHAScheduler` and random values, around the same loop.
- *optuna best*, *ray best*: one compiled step for all trials, programs on the disk, reused actors.

The target is fixed before: the best loss of 8 random trials that are trained to their ends, of a
seed that is not among those compared. Ours and the flax loop have such trials, and the target is
the larger of both losses. A time is that from the start of the process to the first evaluation at
the target. A run without one counts with its whole wall clock. The methods take turns, seed by
seed, and their compiled programs of earlier seeds are on the disk if they keep any.

Goal: ours reaches the target with each seed, and has the least median over five seeds. `--quick`
has one seed, at most 4 trials of 40 steps and only the peers as users write them. `--check` exits
with 1 where the goal is missed.
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

from benchmarks.trial_turnover import METHODS
from benchmarks.turnover.runs import OPTUNA, OURS, run, write_text
from benchmarks.turnover.setting import Setting

SEEDS, TARGET_SEED, TARGET_TRIALS = 5, 1000, 8
FULL = Setting(trials=64, steps=160, every=20, prunes=True)
QUICK = Setting(trials=4, steps=40, every=20, prunes=True)


@dataclasses.dataclass(frozen=True)
class Found:
    """One run.

    Attributes:
        seconds: to the target, or of the whole run.
        is_reached: whether the loss was reached.
        trials: that began.
    """

    seconds: float
    is_reached: bool
    trials: int


def target_of(setting: Setting, trials: int, base: Path) -> float:
    """The loss to reach."""
    drawn = dataclasses.replace(
        setting, trials=trials, seed=TARGET_SEED, search='random', prunes=False
    )
    best = []
    for tuner, is_best in ((OURS, False), (OPTUNA, True)):
        mine = dataclasses.replace(drawn, is_best_practice=is_best)
        logs = run(tuner, mine, base, f'target-{tuner}').trials
        best.append(min(log.losses[-1][2] for log in logs))
    print('best losses of random trials: ours {:.4f}, flax {:.4f}'.format(*best))
    return max(best)


def measure(
    setting: Setting, target: float, seeds: int, methods: Sequence[str], base: Path
) -> dict[str, list[Found]]:
    """Runs all methods with all seeds."""
    found: dict[str, list[Found]] = {name: [] for name in methods}
    for seed in range(seeds):
        for name in methods:
            tuner, is_best = METHODS[name]
            mine = dataclasses.replace(setting, seed=seed, is_best_practice=is_best, target=target)
            done = run(tuner, mine, base, f'{seed}-{name.replace(" ", "-")}')
            reached = done.seconds_to(target)
            seconds = done.seconds if reached is None else reached
            found[name].append(Found(seconds, reached is not None, len(done.trials)))
            print(f'seed {seed}: {name:11} {found[name][-1]}', file=sys.stderr)
    return found


def is_met(found: Mapping[str, Sequence[Found]]) -> bool:
    """Returns True if ours has reached the target each time, and before all others."""
    medians = {name: median(runs) for name, runs in found.items()}
    others = [value for name, value in medians.items() if name != OURS]
    return all(each.is_reached for each in found[OURS]) and medians[OURS] < min(others)


def median(runs: Sequence[Found]) -> float:
    """Seconds of a method."""
    return statistics.median(each.seconds for each in runs)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    setting, seeds = (QUICK, 1) if args.quick else (FULL, SEEDS)
    methods = [name for name, (_, is_best) in METHODS.items() if not (args.quick and is_best)]
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        write_text(base)
        target = target_of(setting, 2 if args.quick else TARGET_TRIALS, base)
        print(f'target {target:.4f}')
        found = measure(setting, target, seeds, methods, base)
    print('             median    by ours  reached  trials  seconds of each seed')
    ours = median(found[OURS])
    for name, runs in found.items():
        print(
            f'{name:12} {median(runs):6.1f} s {median(runs) / ours:8.2f}'
            f' {sum(each.is_reached for each in runs):5}/{len(runs)}'
            f' {statistics.median(each.trials for each in runs):7.0f}  '
            + ' '.join(f'{each.seconds:.1f}' + ' +'[not each.is_reached] for each in runs)
        )
    result = {name.replace(' ', '_'): round(median(runs), 2) for name, runs in found.items()}
    print('RESULT ' + json.dumps(result))
    return int(args.check and not is_met(found))


if __name__ == '__main__':
    sys.exit(main())
