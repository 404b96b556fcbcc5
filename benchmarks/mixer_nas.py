"""A search of mixers layer by layer, against the best stack of equal layers.

    python benchmarks/mixer_nas.py --check --processes=2 --job_log_dir=runs/mixer_nas

`nas.MixerNas` on the sources of Python's standard library: four blocks of width 64, rows of 64
bytes, batches of 8, 160 steps. The learning rate is the same for all, so only architectures differ.

- *Uniform*: each kind of mixer with each kind of channel layer, equal in all blocks. A kind has the
  sizes with the most parameters within the limits of the search.
- *Found*: regularized evolution within the same limits, with as many trials. Its first trials are
  the uniform stacks with plain feed-forward layers; they count.

With each of three seeds, of the search and of its training, the lowest bits per byte on 64 KiB of
the held-out set choose one stack of both. These two train again, with three seeds that chose
nothing, and are compared on 256 KiB.

Goal: the mean of the found stacks is lower than that of the uniform ones. `--quick` has few kinds,
trials and steps; `--check` exits with 1 where the goal is missed. A repeated command with the same
`--job_log_dir` continues the searches.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.shrunk import length
from paxtune import tune
from paxtune.algorithms import RegularizedEvolution
from paxtune.config.budget import Budget
from paxtune.experiment import Tunable
from paxtune.objectives.limits import violation
from paxtune.search_space.decisions import from_dna
from paxtune.search_space.space import Space
from paxtune.study.trial_experiments import parts_of
from search_spaces import nas
from search_spaces.lm import BITS_PER_BYTE
from trainer.layers import Stack, TransformerBlock
from trainer.loop.train_loop import run
from trainer.program.costs import static_costs
from trainer.symbolic.concrete import concrete
from trainer.symbolic.overrides import replaced

_STACK = 'task.model.stack'
_BLOCKS = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """Size of the comparison.

    Attributes:
        seeds: of the searches and of their training.
        fresh_seeds: of the final training.
        steps: of each training.
        num_kinds: number of uniform stacks; None for all.
        num_trials: of a search; None for as many as there are uniform stacks.
    """

    seeds: tuple[int, ...] = (1, 2, 3)
    fresh_seeds: tuple[int, ...] = (11, 12, 13)
    steps: int = 160
    num_kinds: int | None = None
    num_trials: int | None = None


QUICK = Plan(seeds=(1,), fresh_seeds=(11,), steps=4, num_kinds=2, num_trials=3)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The best stack of one side.

    Attributes:
        stack: as JSON.
        loss: bits per byte that chose it.
    """

    stack: str
    loss: float


def space(plan: Plan, seed: int, stack: Stack | None = None) -> Tunable:
    """The space, or an experiment with one of its stacks."""
    changes: dict[str, Any] = {
        'task.learner.learning_rate': 0.015,
        'train.random_seed': seed,
        'train_input.batch_size': 8,
        'train_input.input_random_seed': seed,
        'eval_inputs.eval.max_bytes': 2**16,
    }
    changes |= {} if stack is None else {_STACK: stack.clone(deep=True)}
    return replaced(nas.MixerNas(), changes | length(plan.steps), 'benchmark')


def uniform_stacks(plan: Plan, pool: concurrent.futures.Executor) -> list[Stack]:
    """One stack for each pair of kinds, those with experts first and plain ones last."""
    block = nas.mixer_block()
    mixers, channels = (
        range(len(block.sym_getattr(name).candidates)) for name in ('attention', 'feed_forward')
    )
    pairs = [(mixer, channel) for channel in reversed(channels) for mixer in mixers]
    pairs = pairs[-plan.num_kinds :] if plan.num_kinds else pairs
    made = [pool.submit(largest, plan, *pair) for pair in pairs]
    return [each.result() for each in made]


def largest(plan: Plan, mixer: int, channel: int) -> Stack:
    """The uniform stack of a kind with the most parameters within the limits."""
    block, search = nas.mixer_block(), nas.MixerNas().search
    kind = TransformerBlock(
        block.sym_getattr('attention').candidates[mixer].clone(deep=True),
        block.sym_getattr('feed_forward').candidates[channel].clone(deep=True),
    )
    sizes: list[tuple[float, float, Stack]] = []
    for sized in [kind] if pg.is_deterministic(kind) else pg.iter(kind):
        # One block is traced, and counted for all.
        scanned = Stack([sized.clone(deep=True)], repeats=_BLOCKS, scan='always')
        costs = static_costs(concrete(space(plan, 0, scanned)))
        if violation(search.limits, costs) is None:
            stack = Stack([sized.clone(deep=True) for _ in range(_BLOCKS)])
            sizes.append((costs['num_params'], costs['flops_per_token'], stack))
    num_params, flops, stack = max(sizes, key=lambda each: each[:2])
    print(f'{named(stack)}: {num_params:.0f} parameters, {flops:.0f} FLOPs', flush=True)
    return stack


