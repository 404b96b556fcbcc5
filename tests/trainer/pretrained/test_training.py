"""Classifiers that begin with pretrained weights, in the train loop."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.pretrained import calls, directory
from tests.factories.runs import measured
from trainer.experiment import Evaluation, Experiment, TrainLoop
from trainer.inputs import Arrays, ArraysInput, arrays_of
from trainer.learner import Learner
from trainer.losses import SoftmaxCrossEntropy
from trainer.pretrained.families import model_of
from trainer.tasks import ClassificationTask
from trainer.warm_start_rules import Pretrained

LABELS = np.array([1, 0])


class Rows(ArraysInput):
    """The last call of a fixture: `x` and `label`, two examples.

    Attributes:
        name: of the fixture.
    """

    name: str

    def read(self) -> Arrays:
        call = calls(self.name)[-1]
        images = call.get('pixel_values')
        x = call['input_ids'] if images is None else images.transpose(0, 2, 3, 1)
        kind = np.int32 if images is None else np.float32
        return arrays_of({'x': x.astype(kind), 'label': LABELS})


def experiment(name: str, rate: float) -> Experiment:
    start = Pretrained(str(directory(name)))
    task = ClassificationTask(
        model_of(start.directory),
        Learner(rate),
        input_feature='x',
        padding_feature='x' if name == 'bert_classifier' else None,
    )
    return Experiment(
        task=task,
        train_input=Rows(2, is_training=True, name=name),
        eval_inputs={'eval': Rows(2, name=name)},
        train=TrainLoop(8, Evaluation(4), init_from_checkpoint=start),
    )


@pytest.mark.slow
@pytest.mark.parametrize('name', ['bert_classifier', 'vit'])
def test_a_classifier_begins_with_the_loss_of_transformers_and_learns(
    name: str, tmp_path: Path
) -> None:
    def losses(rate: float) -> list[float]:
        made = experiment(name, rate)
        return [each.metrics['eval/loss'] for each in measured(made, tmp_path / f'run{rate}')]

    wanted = SoftmaxCrossEntropy().of(*map(jnp.asarray, (calls(name)[-1]['logits'], LABELS)))
    unchanged, trained = losses(1e-12), losses(0.01)
    assert unchanged == pytest.approx([float(np.mean(wanted))] * 2, abs=1e-5)
    assert trained[-1] < unchanged[0]
