from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tiny import LENGTH, CountingInput, experiment
from trainer.inputs.base import Batch
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


@pytest.mark.parametrize('how', SAID)
def test_a_training_batch_must_match_its_spec(how: str, tmp_path: Path) -> None:
    made = experiment(train_input=Broken(batch_size=8, is_training=True, how=how))
    with pytest.raises(UserError, match=f'^train_input: its batch has {SAID[how]}'):
        list(run(made, tmp_path))


def test_an_evaluation_batch_must_match_its_spec(tmp_path: Path) -> None:
    made = experiment(eval_inputs={'eval': Broken(batch_size=8)})
    with pytest.raises(UserError, match=f'^eval_inputs.eval: its batch has {SAID["shape"]}'):
        list(run(made, tmp_path))


def test_64_bit_numbers_match_32_bit_specs(tmp_path: Path) -> None:
    class Wide(CountingInput):
        def get_next(self) -> Batch:
            wide: dict[str, Any] = {'int32': np.int64, 'float32': np.float64}
            return {name: x.astype(wide[str(x.dtype)]) for name, x in super().get_next().items()}

    made = experiment(num_steps=2, train_input=Wide(batch_size=8, is_training=True))
    plain = list(run(experiment(num_steps=2), tmp_path / 'plain'))
    wide = list(run(made, tmp_path / 'wide'))
    assert wide[0].metrics['train/loss'] == plain[0].metrics['train/loss']
