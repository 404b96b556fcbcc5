"""Losses and steps of products in 8 bits, and steps of other kernels, beside bfloat16.

    python benchmarks/precision.py --check

A byte-level model of 2 layers × 64 trains on the sources of Python's standard library for 200
steps, in bfloat16, and with `task.precision=Int8()` and `Float8()`. Each seed has its own
parameters, and all three see the same batches. A loss is the mean of 10 steps. Goal: each of the
losses along the way, in the mean of the seeds, is within 2 % of bfloat16's.

`--only` measures the time of a step in place of losses. It takes a size of `step_time.py`, and can
be given again. Two more contenders have `tokamax`'s and XLA's attention. On a GPU all others have
cuDNN's. The contenders
take turns, and each has its median. A contender that the device cannot run is left out, with the
reason. `--quick` has one seed, and few steps of a small model. `--check` exits with 1 where the
goal is missed.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.packing import CASES  # noqa: E402
from benchmarks.reference_loss import experiment  # noqa: E402
from benchmarks.step_time import ON_CPU, ON_GPU, Case, Ours, rates  # noqa: E402
from trainer.inputs.text.stdlib import StdlibInput  # noqa: E402
from trainer.layers import Float8, Int8  # noqa: E402
from trainer.layers.precision import Precision  # noqa: E402
from trainer.program.setup import compiled, localized  # noqa: E402
from trainer.symbolic.errors import UserError  # noqa: E402

GOAL = 0.02
PLAIN = 'bfloat16'
PRECISIONS: dict[str, Precision | None] = {PLAIN: None, 'int8': Int8(), 'float8': Float8()}
_ATTENTION = 'task.model.stack.layers[0].attention.implementation'
CONTENDERS: dict[str, dict[str, Any]] = {
    **{name: {'task.precision': each} for name, each in PRECISIONS.items()},
    'tokamax': {'task.kernels': 'tokamax', _ATTENTION: 'auto'},
    'XLA': {_ATTENTION: 'xla'},
}
"""Changes of the experiment: on a GPU, all but the last two have the attention of cuDNN."""

WINDOW = 10
"""Steps whose mean is one loss."""


def curves(name: str, seeds: int, steps: int) -> np.ndarray:
    """Losses, [seeds, steps / WINDOW]."""
    case = CASES[0]
    data = StdlibInput(
        batch_size=case.batch_size, is_training=True, sequence_length=case.length, split='train'
    )
    made = experiment(data, case.shape, 'bfloat16')
    made.rebind({'task.precision': PRECISIONS[name]}, raise_on_no_change=False)
    made = localized(made)
    program, values = compiled(made)
    batches = [program.put(made.train_input.get_next()) for _ in range(steps)]
    found = []
    for seed in range(seeds):
        key = program.random_key(seed)
        state, losses = program.init(key, values), []
        for batch in batches:
            state, metrics = program.train_step(state, batch, key, values)
            losses.append(metrics['loss'].mean)
        found.append(np.array(jax.device_get(losses)).reshape(-1, WINDOW).mean(1))
    return np.array(found)


def compare_losses(seeds: int, steps: int) -> dict[str, float]:
    """Prints the losses of each precision, and returns the largest differences."""
    found = {name: curves(name, seeds, steps) for name in PRECISIONS}
    apart: dict[str, float] = {}
    for name, each in found.items():
        course = ' '.join(f'{loss:.4f}' for loss in each.mean(0)[:: max(1, each.shape[1] // 5)])
        print(f'{name:9} {course} … {each.mean(0)[-1]:.4f}', end='')
        if name == PLAIN:
            print(f'  mean of {seeds} seeds, every {steps // 5} steps')
            continue
        ratios = each.mean(0) / found[PLAIN].mean(0) - 1
        of_seeds = each[:, -1] / found[PLAIN][:, -1] - 1
        apart[name] = float(np.abs(ratios).max())
        each_seed = ', '.join(f'{ratio:+.4f}' for ratio in of_seeds)
        print(f'  at most {apart[name]:.4f} apart; last loss of each seed {each_seed}', flush=True)
    return {name: round(value, 5) for name, value in apart.items()}


def contenders(case: Case) -> dict[str, tuple[Any, Any]]:
    """Experiments and steps, ready to run, of all that this device can do."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, changes in CONTENDERS.items():
        made = case.made('bfloat16')
        made.rebind(changes, raise_on_no_change=False)
        try:
            found[name] = made, Ours(made)
        except UserError as error:
            print(f'{case.name:6} {name:9} left out: {error}', flush=True)
    return found


def compare_steps(case: Case, rounds: int, steps: int) -> dict[str, float]:
    """Prints the times of a step, and returns their ratios to bfloat16."""
    found = contenders(case)
    for index in range(rounds):
        order = list(found.values())
        turn = index % len(order)
        for _, each in order[turn:] + order[:turn]:
            each.measure(steps)
    medians = {name: statistics.median(each.seconds) for name, (_, each) in found.items()}
    for name, (made, each) in found.items():
        print(
            f'{case.name:6} {name:9} {1e3 * medians[name]:8.2f} ms a step'
            f' {medians[name] / medians[PLAIN]:6.3f} ×  compile {each.compile_seconds:5.1f} s'
            f'  {each.bytes / 2**20:8.1f} MiB  {rates(case, made, medians[name])}',
            flush=True,
        )
    return {
        f'{case.name}_{name}': round(seconds / medians[PLAIN], 3)
        for name, seconds in medians.items()
        if name != PLAIN
    }


def main() -> int:
    cases = ON_CPU if jax.default_backend() == 'cpu' else ON_GPU
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--only', choices=[case.name for case in cases], action='append')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    if not args.only:
        apart = compare_losses(1 if args.quick else 3, 20 if args.quick else 200)
        print('RESULT ' + json.dumps(apart))
        return int(args.check and max(apart.values()) > GOAL)
    ratios: dict[str, float] = {}
    for case in cases:
        if case.name in args.only:
            ratios |= compare_steps(case, *((3, 1) if args.quick else (11, 3)))
    print('RESULT ' + json.dumps(ratios))
    return 0


if __name__ == '__main__':
    sys.exit(main())
