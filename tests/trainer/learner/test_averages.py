"""Averages of the parameters with warm starts and microbatches."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.tiny import experiment
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.program.step_functions import Values
from trainer.state import TrainState


def one_step(program: Program, values: Values, state: TrainState, batch: Any) -> TrainState:
    state, _ = program.train_step(state, program.put(batch), program.random_key(0), values)
    return jax.device_get(state)


@pytest.mark.slow
def test_averages_of_a_warm_start_begin_at_its_parameters() -> None:
    made = localized(experiment(task__learner__ema_decay=0.9))
    program, values = compiled(made)
    drawn = program.init(program.random_key(0), values).params
    source = jax.device_get(jax.tree.map(lambda leaf: leaf + 1, drawn))
    params = jax.device_put(source, jax.tree.map(lambda leaf: leaf.sharding, drawn))

    def fill(part: str, drawn_part: Any, given: Any, looked_at: Any) -> Any:
        return given if part == 'params' else drawn_part

    state = program.init_from(fill, params, {}, program.random_key(0), values)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.ema_params), source)
    # The first step keeps a tenth of them. It runs in place, so the averages must be copies.
    after = one_step(program, values, state, made.train_input.get_next())
    wanted = jax.tree.map(lambda old, new: 0.1 * old + 0.9 * new, source, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), after.ema_params, wanted)


@pytest.mark.slow
def test_microbatches_update_the_average_once() -> None:
    states = []
    for parts in (1, 2):
        fields: dict[str, Any] = {'task__learner__microbatches': parts}
        made = localized(experiment(task__learner__ema_decay=0.9, **fields))
        program, values = compiled(made)
        state = program.init(program.random_key(0), values)
        states.append(one_step(program, values, state, made.train_input.get_next()))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        *(state.ema_params for state in states),
    )
