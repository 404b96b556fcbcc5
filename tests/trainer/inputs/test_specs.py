from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.tiny import LENGTH, CountingInput, experiment
from trainer.inputs.arrays.arrays import arrays_of
from trainer.inputs.base import Batch
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.specs import check_batch
from trainer.loop.train_loop import run
from trainer.symbolic.errors import UserError


class Broken(CountingInput):
    """An input whose second batch does not match its spec."""

    how: str = 'shape'

    def get_next(self) -> Batch:
        batch = super().get_next()
        if self._batch == 2 and self.how == 'shape':
            batch['labels'] = batch['labels'][:, 1:]
        elif self._batch == 2 and self.how == 'dtype':
            batch['weights'] = batch['weights'].astype(np.int32)
        elif self._batch == 2 and self.how == 'missing':
            del batch['labels']
        elif self._batch == 2:
            batch['extra'] = batch['ids']
        return batch


SAID = {
    'shape': rf"'labels' as int32 \[8, {LENGTH - 1}\], .* has int32 \[8, {LENGTH}\]",
    'dtype': r"'weights' as int32 .* has float32",
    'missing': r"'labels' as nothing",
    'more': r"'extra' as int32 .* has nothing",
}


@pytest.mark.pax('enforce_input_specs')
@pytest.mark.parametrize('how', SAID)
def test_a_training_batch_must_match_its_spec(how: str, tmp_path: Path) -> None:
    made = experiment(train_input=Broken(batch_size=8, is_training=True, how=how))
    with pytest.raises(UserError, match=f'^train_input: its batch has {SAID[how]}'):
        list(run(made, tmp_path))


def test_an_evaluation_batch_must_match_its_spec(tmp_path: Path) -> None:
    made = experiment(eval_inputs={'eval': Broken(batch_size=8)})
    with pytest.raises(UserError, match=f'^eval_inputs.eval: its batch has {SAID["shape"]}'):
        list(run(made, tmp_path))


class Lengths(CountingInput):
    """Adds a feature to the batches of another input."""

    def get_next(self) -> Batch:
        batch = super().get_next()
        return {**batch, 'lengths': batch['weights'].sum(1)}


class Scaled(Lengths):
    """Has another size in place of that of its base."""

    scale: int = 2

    def get_next(self) -> Batch:
        return {**super().get_next(), 'scaled': np.ones((self.batch_size, self.scale))}


def test_a_feature_that_a_subclass_adds_needs_no_spec(tmp_path: Path) -> None:
    data = Scaled(batch_size=8, is_training=True)
    assert data.element_spec().keys() - CountingInput(8).element_spec().keys() == {
        'lengths',
        'scaled',
    }
    assert data.element_spec()['scaled'] == jax.ShapeDtypeStruct((8, 2), np.float32)
    assert data.rebind(scale=3, batch_size=4).element_spec()['scaled'].shape == (4, 3)
    assert data.get_position()['batch'] == 0
    made = experiment(train_input=data.rebind(batch_size=8), eval_inputs={'eval': Lengths(8)})
    plain = list(run(experiment(num_steps=2), tmp_path / 'plain'))
    added = list(run(made.rebind({'train.num_train_steps': 2}), tmp_path / 'added'))
    assert added[-1].metrics['train/loss'] == plain[-1].metrics['train/loss']


def test_an_input_without_a_spec_has_that_of_its_first_batch() -> None:
    class Rows(IndexedInput):
        def num_examples(self) -> int:
            return 4

        def eval_batch(self, index: np.ndarray) -> Batch:
            return {'x': index.astype(np.float64)}

    class Empty(Rows):
        def num_examples(self) -> int:
            return 0

    assert Rows(batch_size=2).element_spec() == {'x': jax.ShapeDtypeStruct((2,), np.float32)}
    with pytest.raises(UserError, match=r'^Empty: no examples'):
        Empty(batch_size=2).element_spec()


def test_64_bit_numbers_match_32_bit_specs(tmp_path: Path) -> None:
    class Wide(CountingInput):
        def get_next(self) -> Batch:
            wide: dict[str, Any] = {'int32': np.int64, 'float32': np.float64}
            return {name: x.astype(wide[str(x.dtype)]) for name, x in super().get_next().items()}

    made = experiment(num_steps=2, train_input=Wide(batch_size=8, is_training=True))
    plain = list(run(experiment(num_steps=2), tmp_path / 'plain'))
    wide = list(run(made, tmp_path / 'wide'))
    assert wide[0].metrics['train/loss'] == plain[0].metrics['train/loss']


@pytest.mark.parametrize('number', [1 << 31, -(1 << 31) - 1])
def test_integers_of_more_than_32_bits_are_refused(number: int) -> None:
    def batch(number: int) -> Batch:
        return {'id': np.array([number, 0]), 'none': np.zeros(0, np.int64)}

    near = number - 1 if number > 0 else number + 1
    spec = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in batch(near).items()}
    check_batch(batch(near), spec, CountingInput(2))
    arrays_of({'id': batch(near)['id']})
    with pytest.raises(
        UserError, match=r"^CountingInput: 'id' has integers that need more than 32"
    ):
        check_batch(batch(number), spec, CountingInput(2))
    with pytest.raises(UserError, match=r"^feature 'id' has integers that need more than 32 bits"):
        arrays_of({'id': batch(number)['id']})
