"""Experiments: what is misspelt or impossible in one is refused when it is written."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from absl import logging

from tests.factories.tiny import CountingInput, experiment
from trainer.experiment import (
    BestCheckpoint,
    Checkpoints,
    Decoding,
    Evaluation,
    Experiment,
    TrainLoop,
)
from trainer.learner import (
    AuxiliaryOptimizer,
    Constant,
    Cosine,
    DecayAtRungs,
    LinearSchedule,
    Piecewise,
    Scaled,
    Schedule,
)
from trainer.loop.open_run import prepare_run


@pytest.mark.pax('Configuration by class')
@pytest.mark.parametrize(
    ('misspelt', 'name'),
    [
        (lambda: TrainLoop(nun_train_steps=3), 'nun_train_steps.* mean num_train_steps'),
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
        ({'steps_per_execution': 0}, 'steps_per_execution must be at least 1: 0'),
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


@pytest.mark.parametrize(
    ('every', 'evaluated', 'steps', 'is_compared'),
    [(3, 2, 6, False), (4, 6, 12, False), (1, 9, 8, False), (3, 2, 7, True), (9, 9, 8, True)],
)
def test_the_best_checkpoint_needs_checkpoints_of_evaluated_steps(
    every: int, evaluated: int, steps: int, is_compared: bool
) -> None:
    def make() -> TrainLoop:
        best = Checkpoints(every, keep_best=BestCheckpoint('eval/loss'))
        return TrainLoop(steps, Evaluation(evaluated), best)

    if is_compared:
        make()
    else:
        with pytest.raises(ValueError, match=rf'checkpoints.every \({every}\) be a multiple of'):
            make()


@pytest.mark.parametrize(
    ('schedule', 'end'),
    [
        (LinearSchedule(decay_steps=4), 4),
        (DecayAtRungs(ends=[2, 5]), 5),
        (Scaled(schedule=Cosine(decay_steps=3), scale=0.5), 3),
        (Piecewise(schedules=[Constant(), LinearSchedule(decay_steps=2)], boundaries=[3]), 5),
        (LinearSchedule(decay_steps=6), None),
        (Constant(warmup_steps=2), None),
        (Piecewise(schedules=[LinearSchedule(decay_steps=2), Constant()], boundaries=[3]), None),
    ],
)
def test_a_schedule_that_ends_before_the_last_step_is_named(
    schedule: Schedule, end: int | None
) -> None:
    found = experiment(num_steps=6, task__learner__schedule=schedule).without_effect()
    name = type(schedule).__name__
    expected = [] if end is None else [f'task.learner.schedule: {name} ends at step {end} of 6.']
    assert [each.partition(' The')[0] for each in found] == expected


@pytest.mark.parametrize(
    ('changes', 'smallest'),
    [
        ({}, None),
        ({'num_train_steps': 6}, 6),
        ({'evaluation.every': 3}, 3),
        ({'summary_interval_steps': 5}, 5),
        ({'checkpoints.every': 4}, 4),
        ({'gc_interval_steps': 2}, 2),
    ],
)
def test_executions_that_other_work_always_divides_are_named(
    changes: dict[str, int], smallest: int | None
) -> None:
    made = experiment(num_steps=20, train=TrainLoop(20, steps_per_execution=8))
    changes = {'summary_interval_steps': 8} | changes
    made.rebind({f'train.{name}': value for name, value in changes.items()})
    expected = [
        'train.steps_per_execution: training does single steps. No 8 are without other work in '
        f'between, which is due every {smallest}.'
    ]
    assert made.without_effect() == ([] if smallest is None else expected)


def test_settings_without_effect_are_logged_once(tmp_path: Path) -> None:
    auxiliary = AuxiliaryOptimizer(['embedding.*'], 0.1, LinearSchedule(decay_steps=5))
    made = experiment(
        task__learner__auxiliary_optimizers={'a': auxiliary}, train__decoding=Decoding(2)
    )
    logged: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, 'warning', lambda text, *values: logged.append(text % values))
        for name in ('one', 'other'):
            prepare_run(made, tmp_path / name)
    assert [text.split(':')[0] for text in logged] == [
        'task.learner.auxiliary_optimizers.a.schedule',
        'train.decoding',
    ]


def test_decoding_that_starts_after_the_last_step_is_named() -> None:
    def found(start: int) -> list[str]:
        made = experiment(
            num_steps=6,
            decode_inputs={'a': CountingInput(8)},
            train__decoding=Decoding(2, start=start),
        )
        return made.without_effect()

    assert found(6) == []
    assert found(7) == ['train.decoding.start: step 7 is after the last, 6.']
