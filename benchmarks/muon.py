"""Muon on a small language model: condition numbers of its updates, and losses beside AdamW's.

    python benchmarks/muon.py --check

The model is that of `lm.StdlibTunable`: two layers of width 64 on bytes, 160 steps. The condition
number of a matrix is its largest singular value divided by its smallest one. It is taken of the
gradients, and of the updates of Muon, at the first step and at step 40, and the larger one of both
layers counts. The gradients of a matrix that has fewer outputs than its rank have no such number.

For the losses, both optimizers try the same learning rates, evenly spaced in their logarithm, with
each seed. The best of each seed counts, in bits per byte of the held-out set.

Goal: each update has a condition number of at most 2, and Muon's mean of the best losses is at most
that of AdamW. `--quick` tries few rates and steps; `--check` exits with 1 where a goal is missed.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
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
from trainer.layers import Attention, GatedFeedForward, TransformerBlock
from trainer.layers.base import PARAMS, ForwardContext
from trainer.learner import AdamW, Muon, Optimizer
from trainer.learner.paths import Path as Name
from trainer.learner.paths import leaves
from trainer.loop.train_loop import run
from trainer.program.setup import localized
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
            array = np.asarray(arrays[path], np.float64)
            inputs = int(np.prod([array.shape[axis] for axis in axes[0]]))
            values = np.linalg.svd(array.reshape(inputs, -1), compute_uv=False)
            name = path[-1]
            found[name] = max(found.get(name, 0.0), float(values[0] / values[-1]))
    return found


def best_losses(optimizer: Optimizer, plan: Plan) -> dict[str, Any]:
    """The best loss of each seed, with its learning rate."""
    rates, best = np.geomspace(1e-3, 0.3, plan.num_rates), []
    for seed in plan.seeds:
        losses = []
        for rate in rates:
            made = experiment(optimizer, float(rate), seed, plan.steps)
            with tempfile.TemporaryDirectory() as directory:
                (*_, last) = run(made, directory)
            losses.append(lm.BITS_PER_BYTE.value(last.metrics))
        at = int(np.argmin(losses))
        best.append((round(losses[at], 4), round(float(rates[at]), 4)))
        print(
            f'{type(optimizer).__name__}, seed {seed}: {np.round(losses, 3).tolist()}', flush=True
        )
    return {'best': best, 'mean': round(float(np.mean([loss for loss, _ in best])), 4)}


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
    result = {name: best_losses(optimizer, plan) for name, optimizer in _OPTIMIZERS.items()}
    worst = max(max(each) for each in conditions['updates'].values())
    seconds = round(time.monotonic() - began)
    print('RESULT ' + json.dumps(result | {'worst_condition': round(worst, 3), 'seconds': seconds}))
    is_met = worst <= _MAX_CONDITION and result['muon']['mean'] <= result['adamw']['mean']
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
