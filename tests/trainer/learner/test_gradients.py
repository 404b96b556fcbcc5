"""Norms, clipping by them and by value, and steps that are skipped for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conformance.optimizer_suite import PARAMS, UNSCANNED
from tests.trainer.learner.stepping import GRADIENTS, stepped
from trainer.layers.stack import per_layer
from trainer.learner import SGD, Learner


def moved(**fields: Any) -> Any:
    """The gradients that the optimizer was given, layer by layer."""
    fields = {'clip_gradient_norm_to_value': None} | fields
    state, _ = stepped(Learner(1.0, optimizer=SGD(), **fields))
    return per_layer(jax.tree.map(np.subtract, PARAMS, jax.device_get(state.params)))


def test_each_parameter_of_each_layer_is_clipped_alone() -> None:
    norms = [float(optax.tree.norm(leaf)) for leaf in jax.tree.leaves(per_layer(GRADIENTS))]
    most = float(np.median(norms))
    clipped = moved(clip_gradient_single_norm_to_value=most)
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
    got = moved(clip_gradient_to_value=0.5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), got, wanted)


def test_a_step_with_a_norm_too_high_changes_nothing() -> None:
    norm = float(optax.tree.norm(GRADIENTS))
    for most, anomalies in ((norm * 1.01, True), (norm * 0.99, True), (norm * 0.99, False)):
        learner = Learner(
            0.1,
            skip_step_gradient_norm_value=most,
            enable_skip_step_on_gradient_anomalies=anomalies,
            ema_decay=0.9,
        )
        state, metrics = stepped(learner)
        skipped = most < norm
        assert metrics['skipped_steps'].value() == skipped
        assert int(state.step) == 1
        for tree in (state.params, state.ema_params):
            same = jax.tree.map(np.array_equal, tree, PARAMS)
            assert all(jax.tree.leaves(same)) == skipped


ASKED = ('grad_norm_individual_vars', 'var_norm_summary', 'var_norm_individual_vars')


@pytest.mark.parametrize('scanned', [True, False])
def test_norms_are_metrics_where_asked_for(scanned: bool) -> None:
    learner = Learner(0.1, **dict.fromkeys(ASKED, True))
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


def test_norms_are_not_there_where_not_asked_for() -> None:
    _, metrics = stepped(Learner(0.1))
    assert set(metrics) == {'learning_rate', 'gradient_norm', 'skipped_steps'}


@pytest.mark.parametrize(
    'fields',
    [
        {'clip_gradient_single_norm_to_value': 1.0},
        {'clip_gradient_to_value': 1.0},
        {'clip_gradient_norm_to_value': None, 'clip_gradient_to_value': 0.0},
        {'skip_step_gradient_norm_value': 0.0},
    ],
)
def test_impossible_values_are_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match='must'):
        Learner(0.1, **fields)
