"""Muon on a small language model: condition numbers of its updates, and losses beside AdamW's.

    python benchmarks/muon.py --check

The model is that of `lm.StdlibTunable`: two layers of width 64 on bytes, 160 steps. The condition
number of a matrix is its largest singular value divided by its smallest one. It is taken of the
gradients, and of the updates of Muon, at the first step and at step 40. Each head of attention is a
matrix, as it is for Muon, and the largest number of all heads and both layers counts.

For the losses, both optimizers try the same learning rates, evenly spaced in their logarithm, with
each seed. The best of each seed counts, in bits per byte of 128 KiB of the held-out set.

Goal: each update has a condition number of at most 2, and Muon's mean of the best losses is at most
that of AdamW. `--quick` tries few rates and steps; `--check` exits with 1 where a goal is missed.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.shrunk import length
from paxtune.study.trial_experiments import reseeded
from search_spaces import lm
from trainer import state as state_lib
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.layers import Attention, GatedFeedForward, TransformerBlock
from trainer.layers.base import PARAMS, ForwardContext
from trainer.learner import AdamW, Muon, Optimizer
from trainer.learner.paths import Path as Name
from trainer.learner.paths import leaves
from trainer.loop.evaluate import evaluate
from trainer.program.setup import compiled, localized
from trainer.program.step_functions import init_variables
from trainer.program.train_step import forward
from trainer.symbolic.concrete import concrete
from trainer.symbolic.overrides import replaced

_MAX_CONDITION = 2.0
_STEPS_OF_UPDATES = (1, 40)
_OPTIMIZERS: dict[str, Optimizer] = {
    'adamw': AdamW(weight_decay=0.1),
    'muon': Muon(weight_decay=0.1),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Size of the comparison.

    Attributes:
        num_rates: number of learning rates of each optimizer and seed.
        seeds: of the runs.
        steps: of each run.
    """

    num_rates: int = 16
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int = 160


QUICK = Plan(num_rates=2, seeds=(1,), steps=8)


def experiment(optimizer: Optimizer, rate: float, seed: int, steps: int) -> Experiment:
    """The model of `lm.StdlibTunable` without its decisions."""
    block = TransformerBlock(Attention(num_heads=4), GatedFeedForward(hidden_dims=128))
    changes: dict[str, Any] = {
        'task.learner.optimizer': optimizer.clone(),
        'task.learner.learning_rate': rate,
        'task.model.stack.layers': [block],
        'task.model.stack.repeats': 2,
        'eval_inputs.eval.max_bytes': 2**17,
    }
    made = lm.StdlibTunable()
    return reseeded(concrete(replaced(made, changes | length(steps), 'benchmark')), seed)


def condition_numbers(steps: int) -> dict[str, dict[str, list[float]]]:
    """The condition numbers of gradients and updates by the name of the matrix, at each step."""
    made = localized(experiment(Muon(weight_decay=None), 0.01, 1, steps))
    spec = made.train_input.element_spec()
    boxes = init_variables(made.task, spec, jax.random.key(1))[PARAMS]
    params, matrices = state_lib.unboxed(boxes), state_lib.matrices(boxes)
    optimizer = made.task.learner.optimizer.make(
        jnp.float32(0.01), state_lib.decay_mask(boxes), matrices=matrices
    )

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            context = ForwardContext(training=True)
            metrics, _ = forward(made.task, {PARAMS: params}, batch, {}, context)
            return metrics['loss'].total / metrics['loss'].weight

        gradients = jax.grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, gradients, updates

    state = optimizer.init(params)
    found: dict[str, dict[str, list[float]]] = {'gradients': {}, 'updates': {}}
    for number in range(1, steps + 1):
        params, state, gradients, updates = step(params, state, made.train_input.get_next())
        if number in _STEPS_OF_UPDATES:
            for kind, tree in (('gradients', gradients), ('updates', updates)):
                for name, value in _largest(leaves(tree), leaves(matrices)).items():
                    found[kind].setdefault(name, []).append(value)
    return found


def _largest(arrays: Mapping[Name, Any], matrices: Mapping[Name, Any]) -> dict[str, float]:
    """The largest condition number of all layers, by the last part of the names of matrices."""
    found: dict[str, float] = {}
    for path, axes in matrices.items():
        if axes is not None:
            array, own = np.asarray(arrays[path], np.float64), axes.of_head()
            each = np.moveaxis(array, axes.heads, range(len(axes.heads)))
            inputs = int(np.prod([array.shape[axis] for axis in own.inputs]))
            outputs = int(np.prod([array.shape[axis] for axis in own.outputs]))
            values = np.linalg.svd(each.reshape(-1, inputs, outputs), compute_uv=False)
            largest = float(np.max(values[:, 0] / values[:, -1]))
            found[path[-1]] = max(found.get(path[-1], 0.0), largest)
    return found


def trained(made: Experiment, batches: Sequence[Batch]) -> float:
    """The loss on the held-out set after a step with each batch; infinite if it diverged."""
    program, values = compiled(made)
    random_key = program.random_key(made.train.random_seed)
    state = program.init(random_key, values)
    for batch in batches:
        state, _ = program.train_step(state, program.put(batch), random_key, values)
    loss = evaluate(made, program, state, values)[str(lm.BITS_PER_BYTE.metric)]
    return math.inf if loss is None or math.isnan(loss) else loss


def best_loss(name: str, seed: int, plan: Plan) -> tuple[float, float]:
    """The lowest loss of all learning rates, and its learning rate."""
    optimizer, rates = _OPTIMIZERS[name], np.geomspace(1e-3, 0.3, plan.num_rates)
    made = localized(experiment(optimizer, 0.01, seed, plan.steps))
    batches = [made.train_input.get_next() for _ in range(plan.steps)]
    losses = [
        trained(localized(experiment(optimizer, float(rate), seed, plan.steps)), batches)
        for rate in rates
    ]
    at = int(np.argmin(losses))
    print(f'{name}, seed {seed}: {np.round(losses, 3).tolist()}', flush=True)
    return round(losses[at], 4), round(float(rates[at]), 4)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    plan, began = QUICK if args.quick else Plan(), time.monotonic()
    conditions = condition_numbers(max(_STEPS_OF_UPDATES))
    for name, of_updates in conditions['updates'].items():
        of_gradients = np.round(conditions['gradients'][name], 1).tolist()
        print(f'{name}: gradients {of_gradients}, updates {np.round(of_updates, 2).tolist()}')
    best: dict[str, list[tuple[float, float]]] = {name: [] for name in _OPTIMIZERS}
    for seed in plan.seeds:
        for name, of_seeds in best.items():
            of_seeds.append(best_loss(name, seed, plan))
    means = {name: round(float(np.mean(of_seeds, axis=0)[0]), 4) for name, of_seeds in best.items()}
    worst = max(max(each) for each in conditions['updates'].values())
    seconds = round(time.monotonic() - began)
    result = {'best': best, 'means': means, 'worst_condition': round(worst, 3), 'seconds': seconds}
    print('RESULT ' + json.dumps(result))
    is_met = worst <= _MAX_CONDITION and means['muon'] <= means['adamw']
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
