"""Coordinate checks over the width of a model (Yang et al. 2022, appendix D.1).

Training must change activations equally at each width. The change since initialization is measured,
since new logits shrink with the width, which does no harm.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxtune.scale.widths import resized, with_width_scaling
from trainer.experiment import Experiment
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.stack import Stack
from trainer.program.setup import compiled, localized, prepare_inputs
from trainer.symbolic.component import bind, components, numbers
from trainer.task import Task

LOGITS, RESIDUAL = 'logits', 'residual stream'


@dataclasses.dataclass(frozen=True)
class Coordinate:
    """The change of an activation of one model in some steps.

    Attributes:
        width: of the model.
        is_scaled: true with width scaling, from the smallest of the widths.
        activation: 'logits' or 'residual stream', which is the result of the last block.
        step: number of training steps.
        change: mean of the absolute differences from the initial model, on the first batch.
    """

    width: int
    is_scaled: bool
    activation: str
    step: int
    change: float


@dataclasses.dataclass(frozen=True)
class Slope:
    """The exponent of the width in the change of an activation: 0 where it does not grow.

    Attributes:
        is_scaled: true with width scaling.
        activation: as of a `Coordinate`.
        step: as of a `Coordinate`.
        slope: of the logarithm of the change in the logarithm of the width.
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
        num_steps: training steps; changes are measured after each.

    Raises:
        UserError: the model cannot have one of the widths, or its data is missing.
    """
    base, found = min(widths), []
    models = {width: resized(_unrolled(experiment), width) for width in sorted(set(widths))}
    prepare_inputs(experiment)
    for width, plain in models.items():
        changes = _changes(plain, num_steps)
        # Nothing is scaled at the base.
        scaled = changes if width == base else _changes(with_width_scaling(plain, base), num_steps)
        found += [
            Coordinate(width, is_scaled, activation, step, each[activation])
            for is_scaled, course in ((False, changes), (True, scaled))
            for step, each in enumerate(course, 1)
            for activation in (RESIDUAL, LOGITS)
        ]
    return found


def slopes(found: Sequence[Coordinate]) -> list[Slope]:
    """Fits a power of the width to the changes of each activation at each step."""
    kinds = dict.fromkeys((each.is_scaled, each.activation, each.step) for each in found)
    return [
        Slope(*kind, _slope([c for c in found if (c.is_scaled, c.activation, c.step) == kind]))
        for kind in kinds
    ]


def _slope(course: Sequence[Coordinate]) -> float:
    widths, changes = [each.width for each in course], [each.change for each in course]
    if not all(np.isfinite(changes)) or min(changes) <= 0:
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(changes), 1)[0])


def _unrolled(experiment: Experiment) -> Experiment:
    """The experiment without scanned layers, whose activations are not kept."""
    stacks = [each for each in components(experiment.task.model) if isinstance(each, Stack)]
    return bind(experiment, {f'{stack.sym_path}.scan': 'never' for stack in stacks})


def _changes(experiment: Experiment, num_steps: int) -> list[dict[str, float]]:
    """Trains, and measures the activations of the first batch after each step."""
    made = localized(experiment)
    program, values = compiled(made)
    key, activations = program.random_key(made.train.random_seed), _activations(made.task)
    batch = first = program.put(made.train_input.get_next_padded())
    state = program.init(key, values)
    before, found = activations(state.variables, first), []
    for _ in range(num_steps):
        state, _ = program.train_step(state, batch, key, values)
        after = activations(state.variables, first)
        change = jax.tree.map(lambda x, y: float(jnp.abs(x - y).mean()), after, before)
        found.append(change)
        batch = program.put(made.train_input.get_next_padded())
    return found


def _activations(task: Task) -> Callable[[Any, Any], dict[str, jax.Array]]:
    """A compiled function of variables and a batch."""

    def forward(variables: Any, batch: Any) -> dict[str, jax.Array]:
        with forward_context(ForwardContext()):
            logits, kept = (
                bind(task, numbers(task))
                .model.module()
                .apply(
                    variables, *task.model_inputs(batch), capture_intermediates=True, mutable=True
                )
            )
        return {RESIDUAL: kept['intermediates']['stack']['__call__'][0], LOGITS: logits}

    return jax.jit(forward)
