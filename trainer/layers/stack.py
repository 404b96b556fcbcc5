import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import pyglove as pg

from trainer.layers.base import (
    AUX_LOSS,
    CACHE,
    NON_TRAINABLE,
    PARAMS,
    SUMMARIES,
    Layer,
    current_frame,
)
from trainer.layers.branch import taken
from trainer.layers.context import current_context
from trainer.layers.periods import periods, scanned_layers
from trainer.layers.pipeline import Pipeline, Schedule
from trainer.layers.pipelined import pipelined
from trainer.layers.remat import Named, Remat, check_remat, remat_policy
from trainer.layers.scanned import ScannedLayer, ScanStep
from trainer.layers.shared import SharedWithPrevious
from trainer.mesh import Arrangement
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import numbers, require_positive
from trainer.symbolic.errors import UserError

_UNROLLED_ON_CPU = 6
"""Scanning costs 25-50 % of a step on CPU; up to this length, an unrolled run compiles fast."""

Params = Mapping[str, Any]


class Part(NamedTuple):
    """Layers of a stack that are stored together: one layer, or equal layers that are scanned.

    Attributes:
        name: of their parameters.
        layers: of equal structure.
        indices: of the layers, in the stack with all of its repeats.
        times: number of applications of each layer before the next one.
    """

    name: str
    layers: list[Layer]
    indices: list[int]
    times: int


