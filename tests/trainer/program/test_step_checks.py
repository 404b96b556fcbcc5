"""Checks of steps on the data of an experiment, before anything is compiled."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.labelled import FAULTS, MESSAGES, Accuracy, Points, classifier
from trainer.inputs import Arrays, ArraysInput, arrays_of
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.evaluation import eval_batches
from trainer.layers import Linear
from trainer.losses import SigmoidCrossEntropy, SoftmaxCrossEntropy
from trainer.measures.base import Outcome
from trainer.metrics import Count
from trainer.program.setup import prepare_inputs
from trainer.program.step_checks import check_steps, steps_identity
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch
from trainer.tasks import ClassificationTask, RegressionTask


@pytest.mark.parametrize('name', FAULTS)
def test_a_fault_of_data_or_metrics_is_named(name: str) -> None:
    with pytest.raises(UserError, match=MESSAGES[name]):
        check_steps(FAULTS[name]())


class Augmented(Points):
    """Changes its labels."""

    def augment(self, batch: Batch, index: np.ndarray) -> Batch:
        return {**batch, 'label': batch['label'] % 3}


def test_steps_without_a_fault_pass() -> None:
    check_steps(classifier())
    check_steps(classifier(metrics=[Accuracy()]))
    check_steps(classifier(eval_inputs={}))
    check_steps(classifier(train_input=Augmented(batch_size=16, is_training=True, first=1)))
    check_steps(classifier(num_classes=4).rebind({'task.loss': SigmoidCrossEntropy()}))


def test_labels_of_a_regression_are_no_classes() -> None:
    made = classifier(num_classes=1)
    task: Any = RegressionTask(made.task.model, made.task.learner, input_feature='x')
    check_steps(made.clone().rebind(task=task))


def test_examples_of_weight_zero_have_any_label() -> None:
    check_steps(classifier(train_input=Points(batch_size=16, is_training=True, padded=True)))


class Ignoring(SoftmaxCrossEntropy):
    """Leaves out a class."""

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        is_class = labels < 3
        return jnp.where(is_class, super().of(outputs, jnp.where(is_class, labels, 0)), 0.0)


class FromOne(ClassificationTask):
    """Changes its labels."""

    def outcome(self, outputs: jax.Array, batch: DeviceBatch) -> Outcome:
        return super().outcome(outputs, {**batch, 'label': batch['label'] - 1})


class Excluding(ClassificationTask):
    """Has weights of its own."""

    def example_weights(self, batch: DeviceBatch) -> jax.Array:
        return (batch['label'] < 3).astype(jnp.float32)


def test_labels_mean_what_code_of_the_user_takes_them_for() -> None:
    data = Points(batch_size=16, is_training=True, first=1)
    for task in (FromOne, Excluding):
        check_steps(classifier(task, train_input=data.clone()))
    check_steps(classifier(train_input=data.clone()).rebind({'task.loss': Ignoring()}))


class Rows(ArraysInput):
    """A label for each of two positions, and a weight for each example."""

    def read(self) -> Arrays:
        x, label = np.ones((32, 2, 4), np.float32), np.zeros((32, 2), np.int32)
        weights = np.ones(32, np.float32)
        label[5], weights[5] = -1, 0
        return arrays_of({'x': x, 'label': label, 'weights': weights})


def test_labels_of_positions_have_the_weights_of_examples() -> None:
    rows = Rows(batch_size=16, is_training=True)
    check_steps(classifier(train_input=rows, eval_inputs={}).rebind({'task.model': Linear(3)}))


class Counting(ClassificationTask):
    """Its loss has no mean."""

    def measure(self, outputs: jax.Array, batch: Any) -> Any:
        return super().measure(outputs, batch) | {'loss': Count(outputs.sum())}


def test_a_loss_is_a_mean() -> None:
    with pytest.raises(UserError, match=r"it needs 'loss', a WeightedScalar"):
        check_steps(classifier(Counting))


def test_equal_steps_have_one_identity() -> None:
    assert steps_identity(classifier(rate=0.1)) == steps_identity(classifier(rate=0.2))
    assert steps_identity(classifier()) != steps_identity(classifier(num_classes=4))


# --- Methods of inputs ---


class Only(Input):
    """Has batches, and nothing else."""

    def get_next(self) -> Batch:
        return {'x': np.ones((4, 4), np.float32), 'label': np.zeros(4, np.int32)}


class Endless(Only):
    """Has all methods that training needs."""

    def fingerprint(self) -> str:
        return 'ones'

    def get_position(self) -> dict[str, Any]:
        return {}

    def set_position(self, position: dict[str, Any]) -> None: ...


def test_missing_methods_of_an_input_are_named_together() -> None:
    with pytest.raises(UserError) as caught:
        prepare_inputs(classifier(train_input=Only(batch_size=4, is_training=True)))
    missing = 'train_input: Only has no fingerprint, reset, get_position, set_position: write them'
    assert str(caught.value).startswith(f'{missing} (docs/extending/data.md has an example)')
    prepare_inputs(classifier(train_input=Endless(batch_size=4, is_training=True)))
    with pytest.raises(UserError, match=r'^eval_inputs\.test: Endless has no reset: write it '):
        prepare_inputs(classifier(eval_inputs={'test': Endless(batch_size=4)}))


class Ending(Endless):
    """Has one batch."""

    def _on_bound(self) -> None:
        super()._on_bound()
        self._left = 1

    def get_next(self) -> Batch:
        if not self._left:
            raise EndOfData
        self._left -= 1
        return super().get_next()


def test_a_rolling_evaluation_without_an_end_needs_no_reset() -> None:
    rolling: dict[str, Any] = {'reset_for_eval': False, 'eval_loop_num_batches': 2}
    data = Endless(batch_size=4, **rolling)
    prepare_inputs(classifier(eval_inputs={'test': data}))
    assert len(list(eval_batches(data))) == 2
    with pytest.raises(UserError, match='Ending ends, and has no reset that starts it again'):
        list(eval_batches(Ending(batch_size=4, **rolling)))
