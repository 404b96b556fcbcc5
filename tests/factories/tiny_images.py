"""A tiny experiment on synthetic images: which of four corners is bright."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.experiment import Checkpoints, Evaluation, Experiment, TrainLoop
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.layers import Layer
from trainer.learner import Learner
from trainer.mesh import Mesh
from trainer.tasks import ClassificationTask

SIZE = 8
EXAMPLES = 20
"""In the evaluation set; its last batch is filled up."""


class CornersInput(Input):
    """Noise, with one bright corner: `image` [B, 8, 8, 3], `label` in 0 … 3, `weights`."""

    def _on_bound(self) -> None:
        super()._on_bound()
        self._batch = 0

    def fingerprint(self) -> str:
        return 'corners'

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        size = self.batch_size
        return {
            'image': jax.ShapeDtypeStruct((size, SIZE, SIZE, 3), jnp.float32),
            'label': jax.ShapeDtypeStruct((size,), jnp.int32),
            'weights': jax.ShapeDtypeStruct((size,), jnp.float32),
        }

    def get_next(self) -> Batch:
        first = self._batch * self.batch_size
        if not self.is_training and first >= EXAMPLES:
            raise EndOfData
        rng = np.random.default_rng([self._batch, self.is_training])
        self._batch += 1
        image = rng.normal(size=(self.batch_size, SIZE, SIZE, 3)).astype(np.float32)
        label = rng.integers(0, 4, self.batch_size).astype(np.int32)
        for i, corner in enumerate(label):
            down, right = (SIZE // 2 * part for part in divmod(int(corner), 2))
            image[i, down : down + SIZE // 2, right : right + SIZE // 2] += 1
        there = self.is_training | (first + np.arange(self.batch_size) < EXAMPLES)
        image[~there] = 1e3  # Any use of padding shows.
        return {'image': image, 'label': label, 'weights': there.astype(np.float32)}

    def reset(self) -> None:
        self._batch = 0

    def get_position(self) -> dict[str, Any]:
        return {'batch': self._batch}

    def set_position(self, position: dict[str, Any]) -> None:
        self._batch = position['batch']


def experiment(model: Layer, num_steps: int = 4, **overrides: Any) -> Experiment:
    """Trains a classifier of images; overrides are by path (dots written as `__`)."""
    made = Experiment(
        task=ClassificationTask(model=model, learner=Learner(learning_rate=0.01)),
        train_input=CornersInput(batch_size=8, is_training=True),
        eval_inputs={'eval': CornersInput(batch_size=8)},
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
