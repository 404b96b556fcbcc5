from typing import Any

import jax
import pytest

from tests.factories.tiny import experiment
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Layer,
    Pipeline,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.program.setup import check_batch_sizes, pipeline_schedules
from trainer.symbolic.errors import UserError


def block(width: int = 8) -> TransformerBlock:
    return TransformerBlock(Attention(2), FeedForward(width))


def stack(**pipeline: Any) -> Stack:
    return Stack([block()], repeats=4, pipeline=Pipeline(**(pipeline or {'num_microbatches': 4})))


@pytest.mark.parametrize('fields', [{}, {'num_microbatches': 2, 'microbatch_size': 2}])
def test_a_pipeline_has_a_number_or_a_size_of_microbatches(fields: Any) -> None:
    with pytest.raises(ValueError, match='set one of num_microbatches and microbatch_size'):
        Pipeline(**fields)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'scan': 'never'}, "scan must not be 'never'"),
        ({'repeats': 1}, 'one run of equal layers'),
        ({'layers': [block(), block(16), block()]}, 'they are 3: layers_0, layers_1, layers_2'),
        ({'remat': 'none', 'pipeline.circular_repeat': 2}, "remat='none' would keep a copy"),
    ],
)
def test_stacks_that_cannot_be_pipelined_are_refused(fields: Any, message: str) -> None:
    made = stack()
    if 'layers' in fields:
        made.rebind(repeats=1, skip_notification=True)
    with pytest.raises(ValueError, match=message):
        made.rebind(fields)


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'task.model.stack.repeats': 6}, '6 layers do not divide into 4 stages .mesh.stage. of 1'),
        ({'task.model.stack.pipeline.circular_repeat': 3}, 'of 3 equal parts .circular_repeat.'),
        (
            {'task.model.stack.repeats': 8, 'task.model.stack.pipeline': Pipeline(2, None, 2)},
            '2 microbatches are fewer than the 4 stages',
        ),
        (
            {'train_input.batch_size': 12},
            '^train_input: task.model.stack.pipeline.num_microbatches: 12 examples do not divide '
            'evenly into 4 microbatches over the 2 devices of mesh.data × mesh.fsdp',
        ),
        (
            {'eval_inputs.eval.batch_size': 4},
            '^eval_inputs.eval: task.model.stack.pipeline.num_microbatches: 4 examples',
        ),
        (
            {'task.model.stack.pipeline': Pipeline(microbatch_size=3)},
            'microbatch_size: 3 examples do not divide evenly over the 2 devices',
        ),
        (
            {'task.model.stack.pipeline': Pipeline(microbatch_size=6)},
            'microbatch_size: 8 examples do not divide into microbatches of 6',
        ),
    ],
)
def test_uneven_stages_and_microbatches_are_refused(fields: Any, message: str) -> None:
    made = experiment(mesh__data=2, mesh__stage=4, task__model__stack=stack())
    check_batch_sizes(made, made.mesh.abstract())
    made.rebind(fields)
    with pytest.raises(UserError, match=message):
        check_batch_sizes(made, made.mesh.abstract())


class Counting(Layer):
    def forward(self, x: jax.Array) -> jax.Array:
        self.set_state('count', self.state('count', ()) + 1)
        return x


def test_layers_with_state_are_refused() -> None:
    made = Stack([Counting()], repeats=2, pipeline=Pipeline(num_microbatches=2))
    with pytest.raises(UserError, match=r'pipeline: Counting at layers\[0\] has state \(count\)'):
        made.module().init(jax.random.key(0), jax.numpy.ones((4, 2)))


def test_schedules_say_the_stages_of_each_stack() -> None:
    made = experiment(mesh__data=2, mesh__stage=2, task__model__stack=stack(microbatch_size=2))
    made.task.learner.rebind(microbatches=2)
    (schedule,) = pipeline_schedules(made, made.mesh.abstract()).values()
    assert str(schedule) == '2 stages of 2 layers, 2 microbatches of 2 examples, bubble 33.3 %'
    made.mesh.rebind(stage=1)
    assert pipeline_schedules(made, made.mesh.abstract()) == {}


def test_stages_without_a_pipeline_are_noted() -> None:
    made = experiment(mesh__stage=2, task__model__stack=stack())
    assert made.without_effect() == []
    made.task.model.stack.rebind(pipeline=None)
    assert made.without_effect()[0].startswith('mesh.stage: no Stack has a pipeline')


def test_parameters_do_not_depend_on_the_pipeline() -> None:
    ids = jax.numpy.ones((2, 4), int)
    models = [
        TransformerLm(Embedding(8, 8), Stack([block()], repeats=4, **fields))
        for fields in ({'scan': 'always'}, {'pipeline': Pipeline(2, circular_repeat=2)})
    ]
    plain, pipelined = (
        jax.eval_shape(model.module().init, jax.random.key(0), ids) for model in models
    )
    assert plain == pipelined
