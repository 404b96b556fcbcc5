"""A tiny experiment on synthetic data; tests share what it compiles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.learner import Learner
from trainer.mesh import Mesh
from trainer.tasks import LanguageModelTask

VOCAB = 32
LENGTH = 8


class CountingInput(Input):
    """Rows that count upwards from a random start, modulo the vocabulary."""

    num_eval_batches: int = 3

    def _on_bound(self) -> None:
        super()._on_bound()
        self._batch = 0

    def fingerprint(self) -> str:
        return 'counting'

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        shape = (self.batch_size, LENGTH)
        dtypes = {'ids': jnp.int32, 'labels': jnp.int32, 'weights': jnp.float32}
        return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in dtypes.items()}

    def get_next(self) -> Batch:
        if not self.is_training and self._batch >= self.num_eval_batches:
            raise EndOfData
        rng = np.random.default_rng([self._batch, self.is_training])
        self._batch += 1
        rows = rng.integers(0, VOCAB, (self.batch_size, 1)) + np.arange(LENGTH + 1)
        tokens = (rows % VOCAB).astype(np.int32)
        weights = np.ones((self.batch_size, LENGTH), np.float32)
        weights[0, : self._batch] = 0  # Batches weigh differently.
        return {'ids': tokens[:, :-1], 'labels': tokens[:, 1:], 'weights': weights}

    def reset(self) -> None:
        self._batch = 0

    def get_position(self) -> dict[str, Any]:
        return {'batch': self._batch, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._batch = position['batch']


def model(**fields: Any) -> TransformerLm:
    """One block of width 16."""
    block = TransformerBlock(Attention(2), FeedForward(32))
    return TransformerLm(Embedding(VOCAB, 16), Stack([block]), **fields)


def experiment(num_steps: int = 6, **overrides: Any) -> Experiment:
    """The tiny experiment, with overrides by path (dots written as `__`)."""
    made = Experiment(
        task=LanguageModelTask(model(), Learner(learning_rate=0.01)),
        train_input=CountingInput(batch_size=8, is_training=True),
        eval_inputs={'eval': CountingInput(batch_size=8)},
        mesh=Mesh(data=1),
        train=TrainLoop(
            num_train_steps=num_steps,
            evaluation=Evaluation(2),
            checkpoints=Checkpoints(2),
            summary_interval_steps=1,
        ),
    )
    if overrides:
        made.rebind({path.replace('__', '.'): value for path, value in overrides.items()})
    return made
