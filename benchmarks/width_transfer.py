"""Shift of the best learning rate from width 64 to width 256, with and without width scaling.

    python benchmarks/width_transfer.py --check

Byte-level language models of one layer on the sources of Python's standard library, with Adam and a
constant learning rate after a warm-up. Each learning rate of a grid of factor 2 trains with several
seeds. A loss is the mean of the last steps. The best learning rate is the vertex of the parabola
through the best three of the grid, on a logarithmic scale. Its shift from the narrow to the wide
model is counted in steps of the grid, for the mean of the seeds and for each seed.

Goal: less than one step with width scaling, more than one without. `--quick` has one seed, a
smaller wide model and fewer steps; `--check` exits with 1 where the goal is missed.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from paxtune.scale.widths import resized, with_width_scaling
from trainer.experiment import Experiment
from trainer.inputs.text.stdlib import StdlibInput
from trainer.layers import Attention, Embedding, FeedForward, Stack, TransformerBlock, TransformerLm
from trainer.learner import AdamW, Constant, Learner
from trainer.program.setup import compiled, localized
from trainer.symbolic.component import bind
from trainer.tasks import LanguageModelTask


@dataclasses.dataclass(frozen=True)
class Plan:
    """Size of the comparison.

    Attributes:
        widths: of the narrow and the wide model.
        exponents: the learning rates are 2 to these.
        seeds: number of trainings of each.
        steps: of a training.
        last: number of last steps whose mean loss counts.
    """

    widths: tuple[int, int] = (64, 256)
    exponents: tuple[int, ...] = tuple(range(-11, -3))
    seeds: int = 3
    steps: int = 150
    last: int = 25


QUICK = Plan(widths=(32, 128), exponents=tuple(range(-9, -2)), seeds=1, steps=60, last=10)


def experiment(width: int) -> Experiment:
    """A model of one layer with its data."""
    block = TransformerBlock(attention=Attention(num_heads=4), feed_forward=FeedForward())
    return Experiment(
        task=LanguageModelTask(
            model=TransformerLm(
                embedding=Embedding(vocab_size=256, dims=width), stack=Stack([block])
            ),
            learner=Learner(
                learning_rate=1e-3,
                schedule=Constant(warmup_steps=20),
                optimizer=AdamW(weight_decay=None),
            ),
        ),
        train_input=StdlibInput(batch_size=16, is_training=True, sequence_length=32, split='train'),
    )


def losses(made: Experiment, plan: Plan) -> np.ndarray:
    """Final losses [learning rates, seeds]; all trainings share one compiled step."""
    made = localized(made)
    program, _ = compiled(made)
    found = np.zeros((len(plan.exponents), plan.seeds))
    batches = [program.put(made.train_input.get_next()) for _ in range(plan.steps * plan.seeds)]
    for index, exponent in enumerate(plan.exponents):
        values = program.values(bind(made, {'task.learner.learning_rate': 2.0**exponent}).task)
        for seed in range(plan.seeds):
            key = program.random_key(seed)
            state, course = program.init(key, values), []
            for batch in batches[seed * plan.steps : (seed + 1) * plan.steps]:
                state, metrics = program.train_step(state, batch, key, values)
                course.append(metrics['loss'].value())
            found[index, seed] = np.mean([float(each) for each in course[-plan.last :]])
    return found


def report(name: str, plan: Plan, found: np.ndarray) -> list[float]:
    """Prints the losses of a model. Returns the best exponents: of the mean, then of each seed."""
    for exponent, row in zip(plan.exponents, found, strict=True):
        print(f'{name:24} 2^{exponent:<4} {" ".join(f"{loss:7.4f}" for loss in row)}')
    courses = [found.mean(axis=1), *found.T]
    at = [vertex(plan.exponents, course) for course in courses]
    print(f'{name:24} best: {" ".join(f"{each:6.2f}" for each in at)}', flush=True)
    return at


def vertex(values: Sequence[float] | np.ndarray, losses: Sequence[float] | np.ndarray) -> float:
    """The vertex of the parabola through the lowest finite loss and its two neighbours.

    At the end of the range, or beside a loss that is not finite, it is the value itself.

    Example:
        >>> vertex([0, 1, 2, 3], [9.0, 1.0, 0.5, 1.0])
        2.0
    """
    finite = np.where(np.isfinite(losses), losses, np.inf)
    at = int(np.argmin(finite))
    near = slice(at - 1, at + 2)
    if not 0 < at < len(finite) - 1 or not np.isfinite(finite[near]).all():
        return float(values[at])
    x = np.asarray(values, float)[near] - values[at]
    curve, line, _ = np.polyfit(x, finite[near], 2)
    return float(values[at] - line / (2 * curve) if curve > 0 else values[at])


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    plan = QUICK if args.quick else Plan()
    begun, (narrow, wide) = time.perf_counter(), plan.widths
    small = experiment(narrow)
    large = resized(small, wide)
    base = report(f'width {narrow}', plan, losses(small, plan))
    result: dict[str, float | list[float]] = {}
    moved = {}
    for name, made in {'plain': large, 'scaled': with_width_scaling(large, narrow)}.items():
        at = report(f'width {wide}, {name}', plan, losses(made, plan))
        shifts = [round(there - here, 2) for here, there in zip(base, at, strict=True)]
        print(f'{name}: the best learning rate moves by {shifts[0]:+.2f} steps of the grid')
        result[f'{name}_shift'], result[f'{name}_shift_by_seed'] = shifts[0], shifts[1:]
        result[f'{name}_best'], moved[name] = round(at[0], 2), abs(shifts[0])
    result['seconds'] = round(time.perf_counter() - begun)
    print('RESULT ' + json.dumps(result))
    return int(args.check and not moved['scaled'] < 1 < moved['plain'])


if __name__ == '__main__':
    sys.exit(main())
