"""Usual learning rates, by the optimizer, the width and the size of batches."""

from typing import Any

import pyglove as pg
import pytest

from search_spaces.lm import C4Small, C4Tunable
from search_spaces.vision import DigitsResNet
from trainer.learner import SGD, Adafactor, AdamW, Learner, Lion, Muon, Noam, WidthScaling
from trainer.symbolic.usual_values import UsualValue, usual_values

RATE = 'task.learner.learning_rate'
WIDTH = 'task.model.embedding.dims'


def rate_of(changes: dict[str, Any], make: Any = C4Small) -> UsualValue:
    return usual_values(make().rebind(changes, raise_on_no_change=False))[RATE]


@pytest.mark.parametrize(
    ('width', 'published'),
    [(512, 1e-3), (768, 6e-4), (2048, 2e-4), (4096, 3e-4), (8192, 1.5e-4), (12288, 0.6e-4)],
)
def test_usual_rate_of_adam_covers_recipes_of_each_width(width: int, published: float) -> None:
    usual = rate_of({WIDTH: width})
    assert usual.low < published < usual.high
    assert 1 / 1.8 < usual.value / published < 1.8


def test_usual_rate_of_open_width_covers_all_widths() -> None:
    small, large = rate_of({WIDTH: 64}), rate_of({WIDTH: 1024})
    usual = rate_of({WIDTH: pg.oneof([64, 256, 1024])})
    assert (usual.low, usual.high) == (large.low, small.high)
    assert usual.value == pytest.approx((small.value * large.value) ** 0.5)


def test_usual_rate_with_width_scaling_is_that_of_the_base() -> None:
    scaling = {'task.learner.width_scaling': WidthScaling({WIDTH: 64})}
    assert rate_of({WIDTH: 1024} | scaling) == rate_of({WIDTH: 64})


def test_usual_rate_depends_on_the_optimizer() -> None:
    adam = rate_of({})
    assert rate_of({'task.learner.optimizer': Muon()}) == adam
    assert adam.value / 10 < rate_of({'task.learner.optimizer': Lion()}).value < adam.value / 3
    assert rate_of({'task.learner.optimizer': Adafactor()}).value == 0.01
    both = rate_of({'task.learner.optimizer': pg.oneof([AdamW(), SGD()])})
    sgd = rate_of({'task.learner.optimizer': SGD()})
    assert (both.low, both.high) == (adam.low, sgd.high)
    assert rate_of({'task.learner.schedule': Noam(100)}).value == 1.0


def test_usual_rate_of_sgd_is_in_proportion_to_the_batch() -> None:
    changes = {'task.learner.optimizer': SGD(momentum=0.9), 'train_input.batch_size': 128}
    assert rate_of(changes, DigitsResNet).value == pytest.approx(0.05)


def test_usual_rate_without_a_width_is_the_default_of_adam() -> None:
    assert rate_of({}, DigitsResNet).value == Learner(0.1).usual_values(None)['learning_rate'].value
    assert rate_of({}, DigitsResNet).value == 1e-3


class MyAdam(AdamW):
    usual = {'b1': UsualValue(0.8, 0.7, 0.9, 'own runs')}


class MySgd(SGD):
    def usual_rate(self, experiment: Any) -> UsualValue | None:
        return UsualValue(7.0, 6.0, 8.0, 'own runs')


def test_usual_rate_of_own_optimizer_is_inherited_or_overridden() -> None:
    optimizers = [MyAdam(b1=pg.floatv(0.5, 0.9)), MySgd(momentum=pg.floatv(0.1, 0.9))]
    found = usual_values(C4Tunable().rebind({'task.learner.optimizer': pg.oneof(optimizers)}))
    assert found['task.learner.optimizer[=0/2].b1'].value == 0.8
    assert found['task.learner.optimizer[=0/2].weight_decay'].value == 0.1
    assert found['task.learner.optimizer[=1/2].momentum'].value == 0.9
    assert found[RATE].high == 8.0
    assert rate_of({'task.learner.optimizer': MyAdam()}) == rate_of({})
