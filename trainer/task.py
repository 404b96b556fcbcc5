"""Tasks: a model, its learner, and what a training or evaluation step computes of a batch."""

from collections.abc import Mapping
from typing import Literal

import jax

from trainer.inputs.base import Input
from trainer.layers.base import Layer
from trainer.learner.learner import Learner
from trainer.metrics import Metrics
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

DeviceBatch = Mapping[str, jax.Array]


class Task(Component):
    """What is learned. Subclasses say how a batch becomes metrics, one of them called 'loss'.

    Attributes:
        model: the layer that is trained.
        learner: how.
        fprop_dtype: what layers compute in; parameters are float32 either way.
    """

    model: Layer
    learner: Learner
    fprop_dtype: Literal['float32', 'bfloat16'] = 'float32'

    def check_input(self, data: Input) -> None:
        """Checks that an input suits the task, before anything is compiled.

        Raises:
            UserError: it does not.
        """

    def check_decode_input(self, data: Input) -> None:
        """Checks that the task can decode what an input asks for; few tasks decode.

        Raises:
            UserError: it cannot.
        """
        raise UserError(f'{type(self).__name__} does not decode')

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        """The arguments of the model for a batch; shapes alone must do, for initialization."""
        raise NotImplementedError(type(self).__name__)

    def example_weights(self, batch: DeviceBatch) -> jax.Array | None:
        """For layers that leave padding out, as batch normalization does; None where all count.

        Its axes are the first ones of what those layers normalize.
        """
        return None

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        """Metrics of the model's outputs; `loss`'s mean is what training minimizes."""
        raise NotImplementedError(type(self).__name__)

    def num_tokens(self, batch: DeviceBatch) -> int:
        """Tokens (or examples) in a batch, for speed."""
        return next(iter(batch.values())).shape[0]

    @property
    def unit(self) -> str:
        """What `num_tokens` counts, for people."""
        return 'example'
