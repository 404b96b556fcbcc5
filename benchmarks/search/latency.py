"""Times of suggestions, which `benchmarks/suggest_latency.py` measures in processes of their own.

A line of JSON is printed for each figure.
"""

import importlib
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.search.methods import Refused, own_algorithms
from benchmarks.search.problems import Instance, Parameter, Problem, Value, Values, drawn

PARAMETERS = (
    Parameter('rate', 'number', 1e-5, 1.0, log=True),
    Parameter('decay', 'number', 1e-6, 1e-1, log=True),
    Parameter('dropout', 'number', 0.0, 0.9),
    Parameter('momentum', 'number', 0.0, 1.0),
    Parameter('smoothing', 'number', 0.0, 0.5),
    Parameter('activation', 'category', values=('relu', 'gelu', 'tanh', 'silu')),
)


def objective(values: Values) -> float:
    """Some loss."""
    rate, decay = math.log10(float(values['rate'])), math.log10(float(values['decay']))
    rest = sum((float(values[name]) - 0.3) ** 2 for name in ('dropout', 'momentum', 'smoothing'))
    return (rate + 3) ** 2 + 0.1 * (decay + 4) ** 2 + rest + len(str(values['activation'])) / 10


def cost(values: Values) -> float:
    """A second number, which other values make small."""
    rest = sum((float(values[name]) - 0.7) ** 2 for name in ('dropout', 'momentum', 'smoothing'))
    return rest + len(str(values['activation'])) / 20


PROBLEM = Problem('latency', PARAMETERS, lambda seed: Instance(lambda: objective, 0.0, 1.0))


def measured(
    make: Any, name: str, sizes: Sequence[int], later: int, compiled: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Suggestions of one method.

    Args:
        make: begins a run of a method.
        name: of the method.
        sizes: how many trials there are before.
        later: how many more suggestions there are, each after another trial.
        compiled: grows whenever XLA compiles.

    Yields:
        For each size 'first' and 'later', in seconds, and how often XLA has compiled in each.
    """
    for size in sizes:
        rng = random.Random(size)
        searcher = make(name, PROBLEM, 0)
        for _ in range(size):
            values: dict[str, Value] = drawn(PARAMETERS, rng)
            searcher.add(values, objective(values))
        seconds, counts = [], []
        for _ in range(1 + later):
            before, start = len(compiled), time.perf_counter()
            suggested = searcher.ask()
            seconds.append(time.perf_counter() - start)
            counts.append(len(compiled) - before)
            searcher.tell(objective(suggested))
        yield {'method': name, 'size': size, 'seconds': seconds, 'compiled': counts}


def crowded(
    num_rewards: int, num_running: int, sizes: Sequence[int], later: int
) -> Iterator[dict[str, Any]]:
    """Suggestions of the default with one or two rewards, while other trials run.

    A trial ends after each suggestion, the oldest first.

    Yields:
        As `measured`; the seconds are those of the processor, which other work does not change.
    """
    import paxtune
    from benchmarks.search import ours

    rewards: list[Any] = [paxtune.MetricReward('minimize', name) for name in ('loss', 'cost')]
    reward = rewards[0] if num_rewards == 1 else paxtune.Objectives(rewards)
    for size in sizes:
        rng = random.Random(size)
        search = paxtune.Search(reward, paxtune.Budget(10_000), seed=0, prior=None)
        study = paxtune.open_study(None, ours.space(PROBLEM), search=search)
        running: list[Any] = []
        seconds = []
        for number in range(size + num_running + 1 + later):
            start = time.process_time()
            if number < size + num_running:
                values = drawn(PARAMETERS, rng)
                trial: Any = study.start(ours.decisions_of(PROBLEM, study.space.spec, values), {})
            else:
                trial = study.ask()
                seconds.append(time.process_time() - start)
            running.append(trial)
            if len(running) > num_running:
                ended = running.pop(0)
                values = ours.values_of(PROBLEM, ended.view.by_id)
                study.tell(ended, {'loss': objective(values), 'cost': cost(values)})
        rewards_text = f'{num_rewards} rewards, ' * (num_rewards > 1)
        name = f'default, {rewards_text}{num_running} running'
        yield {'method': name, 'size': size, 'seconds': seconds, 'compiled': [0, 0]}


def count_compilations() -> list[str]:
    """A list that grows whenever XLA compiles in this process."""
    import jax

    counted: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == '/jax/core/compile/backend_compile_duration':
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counted


def own_names() -> list[str]:
    """The algorithms of paxtune that need no arguments and can search the problem."""
    from benchmarks.search import ours

    found = []
    for name, kind in own_algorithms().items():
        try:
            ours.make(name, PROBLEM, 0)
            found.append(name)
        except (Refused, TypeError):
            print(f'left out: {kind.__name__}', file=sys.stderr)
    return found


def waits(num_trials: int, seconds: float) -> list[float]:
    """Seconds from the end of each trial to the beginning of the next, in a study with the GP.

    The study has run before, with trials that take no time, so that all is imported.
    """
    import pyglove as pg

    import paxtune
    from benchmarks.search import ours

    space = ours.space(PROBLEM)
    algorithm = own_algorithms()['gp_bandit'](num_initial=2)
    times: list[tuple[float, float]] = []

    def run(lasts: float, folder: str) -> None:
        def trial(values: Mapping[str, Any]) -> float:
            began = time.perf_counter()
            time.sleep(lasts)
            times.append((began, time.perf_counter()))
            return objective(dict(values))

        paxtune.tune(
            trial,
            space=pg.clone(space, deep=True),
            num_trials=num_trials,
            job_log_dir=folder,
            objective='minimize',
            algorithm=algorithm,
        )

    with tempfile.TemporaryDirectory(prefix='latency') as folder:
        run(0.0, f'{folder}/first')
        times.clear()
        run(seconds, f'{folder}/second')
    return [after[0] - before[1] for before, after in itertools.pairwise(times)]


def main() -> None:
    # What libraries print must not stand between the figures.
    figures = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)

    def put(figure: Any) -> None:
        print(json.dumps(figure), file=figures, flush=True)

    kind, arguments = sys.argv[1], json.loads(sys.argv[2])
    if kind == 'names':
        put(own_names())
    elif kind == 'waits':
        put(waits(**arguments))
    elif kind == 'crowded':
        for figure in crowded(**arguments):
            put(figure)
    else:
        module = importlib.import_module(f'benchmarks.search.{kind}')
        compiled = [] if kind == 'optuna_samplers' else count_compilations()
        if kind == 'ours':
            from trainer.runtime import compilation_cache

            compilation_cache.enable()  # As a study does.
        for name in arguments['methods']:
            sizes, later = arguments['sizes'], arguments['later']
            for figure in measured(module.make, name, sizes, later, compiled):
                put(figure)


if __name__ == '__main__':
    main()
