from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import jax

from trainer.inputs.base import Input
from trainer.inputs.weights import example_mask, weight_features
from trainer.layers.base import Layer
from trainer.layers.context import Kernels
from trainer.layers.lora import LoRA
from trainer.layers.precision import Precision
from trainer.learner.learner import Learner
from trainer.metrics import Metrics
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

DeviceBatch = Mapping[str, jax.Array]


class ModelCall(Protocol):
    """Calls the model of a task in a training step."""

    def __call__(self, *args: Any, method: str = 'forward', adapted: bool = True) -> Any:
        """Runs a method of the model; gradients flow to the parameters that are minimized over.

        Args:
            adapted: False runs the model without `task.adapters`, as before the fine-tuning.
        """

    def in_chunks(self, *args: Any, loss_chunks: int | None) -> Any:
        """The logits of a model that `splits_logits`: an array, or a `TokenLogits` in chunks.

        Args:
            loss_chunks: as `TokenTask.loss_chunks`.
        """

    def random_key(self, name: str) -> jax.Array:
        """A random key of this step, the same one for each name."""


PartialLoss = Callable[[ModelCall, DeviceBatch], Metrics]
"""Metrics of a batch that `Task.prepared` made, one named 'loss', from calls of the model."""


class TrainStep(Protocol):
    """One training step, which `Task.train_step` does."""

    def minimize(self, loss: PartialLoss | None = None, optimizer: str | None = None) -> Metrics:
        """Updates parameters by the gradient of a loss; later calls see the new parameters.

        Clipping and skipped updates apply to each call alone, and microbatches to its loss. An
        average of the parameters counts a step once. With several calls, the metrics of an update
        have the name of its optimizer, or 'all': `gradient_norm/main`, then `gradient_norm/main_2`.

        Args:
            loss: minimizes the mean of its metric 'loss'; None for the loss of `measure`.
            optimizer: updates the parameters of one optimizer: a name in
                `learner.auxiliary_optimizers`, or 'main' for the rest. None updates all.

        Returns:
            The metrics of the loss, before the update.
        """


class Task(Component):
    """A learning task. Subclasses compute metrics of a batch, one of them named 'loss'.

    Attributes:
        model: the trained layer.
        learner: how to train it.
        fprop_dtype: dtype of the computations of layers.
        param_dtype: dtype in which parameters are stored. Gradients, averages and the optimizer
            stay float32, so a step loses updates below half a rounding unit of a parameter, unless
            `learner.stochastic_rounding`. A flax module has its own dtype.
        adapters: low-rank updates of kernels, which train alone; None trains the model itself.
        precision: rounds the factors of products with kernels to 8 bits; None computes them in
            `fprop_dtype`.
        kernels: 'tokamax' computes attention, gated feed-forward layers and products of groups of
            experts by its fused kernels, where `implementation` of an attention is 'auto'. It
            needs a GPU or a TPU, and one device. Layers with biases, adapters or a precision stay
            as they are.
    """

    model: Layer
    learner: Learner
    fprop_dtype: Literal['float32', 'bfloat16'] = 'float32'
    param_dtype: Literal['float32', 'bfloat16'] = 'float32'
    adapters: LoRA | None = None
    precision: Precision | None = None
    kernels: Kernels = 'jax'

    def check_input(self, data: Input) -> None:
        """Raises UserError, before compilation, if an input does not suit the task."""

    def check_decode_input(self, data: Input) -> None:
        """Raises UserError unless the task can decode the prompts of an input; most cannot."""
        raise UserError(f'{type(self).__name__} does not decode')

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        """Arguments of the model for a batch; for initialization they are only shapes."""
        raise NotImplementedError(type(self).__name__)

    def prepared(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        """The batch that a pass takes, such as one with masked tokens; by default the batch itself.

        Args:
            key: of the step in training; always the same one in evaluation.
        """
        return batch

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

    def label_weights(self, batch: DeviceBatch) -> jax.Array | None:
        """Weights of the labels [B, T], for layers with a loss of their own; None by default."""
        return None

    def outputs(self, call: ModelCall, batch: DeviceBatch) -> Any:
        """The outputs of the model for a batch, as `measure` takes them."""
        return call(*self.model_inputs(batch))

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        """Computes the metrics of the model's outputs; training minimizes the mean of `loss`."""
        raise NotImplementedError(type(self).__name__)

    @property
    def keeps_reference(self) -> bool:
        """True if the state keeps the trained parameters as the run began with them."""
        return False

    def compares(self, batch: DeviceBatch) -> bool:
        """True if `measure` of a batch reads the outputs of the reference model: `reference`.

        It is the model without `adapters`, or with the parameters that `keeps_reference` keeps.
        """
        return False

    def train_step(self, step: TrainStep) -> Metrics:
        """Does a training step, and returns its metrics, one of them named 'loss'.

        By default it minimizes the loss of `measure`. A task with several losses, such as a GAN,
        replaces it.
        """
        return step.minimize()

    @property
    def has_own_step(self) -> bool:
        """True if the task replaces the train step."""
        return type(self).train_step is not Task.train_step

    def num_tokens(self, batch: DeviceBatch) -> int:
        """Number of tokens (or examples) in a batch, for the throughput."""
        return next(iter(batch.values())).shape[0]

    @property
    def unit(self) -> str:
        """Unit of `num_tokens`, for messages."""
        return 'example'