class Stack(Layer):
    """Layers applied one after another: `x -> layers[-1](… layers[0](x))`.

    Layers of one class that differ only in their numbers are equal. A run of equal neighbours is
    compiled once and scanned; its parameters are stacked along a first axis and stored as
    `layers_<first>x<length>`. So is a sequence of different layers that repeats itself, such as
    five local and one global attention: equal layers of it are stored as
    `layers_<first>x<length>by<distance>`. The rest is unrolled and stored as `layers_<index>`. A
    `SharedWithPrevious` belongs to the layer before it, and counts in the distance.

    Attributes:
        layers: the layers in order. Each takes `(x, *args)`, or x alone, and returns an array like
            `x`.
        repeats: repeats the whole list, each time with its own parameters.
        scan: scans repeated layers 'always', 'never', or 'auto': everywhere except for a few
            layers on CPU.
        remat: activations of scanned layers that the backward pass computes again: 'full' all,
            'dots' all but products with parameters, 'dots_saveable' all but matrix products,
            'none' nothing. 'offload_dots' keeps products with parameters in the memory of the
            host. 'everything_saveable' is JAX's policy that keeps all.
        save_names: values that layers keep besides, where they have them: results of projections,
            and 'context', the result of all heads before the output.
        offload_names: values that they keep in the memory of the host, by the same names.
        pipeline: runs the layers in stages, on the devices that store them; None runs all layers on
            all devices. The layers must be one scanned run, without state such as `BatchNorm` has.
    """

    layers: list[Layer]
    repeats: int = 1
    scan: Literal['auto', 'always', 'never'] = 'auto'
    remat: Remat = 'full'
    save_names: list[Named] = []
    offload_names: list[Named] = []
    pipeline: Pipeline | None = None

    def check(self) -> None:
        require_positive(self, 'repeats')
        check_remat(self.remat, self.save_names, self.offload_names, self.scan != 'never')
        if self.layers and isinstance(self.layers[0], SharedWithPrevious):
            raise ValueError(
                'layers[0] is a SharedWithPrevious, but no layer precedes it: begin with another '
                'layer. Repeats have their own parameters'
            )
        if self.pipeline is not None:
            self._check_pipeline(self.pipeline)

    def _check_pipeline(self, pipeline: Pipeline) -> None:
        if self.scan == 'never':
            raise ValueError("pipeline: its stages are scanned; scan must not be 'never'")
        if pipeline.circular_repeat > 1 and self.remat in ('none', 'everything_saveable'):
            raise ValueError(
                f'pipeline.circular_repeat: remat={self.remat!r} would keep a copy of the weights '
                "of each tick; choose another, such as 'dots_saveable'"
            )
        names = [part.name for part in self.storage()]
        if len(runs := self._periods()) != 1 or len(runs[0][0].layers) == 1:
            raise ValueError(
                'pipeline: the layers must be one run of equal layers, or of equal periods of '
                f'layers, but they are {len(runs)}: {", ".join(names)}'
            )

    def forward(self, x: jax.Array, *args: Any) -> jax.Array:
        for parts in self._periods():
            if len(parts[0].layers) > 1:
                x = self._scan(parts, x, args)
            else:
                for _ in range(parts[0].times):
                    x = (
                        parts[0]
                        .layers[0]
                        .call_as(parts[0].name, 'forward', x, *taken(parts[0].layers[0], x, args))
                    )
        return x

    def schedule(self, mesh: Arrangement | None, num_examples: int) -> Schedule | None:
        """The schedule of the pipeline; None without one, or if the mesh has one stage.

        Args:
            num_examples: number of examples of a batch, on all devices.

        Raises:
            UserError: the layers do not divide into stages, or the examples into microbatches.
        """
        if self.pipeline is None or mesh is None:
            return None
        (parts,) = self._periods()
        return self.pipeline.schedule(len(parts[0].layers), len(parts), mesh, num_examples)

    def storage(self) -> list[Part]:
        """The stored parts, in the order of their first layers."""
        return [part for parts in self._periods() for part in parts]

    def _periods(self) -> list[list[Part]]:
        """The parts that are scanned together, each a layer of a period, or a single layer."""
        applied = self._applied()
        kinds = [(code_key(layer, with_classes=False), times) for _, layer, times in applied]
        every = [
            (repeat * len(self.layers) + place, layer, times)
            for repeat in range(self.repeats)
            for place, layer, times in applied
        ]
        found: list[list[Part]] = []
        start = 0
        for length, count in periods(kinds * self.repeats):
            these = every[start : start + length * count]
            start += length * count
            if self._scanned(len(these)):
                found.append([_scanned_part(these[at::length]) for at in range(length)])
            else:
                found += [
                    [Part(f'layers_{at}', [layer], [at], times)] for at, layer, times in these
                ]
        return found

    def _applied(self) -> list[tuple[int, Layer, int]]:
        """Layers with their own parameters: (index, layer, number of applications)."""
        applied: list[tuple[int, Layer, int]] = []
        for index, layer in enumerate(self.layers):
            if isinstance(layer, SharedWithPrevious):
                first, shared, times = applied[-1]
                applied[-1] = (first, shared, times + 1)
            else:
                applied.append((index, layer, 1))
        return applied

    def _scanned(self, length: int) -> bool:
        if length == 1 or self.scan == 'never':
            return False
        if self.pipeline is not None:
            return True
        short = jax.default_backend() == 'cpu' and length <= _UNROLLED_ON_CPU
        return self.scan == 'always' or not short

    def _scan(self, parts: list[Part], x: jax.Array, args: Any) -> jax.Array:
        frame = current_frame()
        each = [
            [
                (
                    numbers(part.layers[i]),
                    [
                        frame.keys_of(f'layers_{part.indices[i]}', call)
                        for call in range(part.times)
                    ],
                )
                for part in parts
            ]
            for i in range(len(parts[0].layers))
        ]
        stacked = jax.tree.map(lambda *values: jnp.stack([jnp.asarray(v) for v in values]), *each)
        schedule = self._running_schedule(len(x))
        if schedule is not None:
            return self._pipelined(schedule, parts, stacked, x, args)
        make: Any = ScannedLayer
        if self.remat != 'none':
            make = nn.remat(ScannedLayer, prevent_cse=False, policy=self._kept())
        scan = nn.scan(
            ScanStep,
            variable_axes=dict.fromkeys((PARAMS, NON_TRAINABLE, AUX_LOSS, SUMMARIES, CACHE), 0),
            split_rngs={'params': True, 'dropout': True},
            in_axes=(0, *(nn.broadcast for _ in args)),
            length=len(each),
            metadata_params={nn.PARTITION_NAME: 'layers'},
        )
        # The layers of a period are modules of the stack, so their names are those of the parts.
        layers = [make(layer=part.layers[0], name=part.name) for part in parts]
        x = scan(layers=layers, name=f'scan_{parts[0].name}')(x, stacked, *args)[0]
        self._require_no_state(parts)
        return x

    def _kept(self) -> Any:
        """The policy of JAX for `remat` and named values."""
        return remat_policy(self.remat, self.save_names, self.offload_names)

    def _require_no_state(self, parts: list[Part]) -> None:
        if self.pipeline is None:
            return
        states = current_frame().module.variables.get(NON_TRAINABLE, {})
        for part in parts:
            if part.name in states:
                raise UserError(
                    f'{self.sym_path}.pipeline: {type(part.layers[0]).__name__} at '
                    f'{part.layers[0].sym_path} has state ({", ".join(states[part.name])}), such '
                    'as running means, which microbatches cannot share: set it to None, or choose '
                    'another layer'
                )

    def _running_schedule(self, num_examples: int) -> Schedule | None:
        """The schedule of this forward pass; None where the layers are scanned."""
        context = current_context()
        if self.pipeline is None or context.mesh is None or context.mesh.is_abstract:
            return None
        if current_frame().module.is_initializing() or context.cache_length is not None:
            return None
        if context.training:
            return self.schedule(context.mesh, num_examples)
        with contextlib.suppress(UserError):
            return self.schedule(context.mesh, num_examples)
        return None  # Decoding encodes prompts in batches of any size.

    def _pipelined(
        self, schedule: Schedule, parts: list[Part], own: Any, x: jax.Array, args: Any
    ) -> jax.Array:
        """Like a scan of the layers, whose numbers and keys are `own`, in the stages."""
        remat: Any = None
        if self.remat != 'none':
            remat = functools.partial(jax.checkpoint, prevent_cse=False, policy=self._kept())
        layers = {part.name: part.layers[0] for part in parts}
        return pipelined(schedule, layers, own, x, args, remat)


