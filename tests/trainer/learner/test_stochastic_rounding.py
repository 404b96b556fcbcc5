"""Parameters in bfloat16 are rounded at random, by the seed and the step."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import final_state, resumed_after_an_interruption
from tests.factories.tiny import experiment
from trainer.layers import LoRA
from trainer.learner.paths import leaves
from trainer.learner.stochastic_rounding import updated
from trainer.loop.train_loop import run
from trainer.program.step_functions import abstract_metrics
from trainer.symbolic.errors import UserError


def test_sums_are_neighbours_and_right_on_average() -> None:
    up = jnp.full(4096, 1.0, jnp.bfloat16)
    params = {
        'up': up,
        'down': -up,
        'special': jnp.array([jnp.inf, jnp.nan, 0.0], jnp.bfloat16),
        'wide': jnp.ones(4),
    }
    unit = 2.0**-7  # Between neighbours above 1.
    updates = {
        'up': jnp.full(4096, unit / 4),
        'down': jnp.full(4096, -unit / 4),
        'special': jnp.zeros(3),
        'wide': jnp.full(4, unit / 4),
    }
    new = jax.jit(updated)(params, updates, jax.random.key(0))
    for name, sign in (('up', 1), ('down', -1)):
        values = np.asarray(new[name], np.float32) * sign
        assert {*values.tolist()} == {1.0, 1.0 + unit}
        assert values.mean() == pytest.approx(1 + unit / 4, abs=unit / 30)
    assert (np.asarray(new['up']) != -np.asarray(new['down'])).any()
    np.testing.assert_array_equal(np.asarray(new['special'], np.float32), [np.inf, np.nan, 0])
    np.testing.assert_array_equal(new['wide'], 1 + unit / 4)
    other = updated(params, updates, jax.random.key(1))
    assert (np.asarray(other['up']) != np.asarray(new['up'])).any()


@pytest.mark.parametrize(
    'fields', [{}, {'task__param_dtype': 'bfloat16', 'task__adapters': LoRA(2)}]
)
def test_trained_parameters_without_rounding_are_refused(fields: dict[str, Any]) -> None:
    made = experiment(task__learner__stochastic_rounding=True, **fields)
    with pytest.raises(UserError, match=r"stochastic_rounding .* task\.param_dtype='bfloat16'"):
        abstract_metrics(made.task, made.train_input.element_spec())


@pytest.mark.slow
def test_a_run_resumes_to_the_last_bit_and_moves_where_nearest_rounding_does_not(
    tmp_path: Path,
) -> None:
    stored: dict[str, Any] = {
        'num_steps': 4,
        'task__param_dtype': 'bfloat16',
        'task__learner__learning_rate': 1e-4,
    }
    made = experiment(task__learner__stochastic_rounding=True, **stored)
    list(run(made.clone(deep=True), tmp_path / 'whole'))
    resumed_after_an_interruption(made.clone(deep=True), tmp_path / 'parts')
    list(run(experiment(**stored), tmp_path / 'nearest'))
    whole, parts, nearest = (
        leaves(final_state(made, tmp_path / each).params) for each in ('whole', 'parts', 'nearest')
    )
    for path, leaf in whole.items():
        np.testing.assert_array_equal(leaf, parts[path])
    kernel = next(path for path in whole if path[-1] == 'up')
    assert (np.asarray(whole[kernel]) != np.asarray(nearest[kernel])).mean() > 0.05