def named(stack: Stack) -> str:
    """The kinds of the blocks of a stack."""
    kinds = []
    for block in stack.layers:
        window = getattr(block.attention, 'window', None)
        mixer = type(block.attention).__name__ + (f'[{window}]' if window else '')
        kinds.append(f'{mixer}+{type(block.feed_forward).__name__}')
    return f'{len(kinds)} × {kinds[0]}' if len({*kinds}) == 1 else ', '.join(kinds)


def trained(experiment: Any) -> float:
    """Bits per byte of a run."""
    with tempfile.TemporaryDirectory() as directory:
        *_, last = run(concrete(experiment), directory)
    return BITS_PER_BYTE.value(last.metrics)


def best_uniform(plan: Plan, seed: int, stacks: Sequence[Stack]) -> Chosen:
    """The uniform stack with the lowest loss."""
    losses = []
    for stack in stacks:
        losses.append(trained(space(plan, seed, stack)))
        print(f'uniform, seed {seed}: {losses[-1]:.4f} {named(stack)}', flush=True)
    at = int(np.argmin(losses))
    return Chosen(stacks[at].to_json_str(), losses[at])


def best_found(plan: Plan, seed: int, stacks: Sequence[Stack], directory: Path) -> Chosen:
    """The stack of a search with the lowest loss."""
    own = Space(space(plan, seed))
    template = pg.template(own.value)
    first = [
        own.readable(from_dna(own.spec, template.encode(space(plan, seed, stack))))
        for stack in stacks
        if type(stack.layers[0].feed_forward).__name__ == 'FeedForward'
    ]
    changes = {
        'search.algorithm': RegularizedEvolution(len(first), min(3, len(first))),
        'search.budget': Budget(plan.num_trials or len(stacks)),
        'search.scheduler': None,
        'search.seed': seed,
        'search.initial_trials': first,
    }
    searched = replaced(own.value, changes, 'benchmark')
    with tune(searched, job_log_dir=directory / f'seed_{seed}', quiet=True) as study:
        best, loss = study.best_trial, study.best_value
        experiments = [parts_of(own, own.parse(trial.decisions))[''] for trial in study.trials]
        for trial, each in zip(study.trials, experiments, strict=True):
            stack = each.task.model.stack
            print(f'found, seed {seed}, trial {trial.id}: {trial.reward} {named(stack)}')
    chosen = experiments[best.id - 1].task.model.stack
    return Chosen(chosen.to_json_str(), loss)


def again(plan: Plan, chosen: Chosen) -> dict[str, Any]:
    """Trains a chosen stack with fresh seeds."""
    stack = pg.from_json_str(chosen.stack)
    experiments = [
        replaced(space(plan, seed, stack), {'eval_inputs.eval.max_bytes': 2**18}, 'benchmark')
        for seed in plan.fresh_seeds
    ]
    losses = [round(trained(each), 4) for each in experiments]
    costs = static_costs(concrete(experiments[0]))
    return {
        'chosen_by': round(chosen.loss, 4),
        'losses': losses,
        'mean': round(float(np.mean(losses)), 4),
        'num_params': int(costs['num_params']),
        'flops_per_token': int(costs['flops_per_token']),
    }


def report(seed: int, sides: dict[str, Chosen], results: dict[str, dict[str, Any]]) -> None:
    """Prints both chosen stacks of a seed."""
    for side, result in results.items():
        print(
            f'seed {seed}, {side}: {result} {named(pg.from_json_str(sides[side].stack))}',
            flush=True,
        )


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--processes', type=int, default=1)
    flags.add_argument('--job_log_dir', type=Path, default=None)
    args = flags.parse_args()
    plan, began = QUICK if args.quick else Plan(), time.monotonic()
    directory = args.job_log_dir or Path(tempfile.mkdtemp())
    context = multiprocessing.get_context('spawn')
    rows: list[dict[str, Any]] = []
    with concurrent.futures.ProcessPoolExecutor(args.processes, context) as pool:
        stacks = uniform_stacks(plan, pool)
        chosen = [
            {
                'uniform': pool.submit(best_uniform, plan, seed, stacks),
                'found': pool.submit(best_found, plan, seed, stacks, directory),
            }
            for seed in plan.seeds
        ]
        ends = []
        for of_seed in chosen:
            sides = {side: each.result() for side, each in of_seed.items()}
            ends.append(
                (sides, {side: pool.submit(again, plan, one) for side, one in sides.items()})
            )
        for seed, (sides, trainings) in zip(plan.seeds, ends, strict=True):
            rows.append({side: each.result() for side, each in trainings.items()})
            report(seed, sides, rows[-1])
    means = {
        side: round(float(np.mean([row[side]['mean'] for row in rows])), 4) for side in rows[0]
    }
    result = {
        'means': means,
        'seeds_won': sum(row['found']['mean'] < row['uniform']['mean'] for row in rows),
        'rows': rows,
        'num_trials': plan.num_trials or len(stacks),
        'num_uniform': len(stacks),
        'seconds': round(time.monotonic() - began),
    }
    print('RESULT ' + json.dumps(result))
    return int(args.check and means['found'] >= means['uniform'])


if __name__ == '__main__':
    sys.exit(main())
