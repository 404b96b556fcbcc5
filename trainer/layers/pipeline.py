"""Pipelines: the layers of a stack in stages, through which parts of a batch pass."""

from typing import NamedTuple

from trainer.mesh import Arrangement
from trainer.symbolic.component import Component, require_positive
from trainer.symbolic.errors import UserError


class Schedule(NamedTuple):
    """The work of the stages of a pipeline for one batch.

    In each tick, each stage applies its layers of one turn to one microbatch, then hands it on.

    Attributes:
        num_stages: groups of devices that have their own layers.
        num_microbatches: parts of a batch.
        circular_repeat: turns of each microbatch through all stages.
        layers_per_stage: number of layers of each stage, in all turns.
        microbatch_size: number of examples of a microbatch, on all devices.

    Example:
        >>> print(Schedule(2, 8, 1, layers_per_stage=12, microbatch_size=4))
        2 stages of 12 layers, 8 microbatches of 4 examples, bubble 11.1 %
        >>> print(Schedule(2, 8, 2, layers_per_stage=12, microbatch_size=4))
        2 stages of 12 layers in 2 turns, 8 microbatches of 4 examples, bubble 5.9 %
    """

    num_stages: int
    num_microbatches: int
    circular_repeat: int
    layers_per_stage: int
    microbatch_size: int

    @property
    def num_ticks(self) -> int:
        """Number of ticks of a forward pass."""
        return self.circular_repeat * self.num_microbatches + self.num_stages - 1

    @property
    def bubble(self) -> float:
        """Share of the ticks in which a stage waits for its first or for the others' last work."""
        return (self.num_stages - 1) / self.num_ticks

    def __str__(self) -> str:
        turns = f' in {self.circular_repeat} turns' if self.circular_repeat > 1 else ''
        return (
            f'{self.num_stages} stages of {self.layers_per_stage} layers{turns}, '
            f'{self.num_microbatches} microbatches of {self.microbatch_size} examples, '
            f'bubble {self.bubble:.1%}'.replace('%', ' %')
        )


class Pipeline(Component):
    """Divides a `Stack` into stages, and each batch into microbatches that pass through them.

    The mesh says the number of stages: the devices along `stage`. With one, the stack is scanned
    as without a pipeline. Parameters and checkpoints are the same for any number of stages. In
    Pax this is `LayerwiseShardablePipelined`.

    A stage begins a microbatch once the stage before it is done with it (GPipe, Huang et al.
    2019). With `circular_repeat`, each stage has several groups of layers, far apart, and each
    microbatch passes all stages that many times (Narayanan et al. 2021): shorter bubbles for more
    communication.

    Losses of layers, and values that layers log, are means over the microbatches. Decoding and
    initialization run without the pipeline.

    Attributes:
        num_microbatches: parts of each batch; of each of `task.learner.microbatches`, if these
            divide it. Set it or `microbatch_size`.
        microbatch_size: number of examples of a part, on all devices. Then batches of evaluation
            may have other sizes.
        circular_repeat: turns of each microbatch through the stages. Each step then moves the
            parameters of the stack once: a device sends and receives at most its own, and has
            them twice.

    Example:
        >>> from trainer.layers import Attention, FeedForward, Pipeline, Stack, TransformerBlock
        >>> from trainer.mesh import Mesh
        >>> block = TransformerBlock(Attention(4), FeedForward())
        >>> stack = Stack([block], repeats=24, pipeline=Pipeline(num_microbatches=8))
        >>> print(stack.schedule(Mesh(data=1, stage=4).abstract(), num_examples=64))
        4 stages of 6 layers, 8 microbatches of 8 examples, bubble 27.3 %
    """

    num_microbatches: int | None = None
    microbatch_size: int | None = None
    circular_repeat: int = 1

    def check(self) -> None:
        require_positive(self, 'num_microbatches', 'microbatch_size', 'circular_repeat')
        if (self.num_microbatches is None) == (self.microbatch_size is None):
            raise ValueError('set one of num_microbatches and microbatch_size, not both')

    def schedule(
        self, repeats: int, period: int, mesh: Arrangement, num_examples: int
    ) -> Schedule | None:
        """The schedule of a stack; None if the mesh has one stage.

        Args:
            repeats: number of layers, or of periods of different layers.
            period: number of layers of each repeat.
            num_examples: number of examples of a batch, on all devices.

        Raises:
            UserError: the layers do not divide into stages, or the examples into microbatches.
        """
        num_stages, axes = mesh.parts('layers')
        if num_stages == 1:
            return None
        turns, of_mesh = self.circular_repeat, ' × '.join(f'mesh.{axis}' for axis in axes)
        if repeats % (num_stages * turns):
            layers = f'{repeats} layers' if period == 1 else f'{repeats} periods of {period} layers'
            raise UserError(
                f'{self.sym_path}: {layers} do not divide into {num_stages} stages ({of_mesh}) of '
                f'{turns} equal parts (circular_repeat); choose a multiple of '
                f'{num_stages * turns}'
            )
        microbatches = self._num_microbatches(num_examples, mesh)
        if turns > 1 and microbatches < num_stages:
            raise UserError(
                f'{self.sym_path}: {microbatches} microbatches are fewer than the {num_stages} '
                f'stages ({of_mesh}), so the first stage would wait between the turns of '
                f'circular_repeat={turns}; choose at least {num_stages}'
            )
        size = num_examples // microbatches
        return Schedule(num_stages, microbatches, turns, repeats * period // num_stages, size)

    def _num_microbatches(self, num_examples: int, mesh: Arrangement) -> int:
        parts, axes = mesh.parts('batch')
        of_data = f'the {parts} devices of {" × ".join(f"mesh.{axis}" for axis in axes)}'
        if self.num_microbatches is None:
            assert self.microbatch_size is not None
            if self.microbatch_size % parts:
                raise UserError(
                    f'{self.sym_path}.microbatch_size: {self.microbatch_size} examples do not '
                    f'divide evenly over {of_data}; choose a multiple of {parts}'
                )
            if num_examples % self.microbatch_size:
                raise UserError(
                    f'{self.sym_path}.microbatch_size: {num_examples} examples do not divide into '
                    f'microbatches of {self.microbatch_size}; choose a divisor, or another '
                    'batch_size'
                )
            return num_examples // self.microbatch_size
        if num_examples % (self.num_microbatches * parts):
            raise UserError(
                f'{self.sym_path}.num_microbatches: {num_examples} examples do not divide evenly '
                f'into {self.num_microbatches} microbatches over {of_data}; choose a batch_size '
                f'that is a multiple of {self.num_microbatches * parts}'
            )
        return self.num_microbatches
