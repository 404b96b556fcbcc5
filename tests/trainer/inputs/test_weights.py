"""Padding has no weight, under any name of the weights; without weights it is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.input_suite import read_to_end
from tests.factories.tiny import CountingInput
from tests.factories.tiny import experiment as token_experiment
from tests.factories.tiny_images import EXAMPLES, SIZE, CornersInput, experiment
from trainer.inputs import (
    Batch,
    DigitsInput,
    IndexedInput,
    Input,
    LingvoEvalAdaptor,
    LingvoInputAdaptor,
    MultiInput,
    lingvo_generator,
)
from trainer.inputs.base import pad_batch
from trainer.inputs.text_of_batches import describe, spell
from trainer.layers import Mlp
from trainer.learner import Learner
from trainer.metrics import Totals
from trainer.program.input_checks import check_hosts
from trainer.program.setup import prepare_inputs
from trainer.symbolic.errors import UserError
from trainer.task import Task
from trainer.tasks import ClassificationTask

CLASSES = 4


class Corners:
    """A generator of `count` images with labels, without weights."""

    def __init__(self, count: int | None = None, size: int = 8) -> None:
        self._left, self._size = count, size

    def GetPreprocessedInputBatch(self) -> dict[str, Any]:
        size = self._size if self._left is None else min(self._size, self._left)
        if not size:
            raise StopIteration
        if self._left is not None:
            self._left -= size
        image = np.arange(size * SIZE * SIZE * 3, dtype=np.float32) + 1
        return {'image': image.reshape(size, SIZE, SIZE, 3), 'label': np.arange(size) % CLASSES}


@lingvo_generator
def endless(data: LingvoInputAdaptor) -> Corners:
    return Corners()


@lingvo_generator
def three(data: LingvoInputAdaptor) -> Corners:
    return Corners(3)


def lingvo(factory: Any, kind: Any = LingvoInputAdaptor, **fields: Any) -> Any:
    return kind(generator=f'{__name__}.{factory.__name__}', batch_size=8, **fields)


def right_where_there_are_examples(task: ClassificationTask, batch: Any, num: int) -> Any:
    """Metrics of logits that are right for the first `num` examples alone."""
    labels = batch[task.label_feature]
    told = np.where(np.arange(len(labels)) < num, labels, (labels + 1) % 10)
    totals = Totals()
    totals.add(task.measure(10 * jax.nn.one_hot(told, 10), batch))
    return totals.values()


def counted(task: Task, batch: Any) -> np.ndarray:
    return np.asarray(task.example_weights(batch))


def test_padding_of_a_lingvo_evaluation_has_no_weight() -> None:
    (batch,) = read_to_end(lingvo(three, LingvoEvalAdaptor))
    task = experiment(Mlp([2], CLASSES)).task
    assert right_where_there_are_examples(task, batch, 3)['accuracy'] == 1
    assert counted(task, batch).tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert describe(batch) == '37.5 % of its 8 examples have weight, 5 of 8 examples are padding'
    assert list(spell(lingvo(three), batch, 3)) == ['padding']


def test_texts_of_encoders_end_at_weights_of_their_own() -> None:
    batch = {
        'encoder_ids': np.array([[65, 0, 66, 0]]),
        'encoder_weights': np.array([[1, 1, 1, 0]], np.float32),
        'labels': np.array([[67, 68]]),
        'weights': np.array([[1, 1]], np.float32),
    }

    class Spelled(CornersInput):
        def text_of(self, ids: np.ndarray, name: str) -> str:
            return ' '.join(map(str, ids))

    data = Spelled(batch_size=1, is_training=False)
    assert list(spell(data, batch, 0)) == ["encoder_ids '65 0 66'", "labels '67 68'"]


def test_both_kinds_of_weights_count() -> None:
    (batch,) = read_to_end(lingvo(three, LingvoEvalAdaptor))
    batch['weights'] = np.array([1, 0, 2, 9, 9, 9, 9, 9], np.float32)
    task = experiment(Mlp([2], CLASSES)).task
    assert counted(task, batch).tolist() == [1, 0, 2, 0, 0, 0, 0, 0]


def side_by_side(**of_a: Any) -> MultiInput:
    data = {'batch_size': 8, 'is_training': False}
    inputs = {'a': CornersInput(**data), 'b': CornersInput(**(data | of_a))}
    return MultiInput(inputs=inputs, **data)


def multi_task(**features: str) -> ClassificationTask:
    names = {'input_feature': 'a.image', 'label_feature': 'a.label'} | features
    return ClassificationTask(model=Mlp([2], 10), learner=Learner(learning_rate=0.1), **names)


def test_padding_of_an_input_beside_others_has_no_weight() -> None:
    batch, there = read_to_end(side_by_side())[-1], EXAMPLES % 8
    assert right_where_there_are_examples(multi_task(), batch, there)['accuracy'] == 1
    assert counted(multi_task(), batch).sum() == there
    # The mask of images in `b` applies to labels in `a`.
    batch['b.weights'] = np.eye(8, dtype=np.float32)[0]
    across = multi_task(input_feature='b.image')
    assert counted(across, batch).tolist() == batch['b.weights'].tolist()
    assert describe(batch) == (
        'a: 50.0 % of its 8 examples have weight, 4 of 8 examples are padding; '
        'b: 12.5 % of its 8 examples have weight, 7 of 8 examples are padding'
    )


def test_hosts_share_inputs_side_by_side_without_their_padding() -> None:
    digits = DigitsInput(batch_size=200, split='test')
    assert 'distinct examples' in check_hosts(
        'eval_inputs.eval', MultiInput(batch_size=200, inputs={'digits': digits}), 4
    )


def test_the_padding_of_an_input_inside_another_is_refused() -> None:
    with pytest.raises(ValueError, match=r'inputs\.b\.batch_padding_size must be 0: set it here'):
        side_by_side(batch_padding_size=8)


def refused(path: str, data: Input, **fields: Any) -> str:
    made = experiment(Mlp([2], CLASSES), **{path: data, **fields})
    with pytest.raises(UserError, match='its batches have padding but no weights') as error:
        prepare_inputs(made)
    return str(error.value)


def test_padding_without_weights_is_refused_before_training() -> None:
    message = refused('train_input', lingvo(endless, is_training=True, batch_padding_size=8))
    assert message.startswith('train_input: its batches have padding')
    assert 'Add a feature `weights` [B]' in message
    multi = MultiInput(
        batch_size=8,
        is_training=True,
        batch_padding_size=8,
        inputs={
            'images': lingvo(endless, is_training=True),
            'others': CornersInput(batch_size=8, is_training=True),
        },
    )
    # Others have weights, and the task reads none of them.
    names = {'image': 'images.image', 'label': 'images.label'}
    task = {'task__input_feature': names['image'], 'task__label_feature': names['label']}
    assert refused('train_input', multi, **task).startswith('train_input: its batches')


class Unweighted(IndexedInput):
    """Ten numbers, without weights."""

    def num_examples(self) -> int:
        return 10

    def fingerprint(self) -> str:
        return 'ten'

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        shape = (self.batch_size,)
        return {
            'image': jax.ShapeDtypeStruct((*shape, 1), jnp.float32),
            'label': jax.ShapeDtypeStruct(shape, jnp.int32),
        }

    def eval_batch(self, index: np.ndarray) -> Batch:
        image = np.where(index < 10, index, 0)[:, None].astype(np.float32)
        return {'image': image, 'label': (image[:, 0] > 5).astype(np.int32)}


def test_a_last_batch_that_is_not_full_needs_weights() -> None:
    assert refused('eval_inputs__eval', Unweighted(batch_size=4)).startswith('eval_inputs.eval: ')
    inner = MultiInput(batch_size=4, inputs={'ten': Unweighted(batch_size=4)})
    assert refused('eval_inputs__eval', inner).startswith('eval_inputs.eval: inputs.ten: ')
    prepare_inputs(experiment(Mlp([2], CLASSES), eval_inputs__eval=Unweighted(batch_size=5)))


def test_padding_without_weights_is_refused_where_it_is_added() -> None:
    made = experiment(
        Mlp([2], CLASSES), train_input=lingvo(endless, is_training=True, batch_padding_size=1)
    )
    with pytest.raises(UserError, match=r'^train_input: its batches have padding but no weights'):
        made.train_input.get_next_padded()
    with pytest.raises(UserError, match=r'^its batches have padding'):
        pad_batch({'x': np.ones(3)}, 1)


def test_rows_of_tokens_need_weights() -> None:
    class Bare(CountingInput):
        def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
            spec = super().element_spec()
            return {name: spec[name] for name in spec if name != 'weights'}

    made = token_experiment(eval_inputs__eval=Bare(batch_size=8))
    with pytest.raises(UserError, match=r'^eval_inputs\.eval: .* no `weights` \[8, 8\], 1 for eac'):
        prepare_inputs(made)


def test_layers_of_any_task_see_the_padding() -> None:
    made = token_experiment(train_input__batch_padding_size=2)
    batch = made.train_input.get_next_padded()
    for task in (made.task, Task(model=Mlp([2], 2), learner=Learner(learning_rate=0.1))):
        assert counted(task, batch).tolist() == [True] * 8 + [False] * 2
