"""Time to look at studies of 10,000 trials, and to make one more trial in studies of up to 50,000.

    python benchmarks/large_study.py --check

For looking, there are three studies, each trial with three measurements of ten metrics. `ranges`
has ranges and choices, `choices` only choices (where random search must know the tried ones).
`experiment` is a language model, whose components import JAX. All are measured in fresh processes,
and the least of several times counts. Goals, on two busy cores: `studies list` and `show` under 5 s
with the start of Python, `suggest` with random search under 0.3 s, the first of a process too. For
`experiment`, `suggest` has no goal: it traces the model, which no number of trials makes slower.

For one more trial, a study of a function in a directory begins with 100, 1,000, 5,000 or 50,000
ended trials, and runs some more with random search. Goals: a trial of the largest study takes at
most 1.5 times the processor time of one of the smallest, and at most 20 ms on a disk. There, each
algorithm that is a default suggests in at most 0.5 s of processor time, from the second suggestion
of a process on: the first also reads all trials.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paxtune.config.budget import Budget

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
COMMAND_GOAL, SUGGEST_GOAL = 5.0, 0.3
GROWTH_GOAL, WALL_GOAL, MANY_GOAL = 1.5, 0.020, 0.5
SIZES, ROUNDS = (100, 1000, 5000, 50_000), 3
STEPS, NUM_METRICS = (40, 80, 160), 10
STUDIES = ('ranges', 'choices', 'experiment')

SUGGEST = """
import json, sys, time
from paxtune.storage.open_study import load_study
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

TRIALS = """
import json, statistics, sys, time
import pyglove as pg
from paxtune import load_study, tune
WARM_UP, MEASURED = 10, 40
names = [f'x{i}' for i in range(4)]
space = {name: pg.floatv(1e-4, 1e-1, 'log') for name in names}
space |= {'kind': pg.oneof(['a', 'b', 'c']), 'width': pg.oneof([8, 16, 32, 64])}
moments = []

def note(study, trial):
    moments.append((time.process_time(), time.perf_counter()))

def search(count):
    tune(
        lambda kind, width, **x: sum(x.values()) + width,
        space=space, objective='minimize', num_trials=count, job_log_dir=sys.argv[1],
        algorithm='random_search', seed=0, callbacks=[note],
    ).close()

if sys.argv[2] == 'begin':
    search(1)
else:
    search(int(sys.argv[2]) + WARM_UP + MEASURED)
    pairs = list(zip(moments[WARM_UP:], moments[WARM_UP + 1:]))
    print(json.dumps([statistics.median(b[i] - a[i] for a, b in pairs) for i in (0, 1)]))
"""

DEFAULTS = """
import json, sys, time
from paxtune.algorithms import NSGA2, Portfolio, QuasiRandom, RegularizedEvolution
from paxtune import load_study
times = {}
with load_study(sys.argv[1]) as study:
    number = study.trials[-1].id + 1
    for algorithm in (Portfolio(), QuasiRandom(), RegularizedEvolution(), NSGA2()):
        for repeat in range(3):
            start = time.process_time()
            algorithm.suggest(study.suggester.context(number))
            times[type(algorithm).__name__] = time.process_time() - start
print(json.dumps(times))
"""


def value_of(name: str, num_trials: int) -> tuple[Any, Any]:
    """The search space of a study, and its search."""
    import pyglove as pg

    from paxtune import Search
    from paxtune.algorithms import RandomSearch
    from search_spaces.lm import BITS_PER_BYTE, StdlibTunable

    if name == 'experiment':
        tunable = StdlibTunable()
        tunable.rebind({'search.budget.trials': num_trials, 'search.algorithm': RandomSearch()})
        return tunable, None
    some = {f'choice_{i}': pg.oneof(list(range(4, 4 + 2 * i))) for i in range(2, 8)}
    names = [f'range_{i}' for i in range(4)]
    wide = {each: pg.oneof([k / 1000 for k in range(100)]) for each in names}
    ranges = {each: pg.floatv(1e-4, 1e-1, 'log') for each in names}
    value = pg.Dict(**some, **(wide if name == 'choices' else ranges))
    return value, Search(BITS_PER_BYTE, Budget(num_trials), RandomSearch())


def ended(
    spec: Any, count: int, reward: str = 'eval/bits_per_byte', steps: Sequence[int] = STEPS
) -> Iterator[Any]:
    """Trials that have ended, every tenth infeasible."""
    from paxtune.algorithms.encoding.sampling import draw
    from paxtune.objectives.measurement import Measurement
    from paxtune.search_space.parameters import to_parameters
    from paxtune.study.record import RunTime, Status, TrialRecord

    rng = random.Random(0)
    for number in range(count):
        measurements = []
        for step in steps:
            several = range(1, NUM_METRICS if len(steps) > 1 else 1)
            metrics = {f'eval/metric_{i}': rng.random() for i in several}
            metrics[reward] = value = rng.uniform(1, 8)
            measurements.append(Measurement(step, metrics, (value,)))
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


def grown(folder: Path, size: int) -> Path:
    """Makes a study of a function with some ended trials."""
    from paxtune import load_study

    directory = folder / str(size)
    run('-c', TRIALS, str(directory), 'begin')
    with load_study(directory, read_only=False) as study:
        study.store.add_trials(list(ended(study.space.spec, size - 1, 'objective', (1,))))
    return directory


def growth(sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Prints the times of one more trial, and of suggestions; returns their shares of the goals."""
    least: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        places = {size: grown(Path(folder), size) for size in sizes}
        have = dict.fromkeys(sizes, 0)
        for _ in range(rounds):
            for size in sizes:  # Side by side: the load of the machine changes.
                times = json.loads(run('-c', TRIALS, str(places[size]), str(size + have[size]))[1])
                have[size] += 50
                least[size] = list(map(min, times, least.get(size, times)))
        suggested = json.loads(run('-c', DEFAULTS, str(places[sizes[-1]]))[1])
    first = least[sizes[0]][0]
    print(f'{"trials":>10}  CPU a trial  ratio  wall a trial')
    for size, (cpu, wall) in least.items():
        print(f'{size:10}  {1e3 * cpu:8.1f} ms  {cpu / first:5.2f}  {1e3 * wall:9.1f} ms')
    print(f'suggest, {sizes[-1]} trials:', *(f'{k} {v:.3f} s' for k, v in suggested.items()))
    cpu, wall = least[sizes[-1]]
    return {
        'growth': cpu / first / GROWTH_GOAL,
        'wall': wall / WALL_GOAL,
        'suggest_of_many': max(suggested.values()) / MANY_GOAL,
    }


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    ratios = {'commands': 0.0, 'suggest': 0.0}
    ratios |= growth(SIZES[:-1] if args.quick else SIZES, 1 if args.quick else ROUNDS)
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
