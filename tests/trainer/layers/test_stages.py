import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers.pipeline import Schedule
from trainer.layers.stages import rounds_of_moves, through_stages
from trainer.mesh import Mesh


@pytest.mark.parametrize(('turns', 'stages'), [(2, 2), (2, 4), (4, 2), (3, 4), (6, 4), (4, 6)])
def test_each_group_of_layers_moves_once_to_the_stage_of_its_turn(turns: int, stages: int) -> None:
    found = {}
    for moves in rounds_of_moves(turns, stages):
        assert sorted(receiver for _, receiver, _ in moves) == [*range(stages)]
        for sender, (number, receiver, turn) in enumerate(moves):
            found[sender * turns + number] = (turn, receiver)
    assert found == {group: divmod(group, stages) for group in range(turns * stages)}


@pytest.mark.parametrize('turns', [1, 2])
def test_each_example_passes_all_layers_in_order(turns: int) -> None:
    factors, x = jnp.arange(2.0, 6.0), jnp.arange(12.0).reshape(6, 2)
    added = 10 * jnp.arange(6.0)

    def run_layer(
        factor: jax.Array, key: jax.Array, x: jax.Array, given: jax.Array, at: Any
    ) -> Any:
        return factor * x + given[:, None], {'mean': jnp.mean(x[:, 0]), 'at': at + 0.0 * key}

    schedule = Schedule(1, 3, turns, layers_per_stage=4, microbatch_size=2)
    y, means = jax.jit(
        functools.partial(
            through_stages,
            run_layer,
            jax.checkpoint,
            schedule=schedule,
            arrangement=Mesh(data=1).make(jax.devices()[:1]),
        )
    )(factors, factors, x, added)
    inputs = [x]
    for factor in range(2, 6):
        inputs.append(factor * inputs[-1] + added[:, None])
    np.testing.assert_allclose(y, inputs[-1])
    np.testing.assert_allclose(means['mean'], [jnp.mean(each[:, 0]) for each in inputs[:-1]])
    np.testing.assert_allclose(means['at'], [1.0] * 4)


@pytest.mark.parametrize('turns', [1, 3])
def test_the_bubble_is_the_share_of_ticks_without_work(turns: int) -> None:
    schedule = Schedule(4, 8, turns, layers_per_stage=6, microbatch_size=2)
    work = sum(
        0 <= tick - stage < turns * 8 for tick in range(schedule.num_ticks) for stage in range(4)
    )
    assert math.isclose(schedule.bubble, 1 - work / (4 * schedule.num_ticks))
