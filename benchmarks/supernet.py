"""Ranking of architectures by a supernet, against trials that are trained alone.

    python benchmarks/supernet.py --check

`nas.StdlibKinds` with width 32, rows of 32 bytes and batches of 8: four layers of six kinds, 1,296
models. Thirty models, drawn at random, train alone for 400 steps, each with two seeds. Supernets
train for 400, 1,600 and 6,400 steps, and evaluate the same thirty paths with their shared weights.
Kendall's tau compares a ranking to that by the mean of the two seeds. Its 90 % interval is that of
paths drawn again with replacement. Beside it:

- the ceiling: tau between the two seeds, so between two single trainings;
- the ranking by the number of parameters, which trains nothing;
- the best model among the four that a ranking puts first, and among four random ones.

Goal: the interval of the longest supernet lies above 0, and its tau is at least half of the
ceiling. `--quick` has few models and steps; `--check` exits with 1 where the goal is missed.
"""

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.shrunk import SIZE, length
from paxtune.algorithms.encoding.sampling import draw
from paxtune.experiment import Tunable
from paxtune.search_space.decisions import Decisions
from paxtune.study.trial_experiments import parts_of, reseeded
from paxtune.supernet.ranking import PathEvaluator
from paxtune.supernet.supernet import Supernet, supernet
from search_spaces import nas
from search_spaces.lm import BITS_PER_BYTE
from trainer.loop.train_loop import run
from trainer.program.costs import static_costs
from trainer.symbolic.overrides import replaced

_TOP = 4
_BOOTSTRAP = 2000


@dataclasses.dataclass(frozen=True)
class Plan:
    """Size of the comparison.

    Attributes:
        num_paths: number of models that train alone.
        steps: of a training alone.
        supernet_steps: of each supernet.
    """

    num_paths: int = 30
    steps: int = 400
    supernet_steps: tuple[int, ...] = (400, 1600, 6400)


QUICK = Plan(num_paths=5, steps=8, supernet_steps=(8, 16))


def space(steps: int) -> Tunable:
    """The shrunk space."""
    return replaced(nas.StdlibKinds(), SIZE | length(steps), 'benchmark')


def drawn(made: Supernet, count: int) -> list[Decisions]:
    """Different paths."""
    rng, found = random.Random(0), dict[str, Decisions]()
    while len(found) < count:
        path = draw(made.space.spec, rng)
        found.setdefault(str(path), path)
    return list(found.values())


def alone(made: Supernet, path: Decisions, seed: int) -> float:
    """The reward of a model that trains alone, as a replicate of a trial does."""
    experiment = reseeded(parts_of(made.space, path)[''], seed)
    with tempfile.TemporaryDirectory() as directory:
        (*_, last) = run(experiment, directory)
    return BITS_PER_BYTE.value(last.metrics)


def shared(made: Supernet, paths: Sequence[Decisions], steps: int) -> list[float]:
    """The rewards of paths with the weights of a supernet."""
    longer = dataclasses.replace(
        made, experiment=replaced(made.experiment, length(steps), 'benchmark')
    )
    with tempfile.TemporaryDirectory() as directory:
        for _ in run(longer.experiment, directory):
            pass
        evaluator = PathEvaluator(longer, BITS_PER_BYTE, Path(directory))
        return [evaluator.reward(path) or float('inf') for path in paths]


def tau(one: np.ndarray, other: np.ndarray) -> tuple[float, list[float]]:
    """Kendall's tau with its 90 % interval."""
    rng, found = np.random.default_rng(0), []
    for _ in range(_BOOTSTRAP):
        at = rng.integers(0, len(one), len(one))
        if len({*at}) > 1:
            found.append(stats.kendalltau(one[at], other[at]).statistic)
    low, high = np.nanpercentile(found, [5, 95])
    value = float(stats.kendalltau(one, other).statistic)
    return round(value, 3), [round(float(low), 3), round(float(high), 3)]


def best_of_random(losses: np.ndarray) -> float:
    """The expected lowest loss of models drawn without replacement."""
    ordered, count = np.sort(losses), len(losses)
    chances = special.comb(np.arange(count)[::-1], _TOP - 1) / special.comb(count, _TOP)
    return float(chances @ ordered)


def compared(name: str, ranking: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
    """Compares a ranking, lowest first, to the losses of models that trained alone."""
    value, interval = tau(ranking, losses)
    best = float(losses[np.argsort(ranking)[:_TOP]].min())
    print(f'{name}: tau {value:.3f}, {interval}, best of its first {_TOP} {best:.4f}', flush=True)
    return {'tau': value, 'interval': interval, f'best_of_{_TOP}': round(best, 4)}


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    plan, began = QUICK if args.quick else Plan(), time.monotonic()
    made = supernet(space(plan.steps))
    paths = drawn(made, plan.num_paths)
    both = np.array([[alone(made, path, seed) for seed in (1, 2)] for path in paths])
    losses, seconds = both.mean(axis=1), {'alone': round(time.monotonic() - began)}
    for path, row in zip(paths, both, strict=True):
        print(f'{"".join(str(kind) for kind in path.values())} {row[0]:.4f} {row[1]:.4f}')
    ceiling, of_ceiling = tau(*both.T)
    sizes = [static_costs(parts_of(made.space, path)[''])['num_params'] for path in paths]
    result: dict[str, Any] = {
        'ceiling': {'tau': ceiling, 'interval': of_ceiling},
        'num_params': compared('parameters', -np.array(sizes), losses),
        'best': round(float(losses.min()), 4),
        f'best_of_{_TOP}_random': round(best_of_random(losses), 4),
    }
    print(f'ceiling: tau {ceiling:.3f}, {of_ceiling}')
    for steps in plan.supernet_steps:
        begun = time.monotonic()
        ranking = np.array(shared(made, paths, steps))
        seconds[f'supernet_{steps}'] = round(time.monotonic() - begun)
        result[f'supernet_{steps}'] = compared(f'supernet, {steps} steps', ranking, losses)
    last = result[f'supernet_{plan.supernet_steps[-1]}']
    print('RESULT ' + json.dumps(result | {'seconds': seconds}))
    is_met = last['interval'][0] > 0 and last['tau'] >= ceiling / 2
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
