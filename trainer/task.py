from collections.abc import Iterable, Mapping
from typing import Literal

import jax

from trainer.inputs.base import Input
from trainer.inputs.weights import example_mask, weight_features
from trainer.layers.base import Layer
from trainer.learner.learner import Learner
from trainer.metrics import Metrics
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

DeviceBatch = Mapping[str, jax.Array]


class Task(Component):
    """A learning task. Subclasses compute metrics of a batch, one of them named 'loss'.

    Attributes:
        model: the trained layer.
        learner: how to train it.
        fprop_dtype: dtype of the computations of layers; parameters are always float32.
    """

    model: Layer
    learner: Learner
    fprop_dtype: Literal['float32', 'bfloat16'] = 'float32'

    def check_input(self, data: Input) -> None:
        """Raises UserError, before compilation, if an input does not suit the task."""

    def check_decode_input(self, data: Input) -> None:
        """Raises UserError unless the task can decode the prompts of an input; most cannot."""
        raise UserError(f'{type(self).__name__} does not decode')

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        """Arguments of the model for a batch; for initialization they are only shapes."""
        raise NotImplementedError(type(self).__name__)

    def weight_features(self, names: Iterable[str]) -> list[str]:
        """The features of a batch with the weights that `measure` reads.

        Batches with padding must have one. `trainer.inputs.weights.weights_of` reads them.
        """
        return weight_features(names)

    def example_weights(self, batch: DeviceBatch) -> jax.Array | None:
        """Weights for layers that ignore padding, such as batch normalization; None for equal ones.

        By default they are [B], 0 for examples of padding. The axes of other weights must be the
        first axes of the normalized arrays.
        """
        mask: jax.Array | None = example_mask(batch)
        return mask

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        """Computes the metrics of the model's outputs; training minimizes the mean of `loss`."""
        raise NotImplementedError(type(self).__name__)

    def num_tokens(self, batch: DeviceBatch) -> int:
        """Number of tokens (or examples) in a batch, for the throughput."""
        return next(iter(batch.values())).shape[0]

    @property
    def unit(self) -> str:
        """Unit of `num_tokens`, for messages."""
        return 'example'
