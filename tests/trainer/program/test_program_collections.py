"""Variables of layers besides parameters, in a step: state, losses, summaries."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.runs import resumed_after_an_interruption
from tests.factories.tiny import experiment
from trainer.layers import Attention, FeedForward, Stack, TransformerBlock
from trainer.layers.positions import Positions
from trainer.loop.train_loop import run
from trainer.metrics import Count, Metric, Totals, WeightedScalar
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import NonFiniteLossError


class Watched(TransformerBlock):
    """A block that counts its calls in training, and adds half a nat to the loss."""

    fails_at: int = -1

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        seen = self.state('seen', ())
        if self.training:
            self.set_state('seen', seen + 1)
            self.add_summary('width', jnp.float32(x_BTD.shape[-1]))
        self.add_aux_loss('half', jnp.float32(0.5))
        y_BTD = super().forward(x_BTD, positions)
        # Always zero; its gradient is not finite where the root is of zero.
        root = jnp.sqrt(jnp.where(seen == self.fails_at, 0.0, 1.0) * jnp.mean(y_BTD) ** 2)
        return y_BTD + 0.0 * root


def watched(scan: str = 'never', **overrides: Any) -> Any:
    block = Watched(Attention(2), FeedForward(32), fails_at=overrides.pop('fails_at', -1))
    stack = Stack([block], repeats=2, scan=scan)
    return experiment(**{'task__model__stack': stack, 'mesh__data': 1, **overrides})


def steps(made: Any, count: int) -> tuple[Program, TrainState, list[Any]]:
    """The program, the state after some steps, and the metrics of each."""
    made = localized(made)
    program, values = compiled(made)
    key = program.random_key(0)
    state, metrics = program.init(key, values), []
    for _ in range(count):
        batch = program.put(made.train_input.get_next())
        state, of_step = program.train_step(state, batch, key, values)
        metrics.append(jax.device_get(of_step))
    return program, jax.device_get(state), metrics


def seen(state: TrainState) -> list[float]:
    return np.concatenate(
        [np.ravel(leaf) for leaf in jax.tree.leaves(state.non_trainable)]
    ).tolist()


@pytest.mark.pax('always_use_train_for_model_init', '… `apply_mutable_list`', 'loss_name')
@pytest.mark.pax('Nested keys flattened', 'Summaries: scalars', 'total_loss', '`aux_loss`')
@pytest.mark.pax('… NON_TRAINABLE', 'Collections of variables', 'add_summary')
@pytest.mark.parametrize('scan', ['never', 'always'])
@pytest.mark.slow
def test_layers_keep_state_add_losses_and_summaries(scan: str) -> None:
    _, state, metrics = steps(watched(scan), 2)
    assert seen(state) == [2, 2]
    plain = steps(experiment(task__model__stack__repeats=2), 1)[2][0]
    assert metrics[0]['aux_loss'].value() == 1.0
    np.testing.assert_allclose(metrics[0]['loss'].value(), plain['loss'].value() + 1, rtol=1e-5)
    summaries = {name: each.value() for name, each in metrics[0].items() if 'summaries' in name}
    assert summaries == {f'summaries/stack/layers_{i}/width': 16.0 for i in (0, 1)}


def test_parts_of_a_batch_hand_state_on() -> None:
    _, state, metrics = steps(watched(task__learner__microbatches=2), 3)
    assert seen(state) == [6, 6]
    _, _, whole = steps(watched(), 3)
    for one, other in zip(metrics, whole, strict=True):
        np.testing.assert_allclose(one['loss'].value(), other['loss'].value(), rtol=1e-5)


@pytest.mark.pax('enable_skip_step_on_gradient_anomalies')
def test_a_step_without_finite_gradients_changes_nothing() -> None:
    # The layer's gradients are not finite in its second step, and so in all that follow.
    program, after_one, _ = steps(watched(fails_at=1), 1)
    _, after_three, metrics = steps(watched(fails_at=1), 3)
    assert [each['skipped_steps'].value() for each in metrics] == [0, 1, 1]
    assert [each['gradient_norm'].value() is None for each in metrics] == [False, True, True]
    assert all(np.isfinite(each['loss'].value()) for each in metrics)
    assert int(after_three.step) == 3 and seen(after_three) == [1, 1]
    jax.tree.map(np.testing.assert_array_equal, after_one.params, after_three.params)
    jax.tree.map(np.testing.assert_array_equal, after_one.opt_state, after_three.opt_state)
    assert program.num_params() == sum(leaf.size for leaf in jax.tree.leaves(after_one.params))


@pytest.mark.pax('TrainState')
def test_evaluation_has_averages_and_what_is_not_trained() -> None:
    for averages, wanted in (({}, {'w': 1.0}), ({'w': 0.5}, {'w': 0.5})):
        state = TrainState(jnp.int32(3), {'w': 1.0}, {'mean': 2.0}, {}, averages)
        assert state.variables == {'params': wanted, 'non_trainable': {'mean': 2.0}}


@pytest.mark.pax('eval_use_ema_states', 'Averaged parameters', 'ema_decay')
@pytest.mark.slow
def test_evaluation_is_with_the_averaged_parameters(tmp_path: Path) -> None:
    made = experiment(num_steps=4, task__learner__ema_decay=0.5)
    program, values = compiled(localized(made))
    key = program.random_key(0)
    data = localized(made).train_input
    state = program.init(key, values)
    average = jax.device_get(state.params)
    for step in range(4):
        state, _ = program.train_step(state, program.put(data.get_next()), key, values)
        kept = min(0.5, (1 + step) / (10 + step))
        new = jax.device_get(state.params)
        average = jax.tree.map(lambda a, p, kept=kept: kept * a + (1 - kept) * p, average, new)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.ema_params, average
    )
    jax.tree.map(np.testing.assert_array_equal, state.variables['params'], dict(state.ema_params))
    *_, last = run(made, tmp_path)
    *_, plain = run(experiment(num_steps=4), tmp_path / 'plain')
    assert last.metrics['train/loss'] == pytest.approx(plain.metrics['train/loss'])
    assert last.metrics['eval/loss'] != pytest.approx(plain.metrics['eval/loss'], rel=1e-4)


@pytest.mark.slow
def test_state_and_averages_survive_an_interruption(tmp_path: Path) -> None:
    made = watched(num_steps=4, task__learner__ema_decay=0.9)
    expected = [each.metrics['eval/loss'] for each in run(made, tmp_path / 'whole')]
    parts = resumed_after_an_interruption(made, tmp_path / 'parts')
    assert [each.metrics['eval/loss'] for each in parts] == expected


@pytest.mark.pax('WeightedScalars', 'MeanMetrics')
def test_metrics_of_all_kinds_come_back_from_json() -> None:
    totals = Totals()
    one: dict[str, Metric] = {'mean': WeightedScalar(1.0, 3.0), 'none': WeightedScalar(0.0, 0.0)}
    totals.add(one | {'count': Count(2.0)})
    totals.add({'count': Count(1.0)})
    assert totals.values() == {'mean': 1 / 3, 'count': 3.0}
    assert Totals(totals.to_json()).to_json() == totals.to_json()


@pytest.mark.slow
def test_a_run_in_which_no_gradient_is_finite_ends(tmp_path: Path) -> None:
    made = watched(fails_at=3, num_steps=40, train__summary_interval_steps=20)
    with pytest.raises(
        NonFiniteLossError, match=r'10 steps in a row, up to step 13.*checkpoints/12\.'
    ):
        list(run(made, tmp_path))
