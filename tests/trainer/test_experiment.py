"""Experiments: what is misspelt or impossible in one is refused when it is written."""

from typing import Any

import pyglove as pg
import pytest

from tests.trainer.tiny import experiment
from trainer.experiment import Checkpoints, Decoding, Evaluation, Experiment, TrainLoop


@pytest.mark.parametrize(
    ('misspelt', 'name'),
    [
        (lambda: TrainLoop(nun_train_steps=3), 'nun_train_steps'),
        (lambda: TrainLoop().rebind(save_intervall_steps=3), 'save_intervall_steps'),
        (lambda: experiment(task__learner__lerning_rate=0.1), 'lerning_rate'),
        (lambda: experiment().task.clone(override={'modle': None}), 'modle'),
    ],
    ids=lambda each: each if isinstance(each, str) else '',
)
def test_a_field_that_is_not_there_is_refused(misspelt: Any, name: str) -> None:
    # In Pax a misspelt class attribute is a new one, which is ignored.
    with pytest.raises((KeyError, TypeError, AttributeError), match=name):
        misspelt()


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match='int'):
        TrainLoop(num_train_steps='10')
    with pytest.raises(TypeError):
        Experiment(task=experiment().task, train_input='data')


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'num_train_steps': 0}, 'num_train_steps must be at least 1: 0'),
        ({'max_inflight_steps': -1}, 'max_inflight_steps must not be negative: -1'),
        ({'gc_interval_steps': 0}, 'gc_interval_steps must be at least 1: 0'),
    ],
)
def test_impossible_loops_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainLoop(**fields)


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: Evaluation(0), 'every must be at least 1: 0'),
        (lambda: Decoding(2, start=-1), 'start must not be negative: -1'),
        (lambda: Checkpoints(keep_period='long'), 'keep_period: '),
    ],
)
def test_parts_of_a_loop_check_themselves(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_parts_of_a_loop_can_be_searched() -> None:
    kinds = pg.oneof([None, Checkpoints(5)])
    made = experiment(train__checkpoints=kinds)
    assert pg.materialize(made, pg.DNA(1)).train.checkpoints.every == 5
    assert pg.materialize(made, pg.DNA(0)).train.checkpoints is None
