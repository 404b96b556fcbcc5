"""Usual values of schedules, averages and optimizers of optax."""

from typing import Any

import pyglove as pg
import pytest

from search_spaces.lm import StdlibTunable
from trainer.learner import Cosine, Cycle, LinearSchedule, Optax, SqrtDecay
from trainer.symbolic.usual_values import UsualValue, usual_values

STEPS = 'train.num_train_steps'
SCHEDULE = 'task.learner.schedule'


def usual_of(path: str, **changes: Any) -> UsualValue | None:
    paths = {name.replace('__', '.'): value for name, value in changes.items()}
    made = StdlibTunable().rebind(paths, raise_on_no_change=False)
    return usual_values(made).get(path)


def test_usual_warmup_is_a_share_of_the_steps() -> None:
    usual = usual_of(f'{SCHEDULE}.warmup_steps', train__num_train_steps=1000)
    assert usual and (usual.value, usual.low, usual.high) == (30, 10, 100)
    usual = usual_of(f'{SCHEDULE}.warmup_steps', train__num_train_steps=pg.oneof([100, 10_000]))
    assert usual and (usual.value, usual.low, usual.high) == (30, 1, 1000)


def test_usual_decay_ends_with_training() -> None:
    usual = usual_of(f'{SCHEDULE}.decay_steps')
    assert usual and usual.value == StdlibTunable().train.num_train_steps
    schedules = pg.oneof([Cosine(decay_steps=9), LinearSchedule(decay_steps=9), SqrtDecay()])
    found = usual_values(StdlibTunable().rebind({SCHEDULE: schedules, STEPS: 200}))
    assert found[f'{SCHEDULE}[=0/3].final_factor'].value == 0.1
    assert found[f'{SCHEDULE}[=1/3].final_factor'].value == 0.0
    assert found[f'{SCHEDULE}[=1/3].decay_steps'].value == 200
    assert found[f'{SCHEDULE}[=2/3].decay_start'].value == 4


def test_usual_steps_of_a_schedule_in_another_are_unknown() -> None:
    cycle = Cycle(schedules=[LinearSchedule(decay_steps=9)], steps=[9])
    assert usual_of(f'{SCHEDULE}.schedules[0].decay_steps', task__learner__schedule=cycle) is None


def test_usual_average_is_over_a_share_of_the_steps() -> None:
    usual = usual_of('task.learner.ema_decay', train__num_train_steps=10_000)
    assert usual and usual.value == pytest.approx(0.999)
    assert usual.low < usual.value < usual.high


def test_usual_values_of_optax_follow_the_name() -> None:
    numbers = {'b1': 0.8, 'eps': 1e-5}
    for name in ('adamw', pg.oneof(['adamw', 'lamb'])):
        optimizer = Optax(name=name, hyperparameters=numbers)
        path = 'task.learner.optimizer.hyperparameters'
        found = usual_values(StdlibTunable().rebind({'task.learner.optimizer': optimizer}))
        assert (found[f'{path}.b1'].value, found[f'{path}.eps'].value) == (0.9, 1e-8)
        assert 'task.learner.learning_rate' in found
    lamb, prodigy = Optax(name='lamb'), Optax(name='contrib.prodigy')
    assert lamb.usual_rate(None) == UsualValue(6.25e-4, 6.25e-4 / 3, 6.25e-4 * 3, _source(lamb))
    assert _value(prodigy) == 1.0
    assert Optax(name='fromage').usual_rate(None) is None


def _source(optimizer: Optax) -> str:
    usual = optimizer.usual_rate(None)
    assert usual
    return usual.source


def _value(optimizer: Optax) -> Any:
    usual = optimizer.usual_rate(None)
    return usual and usual.value
