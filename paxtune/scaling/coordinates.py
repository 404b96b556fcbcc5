"""Coordinate checks: sizes of activations over the width of a model (Yang et al. 2022, D.1)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxtune.scaling.widths import resized, with_width_scaling
from trainer.experiment import Experiment
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.stack import Stack
from trainer.program.setup import compiled, localized, prepare_inputs
from trainer.symbolic.component import bind, components

LOGITS, RESIDUAL = 'logits', 'residual stream'


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """The size of an activation of one model after some steps.

    Attributes:
        width: of the model.
        is_scaled: true with width scaling, from the smallest of the widths.
        activation: 'logits' or 'residual stream', which is the result of the last block.
        step: number of training steps before.
        size: mean of the absolute values.
    """

    width: int
    is_scaled: bool
    activation: str
    step: int
    size: float


@dataclasses.dataclass(frozen=True)
class Slope:
    """The exponent of the width in the size of an activation: 0 where it does not grow.

    Attributes:
        is_scaled: true with width scaling.
        activation: as of a `Coordinate`.
        step: as of a `Coordinate`.
        slope: of the logarithm of the size in the logarithm of the width.
    """

    is_scaled: bool
    activation: str
    step: int
    slope: float


def coordinates(
    experiment: Experiment, widths: Sequence[int], num_steps: int = 4
) -> list[Coordinate]:
    """Trains an experiment for a few steps at each width, with and without width scaling.

    Args:
        experiment: of a language model, without open decisions.
        widths: at least two.
        num_steps: training steps; sizes are measured before each, and after the last.

    Raises:
        UserError: the model cannot have one of the widths, or its data is missing.
    """
    prepare_inputs(experiment)
    base, found = min(widths), []
    for width in sorted(set(widths)):
        plain = resized(_unrolled(experiment), width)
        for is_scaled in (False, True):
            made = with_width_scaling(plain, base) if is_scaled else plain
            sizes = _sizes(made, num_steps)
            found += [
                Coordinate(width, is_scaled, activation, step, each[activation])
                for step, each in enumerate(sizes)
                for activation in (RESIDUAL, LOGITS)
            ]
    return found


def slopes(found: Sequence[Coordinate]) -> list[Slope]:
    """Fits a power of the width to the sizes of each activation at each step."""
    kinds = dict.fromkeys((each.is_scaled, each.activation, each.step) for each in found)
    return [
        Slope(*kind, _slope([c for c in found if (c.is_scaled, c.activation, c.step) == kind]))
        for kind in kinds
    ]


def _slope(course: Sequence[Coordinate]) -> float:
    widths, sizes = [each.width for each in course], [each.size for each in course]
    if not all(np.isfinite(sizes)) or min(sizes) <= 0:
        return float('nan')
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


def _unrolled(experiment: Experiment) -> Experiment:
    """The experiment without scanned layers, whose activations are not kept."""
    stacks = [each for each in components(experiment.task.model) if isinstance(each, Stack)]
    return bind(experiment, {f'{stack.sym_path}.scan': 'never' for stack in stacks})


def _sizes(experiment: Experiment, num_steps: int) -> list[dict[str, float]]:
    """Trains, and measures the activations of the first batch before each step and at the end."""
    made = localized(experiment)
    program, values = compiled(made)
    key = program.random_key(made.train.random_seed)
    state, first, found = program.init(key, values), None, []
    for step in range(num_steps + 1):
        batch = program.put(made.train_input.get_next_padded())
        first = batch if first is None else first
        found.append(_measured(made.task, state.variables, first))
        if step < num_steps:
            state, _ = program.train_step(state, batch, key, values)
    return found


def _measured(task: Any, variables: Any, batch: Any) -> dict[str, float]:
    def forward(variables: Any, batch: Any) -> tuple[Any, Any]:
        with forward_context(ForwardContext()):
            logits, kept = task.model.module().apply(
                variables, *task.model_inputs(batch), capture_intermediates=True, mutable=True
            )
        return kept['intermediates']['stack']['__call__'][0], logits

    stream, logits = jax.jit(forward)(variables, batch)
    return {RESIDUAL: float(jnp.abs(stream).mean()), LOGITS: float(jnp.abs(logits).mean())}
