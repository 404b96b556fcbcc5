"""Time to look at studies of 10,000 trials, and to suggest one more trial.

    python benchmarks/large_study.py --check

There are three studies, each trial with three measurements of ten metrics. `ranges` has ranges and
choices, `choices` only choices (where random search must know the tried ones). `experiment` is a
language model, whose components import JAX. All are measured in fresh processes, and the least of
several times counts. Goals, on two busy cores: `studies list` and `show` under 5 s with the start
of Python, `suggest` with random search under 0.3 s, the first of a process too. For `experiment`,
`suggest` has no goal: it traces the model, which no number of trials makes slower.

`--quick` makes a tenth of the trials and measures once; `--check` exits with 1 where a goal is
missed.
"""

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paxtune.config.budget import Budget

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
COMMAND_GOAL, SUGGEST_GOAL = 5.0, 0.3
STEPS, NUM_METRICS = (40, 80, 160), 10
STUDIES = ('ranges', 'choices', 'experiment')

SUGGEST = """
import json, sys, time
from paxtune.storage.open_study import open_study
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.study import Study
times = []
with load_study(sys.argv[1], read_only=False) as study:
    for _ in range(2):
        start = time.perf_counter()
        trial = study.ask()
        times.append(time.perf_counter() - start)
        assert trial is not None
        study.tell(trial, {'eval/bits_per_byte': 1.0})
print(json.dumps(times))
"""


def value_of(name: str, num_trials: int) -> tuple[Any, Any]:
    """The search space of a study, and its search."""
    import pyglove as pg

    from paxtune import Search
    from search_spaces.lm import BITS_PER_BYTE, StdlibTunable

    if name == 'experiment':
        tunable = StdlibTunable()
        tunable.rebind({'search.budget.trials': num_trials})
        return tunable, None
    some = {f'choice_{i}': pg.oneof(list(range(4, 4 + 2 * i))) for i in range(2, 8)}
    names = [f'range_{i}' for i in range(4)]
    wide = {each: pg.oneof([k / 1000 for k in range(100)]) for each in names}
    ranges = {each: pg.floatv(1e-4, 1e-1, 'log') for each in names}
    value = pg.Dict(**some, **(wide if name == 'choices' else ranges))
    return value, Search(BITS_PER_BYTE, Budget(num_trials))


def ended(spec: Any, count: int) -> Iterator[Any]:
    """Trials that have ended, every tenth infeasible."""
    from paxtune.algorithms.encoding.sampling import draw
    from paxtune.objectives.measurement import Measurement
    from paxtune.search_space.parameters import to_parameters
    from paxtune.study.record import RunTime, Status, TrialRecord

    rng = random.Random(0)
    for number in range(count):
        measurements = []
        for step in STEPS:
            metrics = {f'eval/metric_{i}': rng.random() for i in range(1, NUM_METRICS)}
            metrics['eval/bits_per_byte'] = reward = rng.uniform(1, 8)
            measurements.append(Measurement(step, metrics, (reward,)))
        seconds = rng.uniform(1, 9)
        final = None if number % 10 == 9 else measurements[-1]
        yield TrialRecord(
            to_parameters(spec, draw(spec, rng)),
            status=Status.COMPLETED if final else Status.INFEASIBLE,
            ended=datetime.datetime.now(datetime.UTC),
            measurements=tuple(measurements),
            final=final,
            reason=None if final else f'the training loss is nan at step {number}',
            run_time=RunTime(seconds, devices=1),
        )


def make(directory: Path, name: str, count: int) -> None:
    """Makes a study."""
    from paxtune.storage.open_study import open_study

    value, search = value_of(name, count + 1000)
    with open_study(directory, value, search=search) as study:
        study.store.add_trials(list(ended(study.space.spec, count)))


def run(*arguments: str) -> tuple[float, str]:
    """Wall-clock seconds of a process, and its output."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(done.stderr)
    return seconds, done.stdout


def measured(directory: Path, repeats: int) -> dict[str, float]:
    """The seconds that each thing takes, at least."""
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        for command in ('list', 'show'):
            seconds, out = run('-m', 'paxtune.studies', command, str(directory))
            assert 'completed' in out, out
            times.setdefault(command, []).append(seconds)
        first, second = json.loads(run('-c', SUGGEST, str(directory))[1])
        times.setdefault('first suggest', []).append(first)
        times.setdefault('second suggest', []).append(second)
    return {what: min(seconds) for what, seconds in times.items()}


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    ratios = {'commands': 0.0, 'suggest': 0.0}
    for name in STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), name, 1000 if args.quick else 10_000)
            times = measured(Path(folder), 1 if args.quick else 5)
        print(f'{name:10}', '  '.join(f'{what} {least:.3f} s' for what, least in times.items()))
        slowest = max(times['list'], times['show']) / COMMAND_GOAL
        ratios['commands'] = max(ratios['commands'], slowest)
        if name != 'experiment':
            slowest = max(times['first suggest'], times['second suggest']) / SUGGEST_GOAL
            ratios['suggest'] = max(ratios['suggest'], slowest)
    print('RESULT ' + json.dumps({f'{k}_to_goal': round(v, 3) for k, v in ratios.items()}))
    return int(args.check and max(ratios.values()) >= 1)


if __name__ == '__main__':
    sys.exit(main())
