"""Losses and states that are not finite."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.factories.runs import final_state, measured
from tests.factories.tiny import CountingInput, experiment
from trainer.inputs.base import Batch
from trainer.symbolic.errors import NonFiniteLossError


def test_a_state_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    made = experiment(
        task__learner__learning_rate=1e30,
        task__learner__skip=None,
        num_steps=20,
        train__summary_interval_steps=10,
    )
    with pytest.raises(NonFiniteLossError):
        measured(made, tmp_path)
    saved = final_state(made, tmp_path) if list((tmp_path / 'checkpoints').iterdir()) else None
    assert saved is None or all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(saved.params))


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    learner = {'learning_rate': 1e30, 'skip': None}
    made = experiment(num_steps=20, **{f'task__learner__{k}': v for k, v in learner.items()})
    with pytest.raises(NonFiniteLossError, match='the norm of the gradients is nan at step 2'):
        measured(made, tmp_path)


class NanAt(CountingInput):
    """One batch has weights that are not numbers."""

    at_batch: int = 5

    def get_next(self) -> Batch:
        batch = super().get_next()
        if self._batch == self.at_batch:
            batch['weights'][:] = np.nan
        return batch


class OneOutside(CountingInput):
    """One number of a feature is negative."""

    feature: str = 'labels'
    weight: float = 1.0

    def get_next(self) -> Batch:
        batch = {name: array.copy() for name, array in super().get_next().items()}
        batch[self.feature][0, 0], batch['weights'][0, 0] = -1, self.weight
        return batch


@pytest.mark.parametrize('feature', ['labels', 'ids'])
def test_a_token_outside_of_the_vocabulary_ends_the_run(feature: str, tmp_path: Path) -> None:
    data = OneOutside(batch_size=8, is_training=True, feature=feature)
    with pytest.raises(NonFiniteLossError, match='the training loss is nan at step 1'):
        measured(experiment(train_input=data, num_steps=2), tmp_path)


def test_a_label_of_weight_zero_may_be_any_number(tmp_path: Path) -> None:
    data = OneOutside(batch_size=8, is_training=True, weight=0.0)
    (last,) = measured(experiment(train_input=data, num_steps=2), tmp_path)
    assert np.isfinite(last.metrics['train/loss'])


@pytest.mark.pax('A loss that is not')
@pytest.mark.parametrize('interval', [1, 2, 10])
def test_a_non_finite_loss_names_its_step(interval: int, tmp_path: Path) -> None:
    made = experiment(train_input=NanAt(batch_size=8, is_training=True))
    made.rebind({'train.summary_interval_steps': interval})
    with pytest.raises(NonFiniteLossError) as error:
        measured(made, tmp_path)
    saved = tmp_path / 'checkpoints' / '4'
    assert str(error.value) == (
        'the training loss is nan at step 5: weights holds nan (example 0, position 0), which is '
        f'not finite; the last checkpoint from before that is {saved}. Its batch is number 5 of '
        'train_input: python -m trainer.inspect_input --exp=… --input=train_input --num_batches=1 '
        f'--from_checkpoint={saved}'
    )


def test_without_a_checkpoint_the_batch_is_found_from_the_first_on(tmp_path: Path) -> None:
    made = experiment(
        train_input=NanAt(batch_size=8, is_training=True), train__checkpoints__every=10
    )
    with pytest.raises(NonFiniteLossError, match=r'no checkpoint.*--skip_batches=4$'):
        measured(made, tmp_path)