def _scanned_part(layers: list[tuple[int, Layer, int]]) -> Part:
    """The part of equal layers (index, layer, number of applications), equally far apart."""
    indices = [index for index, _, _ in layers]
    distance = indices[1] - indices[0]
    by = f'by{distance}' if distance > 1 else ''
    name = f'layers_{indices[0]}x{len(layers)}{by}'
    return Part(name, [layer for _, layer, _ in layers], indices, layers[0][2])


def cache_axis(path: Any) -> int:
    """The axis of the examples in a cached array; scanned runs stack other axes before it."""
    return sum(bool(scanned_layers(str(part.key))) for part in path)


def per_layer(params: Params) -> dict[str, Any]:
    """Unstacks the parameters of scanned runs.

    Args:
        params: parameters as stored, `{'layers_0x3': {'up': [3, 16, 32]}}`.

    Returns:
        `{'layers_0': {'up': [16, 32]}, 'layers_1': …, 'layers_2': …}`, for scanned and unrolled
        stacks.
    """
    out: dict[str, Any] = {}
    for name, value in params.items():
        if not isinstance(value, Mapping):
            out[name] = value
        elif layers := scanned_layers(name):
            for i, layer_name in enumerate(layers):
                layer = jax.tree.map(lambda leaf, i=i: leaf[i], value)
                out[layer_name] = per_layer(layer)
        else:
            out[name] = per_layer(value)
    return out


def stacked(params: Params, model: Layer) -> dict[str, Any]:
    """The inverse of `per_layer`: parameters as `model` stores them."""
    out = dict(params)
    if isinstance(model, Stack):
        for part in model.storage():
            names = [f'layers_{index}' for index in part.indices]
            if names[0] not in params:
                continue  # Layers without parameters.
            each = [stacked(out.pop(n), layer) for n, layer in zip(names, part.layers, strict=True)]
            is_run = part.name != names[0]
            out[part.name] = jax.tree.map(lambda *v: jnp.stack(v), *each) if is_run else each[0]
        return out
    for child in children(model):
        name = child.scope_name()
        if name in params:
            out[name] = stacked(params[name], child)
    return out


def children(value: Any) -> Iterator[Layer]:
    """The layers in the fields of a layer, without those inside them."""
    for _, child in value.sym_items():
        if isinstance(child, Layer):
            yield child
        elif isinstance(child, pg.Object | pg.Dict | pg.List):
            yield from children(child)
