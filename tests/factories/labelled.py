"""Tiny classifiers, and the faults of their data and metrics."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from trainer.experiment import Evaluation, Experiment, TrainLoop
from trainer.inputs import Arrays, ArraysInput, Batch, arrays_of
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.measures.base import Measure, Outcome
from trainer.metrics import Metric, Metrics, WeightedScalar
from trainer.task import DeviceBatch
from trainer.tasks import ClassificationTask


class Points(ArraysInput):
    """Points of three classes: `x` [B, 4], `label` [B].

    Attributes:
        first: the number of the first class.
        is_column: labels are [B, 1].
        is_float: labels are floats.
        padded: one example has the label -1, and no weight.
    """

    first: int = 0
    is_column: bool = False
    is_float: bool = False
    padded: bool = False

    def read(self) -> Arrays:
        label = np.arange(60) % 3 + self.first
        x = np.random.default_rng(0).normal(size=(60, 4)) + label[:, None]
        weights = np.ones(60, np.float32)
        if self.padded:
            label[7], weights[7] = -1, 0
        label = label[:, None] if self.is_column else label
        label = label.astype(np.float32) if self.is_float else label
        return arrays_of({'x': x, 'label': label, 'weights': weights})


class Shifted(Points):
    """Changes the labels in its batches."""

    def get_next(self) -> Batch:
        batch = super().get_next()
        return {**batch, 'label': batch['label'] + 1}


class Accuracy(Measure):
    """An own measure: a metric, a number, or without weights."""

    returns: str = 'metric'

    def metric_name(self) -> str:
        return 'own'

    def measure(self, outcome: Outcome) -> Metric:
        right: Any = (outcome.outputs.argmax(-1) == outcome.labels).astype(np.float32)
        if self.returns == 'number':
            return right.mean()
        return WeightedScalar.of(right, outcome.weights if self.returns == 'metric' else None)  # type: ignore[arg-type]


class Huber(ClassificationTask):
    """Calls its loss something else."""

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        return {'huber': super().measure(outputs, batch)['loss']}


class Bare(ClassificationTask):
    """Measures a number."""

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        return {'loss': super().measure(outputs, batch)['loss'].total}


def classifier(
    task: type[ClassificationTask] = ClassificationTask,
    num_classes: int = 3,
    rate: Any = 0.1,
    metrics: Any = (),
    **inputs: Any,
) -> Experiment:
    """A classifier of `Points`."""
    given = {
        'train_input': Points(batch_size=16, is_training=True),
        'eval_inputs': {'test': Points(batch_size=20)},
    }
    return Experiment(
        task=task(Mlp([4], num_classes), Learner(rate), input_feature='x', metrics=[*metrics]),
        train=TrainLoop(4, Evaluation(2)),
        **(given | inputs),
    )


def trained_on(**fields: Any) -> Experiment:
    return classifier(train_input=Points(batch_size=16, is_training=True, **fields))


def evaluated_on(**fields: Any) -> Experiment:
    return classifier(eval_inputs={'test': Points(batch_size=20, **fields)})


FAULTS: dict[str, Callable[[], Experiment]] = {
    'labels from 1': lambda: trained_on(first=1),
    'labels below 0': lambda: trained_on(first=-1),
    'evaluation from 1': lambda: evaluated_on(first=1),
    'labels of batches': lambda: classifier(train_input=Shifted(batch_size=16, is_training=True)),
    'column': lambda: trained_on(is_column=True),
    'evaluation of a column': lambda: evaluated_on(is_column=True),
    'floats': lambda: trained_on(is_float=True),
    'number as measure': lambda: classifier(metrics=[Accuracy(returns='number')]),
    'no weights': lambda: classifier(metrics=[Accuracy(returns='unweighted')]),
    'number as metric': lambda: classifier(Bare),
    'no loss': lambda: classifier(Huber),
}
"""Experiments that cannot train, whatever is searched."""

_LABEL = "'label' has the label {}, but the model has outputs for 3 classes, .* 0 to 2"

MESSAGES = {
    'labels from 1': f'^train_input: {_LABEL.format(3)}',
    'labels below 0': f'^train_input: {_LABEL.format(-1)}',
    'evaluation from 1': rf'^eval_inputs\.test: {_LABEL.format(3)}',
    'labels of batches': f'^train_input: {_LABEL.format(3)}',
    'column': r'labels of shape \(16, 1\) do not fit together: expected labels of shape',
    'evaluation of a column': r'^eval_inputs\.test: outputs .* labels of shape \(20, 1\) do not',
    'floats': 'must be integers',
    'number as measure': r'^Accuracy\.measure: its result must be a Metric, such as Weighted',
    'no weights': r'there are no weights: give one for each value, as outcome\.weights',
    'number as metric': r"^task: Bare\.measure returns 'loss': it must be a Metric, such as",
    'no loss': r"^task: Huber\.measure returns huber: it needs 'loss', .* training minimizes",
}
"""Patterns of their messages."""
