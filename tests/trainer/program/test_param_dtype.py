"""Parameters that are stored in bfloat16: their state, resumption, and a start from float32."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import resumed_after_an_interruption
from tests.factories.tiny import experiment
from tests.trainer.program.test_program_collections import steps
from trainer.experiment import Experiment
from trainer.layers import RGLRU, FeedForward, TransformerBlock
from trainer.learner.paths import leaves
from trainer.loop.train_loop import run
from trainer.program.costs import static_costs
from trainer.warm_start_rules import WarmStart


def narrow(**changes: Any) -> Experiment:
    stored: dict[str, Any] = {'task__param_dtype': 'bfloat16', 'task__learner__ema_decay': 0.9}
    return experiment(**stored, **changes)


def dtypes(tree: Any) -> set[Any]:
    return {
        leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)
    }


@pytest.mark.pax('Common fields: `dtype`, `fprop_dtype`')
def test_parameters_are_bfloat16_and_the_rest_is_float32() -> None:
    _, state, metrics = steps(narrow(mesh__data=1, task__learner__microbatches=2), 3)
    norms = {path: leaf for path, leaf in leaves(state.params).items() if path[-1] == 'scale'}
    others = [leaf for path, leaf in leaves(state.params).items() if path not in norms]
    assert dtypes(others) == {jnp.dtype(jnp.bfloat16)}
    assert dtypes(norms) == {jnp.dtype(jnp.float32)}
    assert dtypes([state.opt_state, state.ema_params]) == {jnp.dtype(jnp.float32)}
    _, _, expected = steps(experiment(mesh__data=1, task__learner__microbatches=2), 3)
    for one, other in zip(metrics, expected, strict=True):
        assert one['loss'].value() == pytest.approx(other['loss'].value(), rel=5e-3)
        assert one['gradient_norm'].value() == pytest.approx(other['gradient_norm'].value(), 0.05)
    # New parameters are the float32 ones, rounded. A float32 update of each precedes the rounding.
    new, new_wide = (steps(made, 0)[1].params for made in (narrow(mesh__data=1), experiment()))
    for path, leaf in leaves(new).items():
        np.testing.assert_array_equal(leaf, leaves(new_wide)[path].astype(leaf.dtype))
        assert not np.array_equal(leaf, leaves(state.params)[path])


def test_parameters_that_stay_in_float32_are_stored_so() -> None:
    block = TransformerBlock(RGLRU(num_heads=2), FeedForward(32))
    params = leaves(steps(narrow(task__model__stack__layers=[block]), 0)[1].params)
    wide = [path for path, leaf in params.items() if leaf.dtype == jnp.float32]
    assert {path[-1] for path in wide} == {'decay', 'scale'}


def test_the_size_of_the_state_counts_the_dtype() -> None:
    both = [static_costs(experiment(task__param_dtype=each)) for each in ('float32', 'bfloat16')]
    wide, less = (each['state_bytes'] for each in both)
    in_norms = 3 * 16  # Scales stay float32.
    assert wide - less == 2 * (both[0]['num_params'] - in_norms)


@pytest.mark.slow
def test_a_run_with_narrow_parameters_resumes_and_starts_from_a_wide_one(tmp_path: Path) -> None:
    made = narrow(num_steps=4)
    expected = [each.metrics['eval/loss'] for each in run(made, tmp_path / 'whole')]
    parts = resumed_after_an_interruption(made, tmp_path / 'parts')
    assert [each.metrics['eval/loss'] for each in parts] == expected
    list(run(experiment(num_steps=4), tmp_path / 'wide'))
    start = WarmStart(str(tmp_path / 'wide' / 'checkpoints'))
    warm = narrow(num_steps=2, train__init_from_checkpoint=[start])
    *_, last = run(warm, tmp_path / 'warm')
    assert last.metrics['eval/loss'] < expected[0]
