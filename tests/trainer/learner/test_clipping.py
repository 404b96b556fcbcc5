"""Clipping, skipped steps, norm metrics."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conformance.optimizer_suite import PARAMS, UNSCANNED
from tests.factories.parts import GRADIENTS, stepped
from trainer.layers.stack import per_layer
from trainer.learner import (
    SGD,
    Elementwise,
    GlobalNorm,
    Learner,
    NormMetrics,
    ParameterNorm,
    SkipNonFinite,
)


def moved(**fields: Any) -> Any:
    """The clipped gradients, layer by layer."""
    fields = {'clipping': None} | fields
    state, _ = stepped(Learner(1.0, optimizer=SGD(), **fields))
    return per_layer(jax.tree.map(np.subtract, PARAMS, jax.device_get(state.params)))


@pytest.mark.pax('clip_gradient_norm_to_value')
def test_each_parameter_of_each_layer_is_clipped_alone() -> None:
    norms = [float(optax.tree.norm(leaf)) for leaf in jax.tree.leaves(per_layer(GRADIENTS))]
    most = float(np.median(norms))
    clipped = moved(clipping=ParameterNorm(most))
    got = [float(optax.tree.norm(leaf)) for leaf in jax.tree.leaves(clipped)]
    np.testing.assert_allclose(got, np.minimum(norms, most), rtol=1e-4)
    cosines = jax.tree.map(
        lambda a, b: jnp.vdot(a, b) / optax.tree.norm(a) / optax.tree.norm(b),
        clipped,
        per_layer(GRADIENTS),
    )
    np.testing.assert_allclose(jax.tree.leaves(cosines), 1, rtol=1e-4)


def test_each_element_is_clipped() -> None:
    wanted = jax.tree.map(lambda g: jnp.clip(g, -0.5, 0.5), per_layer(GRADIENTS))
    got = moved(clipping=Elementwise(0.5))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), got, wanted)


@pytest.mark.pax('skip_step_gradient_norm_value')
def test_a_step_with_a_large_norm_is_skipped() -> None:
    norm = float(optax.tree.norm(GRADIENTS))
    for most in (norm * 1.01, norm * 0.99):
        learner = Learner(0.1, skip=SkipNonFinite(max_norm=most), ema_decay=0.9)
        state, metrics = stepped(learner)
        skipped = most < norm
        assert metrics['skipped_steps'].value() == skipped
        assert int(state.step) == 1
        for tree in (state.params, state.ema_params):
            same = jax.tree.map(np.array_equal, tree, PARAMS)
            assert all(jax.tree.leaves(same)) == skipped


@pytest.mark.pax('variable_norm_summary', 'grad_norm_summary')
@pytest.mark.parametrize('scanned', [True, False])
def test_norm_metrics(scanned: bool) -> None:
    learner = Learner(0.1, norm_metrics=NormMetrics(True, True, True))
    apart = per_layer(GRADIENTS), per_layer(PARAMS)
    _, metrics = (
        stepped(learner)
        if scanned
        else stepped(learner, params=apart[1], gradients=apart[0], mask=UNSCANNED)
    )
    for name, tree in zip(('gradient_norm', 'parameter_norm'), apart, strict=True):
        wanted = {name: optax.tree.norm(tree)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            at = jax.tree_util.keystr(path, simple=True, separator='/')
            wanted[f'{name}/{at}'] = optax.tree.norm(leaf)
        got = {each: m.value() for each, m in metrics.items() if each.startswith(name)}
        assert got == pytest.approx({each: float(norm) for each, norm in wanted.items()}, rel=1e-5)
    assert 'gradient_norm/stack/layers_1/kernel' in metrics


def test_there_are_no_norm_metrics_by_default() -> None:
    _, metrics = stepped(Learner(0.1))
    assert set(metrics) == {'learning_rate', 'gradient_norm', 'skipped_steps'}


@pytest.mark.parametrize(
    'make',
    [
        lambda: GlobalNorm(0.0),
        lambda: ParameterNorm(-1.0),
        lambda: Elementwise(0.0),
        lambda: SkipNonFinite(max_norm=0.0),
    ],
)
def test_impossible_values_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match='must'):
        make()
