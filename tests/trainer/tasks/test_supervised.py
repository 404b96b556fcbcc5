"""Classification and regression: metrics and training."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import resnet
from tests.factories.tiny_images import EXAMPLES, CornersInput, experiment
from trainer.layers import Layer, Linear, Mlp
from trainer.learner import Learner
from trainer.loop.metric_names import metric_names
from trainer.loop.train_loop import run
from trainer.losses import (
    MeanSquaredError,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    WeightedLosses,
)
from trainer.measures import F1, AccuracyAt, Auc, MeanLoss
from trainer.metrics import Totals
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.symbolic.errors import UserError
from trainer.tasks import ClassificationTask, RegressionTask

LOGITS = jnp.array([[2.0, 1, 0], [0, 3, 1], [1, 0, 0], [9, 0, 0]])
LABELS = jnp.array([0, 2, 0, 1])
WEIGHTS = jnp.array([1.0, 1, 2, 0])


def classification(**fields: Any) -> ClassificationTask:
    return ClassificationTask(model=Linear(3), learner=Learner(learning_rate=0.1), **fields)


def values(task: Any, outputs: Any, **batch: Any) -> dict[str, float]:
    totals = Totals()
    totals.add(task.measure(outputs, batch))
    return totals.values()


@pytest.mark.pax('avg_xent', 'ClassificationModel')
def test_a_classifier_is_measured_by_examples_of_weight() -> None:
    loss = SoftmaxCrossEntropy(label_smoothing=0.1)
    task = classification(loss=loss, metrics=[AccuracyAt(2)])
    got = values(task, LOGITS, label=LABELS, weights=WEIGHTS)
    plain = np.asarray(SoftmaxCrossEntropy().of(LOGITS, LABELS))
    smoothed = np.asarray(loss.of(LOGITS, LABELS))
    assert got == {
        'avg_xent': pytest.approx(np.average(plain, weights=WEIGHTS)),
        'accuracy': 0.75,
        'loss': pytest.approx(np.average(smoothed, weights=WEIGHTS)),
        'accuracy_at_2': 1,
    }
    soft = values(task, LOGITS, label=jnp.eye(3)[LABELS], weights=WEIGHTS)
    assert soft == {name: pytest.approx(value, rel=1e-6) for name, value in got.items()}
    unweighted = values(task, LOGITS, label=LABELS)
    assert unweighted['accuracy'] == 0.5


@pytest.mark.slow
def test_multi_label_classification() -> None:
    labels = jnp.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1]])
    task = classification(loss=SigmoidCrossEntropy(), metrics=[F1('micro'), Auc()])
    got = values(task, LOGITS - 0.5, label=labels, weights=WEIGHTS)
    assert got['accuracy'] == pytest.approx((1 + 1 / 3 + 2 * 1) / 4)
    assert got['f1_micro'] == pytest.approx(2 * 4 / (4 + 6))
    # Logits of the middle class: 0.5 for a positive, 2.5 and -0.5 (twice) for negatives.
    assert got['auc'] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_a_single_logit_is_that_of_class_one() -> None:
    task = classification(loss=SigmoidCrossEntropy(), metrics=[F1()])
    got = values(task, jnp.array([[2.0], [-1], [3]]), label=jnp.array([1, 0, 0]))
    assert got['accuracy'] == pytest.approx(2 / 3)
    assert got['f1'] == pytest.approx(2 / 3)


def test_several_losses_are_measured_each() -> None:
    loss = WeightedLosses(
        losses={'xent': SoftmaxCrossEntropy(), 'squared': MeanSquaredError()},
        weights={'xent': 1.0, 'squared': 3.0},
    )
    got = values(classification(loss=loss), LOGITS, label=jnp.eye(3)[LABELS])
    assert got['loss'] == pytest.approx(got['loss/xent'] + 3 * got['loss/squared'])


@pytest.mark.pax('Regression')
def test_a_regression_is_measured_by_its_loss() -> None:
    task = RegressionTask(
        model=Linear(1),
        learner=Learner(learning_rate=0.1),
        metrics=[MeanLoss('squared', MeanSquaredError())],
    )
    outputs, labels = jnp.array([[1.0], [2], [5]]), jnp.array([0.0, 2, 1])
    got = values(task, outputs, label=labels, weights=jnp.array([1.0, 1, 0]))
    assert got == {'loss': 0.5, 'squared': 0.5}


def test_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match='several metrics are called f1'):
        classification(metrics=[F1(), F1(positive_class=2)])


@pytest.mark.parametrize('name', ['loss', 'accuracy', 'gradient_norm', 'aux_loss'])
def test_a_metric_that_would_hide_another_is_refused(name: str) -> None:
    made = experiment(WithAuxiliaryLoss(4), task__metrics=[MeanLoss(name, SoftmaxCrossEntropy())])
    with pytest.raises(ValueError, match=f'several metrics are called {name}: name them diff'):
        metric_names(made)


class WithAuxiliaryLoss(Layer):
    dims: int

    def forward(self, x: jax.Array) -> jax.Array:
        self.add_aux_loss('size', jnp.mean(x**2))
        return x.reshape(len(x), -1)[:, : self.dims]


def test_features_that_are_missing_are_named() -> None:
    task = classification(label_feature='class')
    with pytest.raises(UserError, match=r"no feature 'class', only image, label, weights: set "):
        task.check_input(CornersInput(batch_size=2))
    classification().check_input(CornersInput(batch_size=2))


def test_8_bit_images_are_scaled_to_zero_to_one() -> None:
    x: Any
    (x,) = classification(fprop_dtype='bfloat16').model_inputs(
        {'image': jnp.array([[0, 51, 255]], jnp.uint8)}
    )
    assert x.dtype == jnp.bfloat16
    np.testing.assert_allclose(x[0].astype(jnp.float32), [0, 0.2, 1], rtol=1e-2)


@pytest.mark.parametrize('feature', ['x', 'y'])
def test_nan_in_padding_counts_neither_in_metrics_nor_in_gradients(feature: str) -> None:
    task: Any = RegressionTask(
        Linear(2), Learner(0.1), input_feature='x', label_feature='y', metrics=[Auc()]
    )
    batch = {
        'x': jnp.ones((4, 3)),
        'y': jnp.array([[0.0, 1], [1, 0], [1, 0], [0, 1]]),
        'weights': jnp.array([1.0, 0, 1, 0]),
    }
    variables = task.model.module().init({'params': jax.random.key(0)}, batch['x'])

    def loss(variables: Any, batch: Any) -> Any:
        outputs = task.model.module().apply(variables, *task.model_inputs(batch))
        metrics = task.measure(outputs, batch)
        return metrics['loss'].total, metrics

    wanted = jax.grad(loss, has_aux=True)(variables, batch)
    broken = batch | {feature: batch[feature].at[1].set(jnp.nan).at[3].set(jnp.inf)}
    jax.tree.map(
        np.testing.assert_array_equal, jax.grad(loss, has_aux=True)(variables, broken), wanted
    )


def test_truth_values_stay_truth_values() -> None:
    task = ClassificationTask(Mlp([4], 2), Learner(0.1), loss=SigmoidCrossEntropy())
    batch: Any = {'image': jnp.ones((4, 3), bool), 'label': jnp.ones((4, 2), bool)}
    batch['weights'] = jnp.ones(4)
    assert task.model_inputs(batch)[0].dtype == bool  # type: ignore[attr-defined]
    assert task.outcome(jnp.zeros((4, 2)), batch).labels.dtype == bool


def test_labels_of_eight_bits_do_not_wrap() -> None:
    class Hinge(SoftmaxCrossEntropy):
        def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
            return jnp.maximum(0, 1 - (2 * labels - 1) * outputs[..., 1])

    task = classification(loss=Hinge())
    labels = jnp.array([0, 1, 0, 1], jnp.uint8)
    wide = values(task, LOGITS, label=labels.astype(jnp.int32))
    assert values(task, LOGITS, label=labels) == wide


@pytest.mark.slow
def test_a_residual_network_learns_and_padding_does_not_count(tmp_path: Path) -> None:
    made = experiment(resnet(), num_steps=30, task__metrics=[AccuracyAt(2)])
    made.rebind({'train.evaluation.every': 30, 'train.checkpoints.every': 30})
    (last,) = run(made, tmp_path)
    assert last.metrics['eval/accuracy'] > 0.8
    # Twenty examples; the denominators of metrics show the number of examples.
    right = last.metrics['eval/accuracy'] * EXAMPLES
    assert right == pytest.approx(round(right), abs=1e-4)


@pytest.mark.slow
def test_microbatches_update_running_statistics_in_turn() -> None:
    def kept(microbatches: int) -> tuple[Program, Any]:
        made = localized(experiment(resnet(), task__learner__microbatches=microbatches))
        program, values = compiled(made)
        state = program.init(program.random_key(0), values)
        batch = made.train_input.get_next()
        batch['weights'][1::2] = 0  # With two parts, the second one is padding alone.
        batch['image'][1::2] = 1e4
        state, _ = program.train_step(state, program.put(batch), program.random_key(0), values)
        return program, state.non_trainable['stem']['first_norm']

    (_, whole), (_, parts) = kept(1), kept(2)
    for name in ('mean', 'variance'):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-4, atol=1e-6)


@pytest.mark.pax('ClassificationMLPModel')
def test_a_perceptron_takes_any_features() -> None:
    task = ClassificationTask(
        model=Mlp([4], 3), learner=Learner(learning_rate=0.1), input_feature='x'
    )
    assert task.num_tokens({'x': jnp.ones((5, 2))}) == 5
