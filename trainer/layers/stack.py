import itertools
import re
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
    Keys,
    Layer,
    current_frame,
    run_layer,
)
from trainer.layers.shared import SharedWithPrevious
from trainer.symbolic.code_key import code_key
from trainer.symbolic.component import bind, numbers, require_positive

_UNROLLED_ON_CPU = 6
"""Scanning costs 25-50 % of a step on CPU; up to this length, an unrolled run compiles fast."""

_SAVED = {'full': None, 'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable}

Params = Mapping[str, Any]


class Part(NamedTuple):
    """Layers of a stack that are stored together: one layer, or a scanned run.

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

    Neighbours of one class that differ only in their numbers are one run. A run is compiled once
    and scanned; its parameters are stacked along a first axis and stored as
    `layers_<first>x<length>`. The rest is unrolled and stored as `layers_<index>`. A
    `SharedWithPrevious` belongs to the layer before it: a run whose layers are applied twice each
    is stored as `layers_<first>x<length>by2`.

    Attributes:
        layers: the layers in order. Each takes `(x, *args)` and returns an array like `x`.
        repeats: repeats the whole list, each time with its own parameters.
        scan: scans runs 'always', 'never', or 'auto': everywhere except short runs on CPU.
        remat: activations of a scanned run that the backward pass computes again: 'full' all,
            'dots' all but matrix products, 'none' nothing.
    """

    layers: list[Layer]
    repeats: int = 1
    scan: Literal['auto', 'always', 'never'] = 'auto'
    remat: Literal['full', 'dots', 'none'] = 'full'

    def check(self) -> None:
        require_positive(self, 'repeats')
        if self.layers and isinstance(self.layers[0], SharedWithPrevious):
            raise ValueError(
                'layers[0] is a SharedWithPrevious, but no layer precedes it: begin with another '
                'layer. Repeats have their own parameters'
            )

    def forward(self, x: jax.Array, *args: Any) -> jax.Array:
        for part in self.storage():
            if len(part.layers) > 1:
                x = self._scan(part, x, args)
            else:
                for _ in range(part.times):
                    x = part.layers[0].call_as(part.name, 'forward', x, *args)
        return x

    def storage(self) -> list[Part]:
        """The stored parts, in the order of the layers."""
        parts = []
        for run in self._runs():
            if self._scanned(len(run.layers)):
                parts.append(run)
            else:
                parts += [
                    Part(f'layers_{index}', [layer], [index], run.times)
                    for layer, index in zip(run.layers, run.indices, strict=True)
                ]
        return parts

    def _runs(self) -> list[Part]:
        """Neighbours of equal structure that are applied equally often."""
        applied = self._applied()
        places, layers, times = zip(*applied, strict=True) if applied else ((), (), ())
        kinds = [
            (code_key(layer, with_classes=False), n) for layer, n in zip(layers, times, strict=True)
        ]
        all_of_them = itertools.product(range(self.repeats), range(len(applied)))
        runs = []
        for (_, count), run in itertools.groupby(all_of_them, lambda at: kinds[at[1]]):
            at = list(run)
            indices = [repeat * len(self.layers) + places[i] for repeat, i in at]
            by = f'by{count}' if count > 1 else ''
            name = f'layers_{indices[0]}x{len(at)}{by}'
            runs.append(Part(name, [layers[i] for _, i in at], indices, count))
        return runs

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
        short = jax.default_backend() == 'cpu' and length <= _UNROLLED_ON_CPU
        return self.scan == 'always' or not short

    def _scan(self, part: Part, x: jax.Array, args: Any) -> jax.Array:
        frame = current_frame()
        each = [
            (numbers(layer), [frame.keys_of(f'layers_{at}', call) for call in range(part.times)])
            for layer, at in zip(part.layers, part.indices, strict=True)
        ]
        stacked = jax.tree.map(lambda *values: jnp.stack([jnp.asarray(v) for v in values]), *each)
        step: Any = ScanStep
        if self.remat != 'none':
            step = nn.remat(ScanStep, prevent_cse=False, policy=_SAVED[self.remat])
        scan = nn.scan(
            step,
            variable_axes=dict.fromkeys((PARAMS, NON_TRAINABLE, AUX_LOSS, SUMMARIES, CACHE), 0),
            split_rngs={'params': True, 'dropout': True},
            in_axes=(0, *(nn.broadcast for _ in args)),
            length=len(part.layers),
            metadata_params={nn.PARTITION_NAME: 'layers'},
        )
        module = scan(layer=part.layers[0], name=part.name)
        return module(x, stacked, *args)[0]


class ScanStep(nn.Module):
    """One layer of a scanned run; its numbers and its keys are inputs of the scan."""

    layer: Any

    def __call__(
        self, x: jax.Array, each: tuple[dict[str, jax.Array], list[Keys]], *args: Any
    ) -> tuple[jax.Array, None]:
        values, keys = each
        layer = bind(self.layer, values) if values else self.layer
        for call, of_call in enumerate(keys):
            x = self.applied(layer, x, args, of_call, call)
        return x, None

    @nn.compact
    def applied(self, layer: Layer, x: jax.Array, args: Any, keys: Keys, call: int) -> jax.Array:
        """Applies the layer to `x`."""
        return run_layer(self, layer, 'forward', (x, *args), {}, keys, call)


def scanned_layers(name: str) -> list[str]:
    """The names of the layers in a scanned run stored as `name`; [] if it is no such run.

    Example:
        >>> scanned_layers('layers_2x3'), scanned_layers('layers_2')
        (['layers_2', 'layers_3', 'layers_4'], [])
        >>> scanned_layers('layers_2x3by2')
        ['layers_2', 'layers_4', 'layers_6']
    """
    scanned = re.fullmatch(r'layers_(\d+)x(\d+)(?:by(\d+))?', name)
    if not scanned:
        return []
    first, length, step = int(scanned[1]), int(scanned[2]), int(scanned[3] or 1)
    return [f'layers_{first + step * i}' for i in range(length)]


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
