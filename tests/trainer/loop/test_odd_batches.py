"""Values in batches that make a loss NaN are named."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.tiny import model as tiny_model
from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs import NpzInput
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.loop import odd_batches
from trainer.loop.odd_batches import oddity
from trainer.loop.train_loop import run
from trainer.mesh import Mesh
from trainer.symbolic.errors import NonFiniteLossError
from trainer.tasks import ClassificationTask, LanguageModelTask, RegressionTask

ONES = np.ones(4, np.float32)


def classifier() -> ClassificationTask:
    return ClassificationTask(Mlp([4], 3), Learner(1e-2))


def batch_of(**features: Any) -> dict[str, np.ndarray]:
    image = np.ones((4, 2), np.float32)
    return {'image': image, 'label': np.array([0, 1, 2, 0], np.int32), 'weights': ONES} | features


@pytest.mark.parametrize(
    ('features', 'message'),
    [
        ({}, ''),
        (
            {'label': np.array([1, 2, 3, 1], np.int32)},
            'label holds 3 (example 2), which is no class among the logits of 3, 0 to 2',
        ),
        ({'label': np.array([1, 2, 3, 1]), 'weights': np.array([1.0, 1, 0, 1])}, ''),
        (
            {'image': np.array([[0, 1], [1, np.nan], [0, 0], [0, 0]], np.float32)},
            'image holds nan (example 1, position 1), which is not finite',
        ),
        (
            {'image': np.array([[0, 1], [1, np.inf], [0, 0], [0, 0]], np.float32)}
            | {'weights': np.array([1.0, 0, 1, 1])},
            '',
        ),
    ],
    ids=['fine', 'label', 'without weight', 'nan', 'infinite without weight'],
)
def test_a_batch_of_a_classifier(features: Any, message: str) -> None:
    assert oddity(classifier(), batch_of(**features)) == message


@pytest.mark.parametrize(
    ('name', 'value', 'message'),
    [
        ('ids', -1, 'ids holds -1 (example 1, position 2), which is no token of the vocabulary of'),
        ('ids', 99, 'ids holds 99 (example 1, position 2), which is no token of the vocabulary of'),
        ('labels', -100, 'labels holds -100 (example 1, position 2), which is no token of'),
    ],
)
def test_a_batch_of_a_language_model(name: str, value: int, message: str) -> None:
    task = LanguageModelTask(tiny_model(), Learner(1e-2))
    ids = np.ones((2, 4), np.int32)
    batch = {'ids': ids, 'labels': ids.copy(), 'weights': np.ones((2, 4), np.float32)}
    assert oddity(task, batch) == ''
    batch[name] = batch[name].copy()
    batch[name][1, 2] = value
    assert oddity(task, batch).startswith(message)


def test_labels_of_a_regression_that_are_nan_are_named() -> None:
    task = RegressionTask(Mlp([4], 1), Learner(1e-2))
    label = np.array([0, np.nan, 1, 0], np.float32)
    assert oddity(task, batch_of(label=label)).startswith('label holds nan (example 1)')


def experiment(folder: Path, train: Any, evaluated: Any) -> Experiment:
    for name, label in (('train', train), ('eval', evaluated)):
        np.savez(folder / f'{name}.npz', image=np.ones((8, 2), np.float32), label=label)

    def data(name: str, is_training: bool) -> NpzInput:
        path = str(folder / f'{name}.npz')
        return NpzInput(batch_size=8, is_training=is_training, path=path)

    return Experiment(
        task=classifier(),
        train_input=data('train', True),
        eval_inputs={'eval': data('eval', False)},
        mesh=Mesh(data=1),
        train=TrainLoop(2, Evaluation(1), Checkpoints(1)),
    )


def test_a_run_names_the_value_that_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = np.array([0, 1, 2, 0] * 2), np.array([0, 1, 2, 7] * 2)
    reports = list(run(experiment(tmp_path, good, bad), tmp_path / 'run'))
    assert len(reports) == 2
    assert caplog.text.count('eval/loss is NaN: label holds 7 (example 3)') == 1
    with pytest.raises(NonFiniteLossError, match=r'is nan at step 1: label holds 7 \(example '):
        list(run(experiment(tmp_path, bad, good), tmp_path / 'other'))


def test_the_look_at_an_evaluation_traces_once_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = np.array([0, 1, 2, 0] * 2)
    made = experiment(tmp_path, good, good)
    made.eval_inputs['eval'].rebind(batch_size=2)
    outputs, traces = odd_batches._outputs, []

    def traced(*args: Any) -> Any:
        traces.append(args)
        return outputs(*args)

    monkeypatch.setattr(odd_batches, '_outputs', traced)
    assert odd_batches.has_warned(made, {'eval/loss': math.nan})
    assert len(traces) == 1
    monkeypatch.delattr(odd_batches, '_copy')  # Its data cannot be read again.
    assert odd_batches.has_warned(made, {'eval/loss': math.nan})
    assert caplog.text.count('eval/loss is NaN\n') == 2
