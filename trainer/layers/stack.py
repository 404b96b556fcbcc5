"""A stack of layers, and the two views of its parameters: as stored, and layer by layer."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import pyglove as pg

from trainer.component import bind, key, numbers, require_positive
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

_UNROLLED_ON_CPU = 6
"""Scanning costs 25-50 % of a step on CPU; up to this length a run is cheap to compile without."""

_SAVED = {'full': None, 'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable}

Params = Mapping[str, Any]


class Stack(Layer):
    """Layers applied one after another: x -> layers[-1](… layers[0](x)).

    Neighbours that differ at most in their numbers are one run. A run is compiled once and
    scanned, its parameters stacked along a first axis and stored as `layers_<first>x<length>`;
    the rest is unrolled, its parameters stored as `layers_<index>`.

    Attributes:
        layers: what to apply, in order. Each takes `(x, *args)` and returns an array like `x`.
        repeats: how often to apply the whole list, each time with parameters of its own.
        scan: scan runs 'always', 'never', or 'auto': everywhere but in short runs on CPU.
        remat: what the backward pass of a scanned run computes again instead of storing it:
            'full' everything, 'dots' all but matrix products, 'none' nothing.
    """

    layers: list[Layer]
    repeats: int = 1
    scan: Literal['auto', 'always', 'never'] = 'auto'
    remat: Literal['full', 'dots', 'none'] = 'full'

    def check(self) -> None:
        require_positive(self, 'repeats')

    def forward(self, x: jax.Array, *args: Any) -> jax.Array:
        for name, run, first in self.storage():
            if len(run) > 1:
                x = self._scan(name, run, first, x, args)
            else:
                x = run[0].call_as(name, 'forward', x, *args)
        return x

    def runs(self) -> list[tuple[int, list[Layer]]]:
        """Neighbours of equal structure: [(index of the first, the layers)]."""
        runs: list[tuple[int, list[Layer]]] = []
        keys = [key(layer) for layer in self.layers]
        last = None
        for index in range(self.repeats * len(self.layers)):
            place = index % len(self.layers)
            if keys[place] == last:
                runs[-1][1].append(self.layers[place])
            else:
                runs.append((index, [self.layers[place]]))
            last = keys[place]
        return runs

    def storage(self) -> list[tuple[str, list[Layer], int]]:
        """How runs are stored: [(name, layers, index of the first)], one layer where unrolled."""
        stored: list[tuple[str, list[Layer], int]] = []
        for first, run in self.runs():
            if self._scanned(len(run)):
                stored.append((f'layers_{first}x{len(run)}', run, first))
            else:
                stored += [(f'layers_{i}', [layer], i) for i, layer in enumerate(run, first)]
        return stored

    def _scanned(self, length: int) -> bool:
        if length == 1 or self.scan == 'never':
            return False
        short = jax.default_backend() == 'cpu' and length <= _UNROLLED_ON_CPU
        return self.scan == 'always' or not short

    def _scan(self, name: str, run: list[Layer], first: int, x: jax.Array, args: Any) -> jax.Array:
        frame = current_frame()
        each = [
            (numbers(layer), frame.keys_of(f'layers_{index}'))
            for index, layer in enumerate(run, first)
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
            length=len(run),
            metadata_params={nn.PARTITION_NAME: 'layers'},
        )
        module = scan(layer=run[0], name=name)
        return module(x, stacked, *args)[0]


class ScanStep(nn.Module):
    """One layer of a scanned run; its numbers and keys come with the scan."""

    layer: Any

    @nn.compact
    def __call__(
        self, x: jax.Array, each: tuple[dict[str, jax.Array], Keys], *args: Any
    ) -> tuple[jax.Array, None]:
        values, keys = each
        layer = bind(self.layer, values) if values else self.layer
        return run_layer(self, layer, 'forward', (x, *args), {}, keys), None


def scanned_layers(name: str) -> list[str]:
    """The names of the layers in a scanned run that is stored as `name`; [] where it is none.

    Example:
        >>> scanned_layers('layers_2x3'), scanned_layers('layers_2')
        (['layers_2', 'layers_3', 'layers_4'], [])
    """
    scanned = re.fullmatch(r'layers_(\d+)x(\d+)', name)
    if not scanned:
        return []
    first, length = int(scanned[1]), int(scanned[2])
    return [f'layers_{index}' for index in range(first, first + length)]


def cache_axis(path: Any) -> int:
    """Which axis of a cached array is that of the examples: scanned runs stack others before it.

    Args:
        path: of the array, as JAX's tree functions give it.
    """
    return sum(bool(scanned_layers(str(part.key))) for part in path)


def per_layer(params: Params) -> dict[str, Any]:
    """Parameters with each layer of a scanned run on its own.

    Args:
        params: parameters as stored, `{'layers_0x3': {'up': [3, 16, 32]}}`.

    Returns:
        `{'layers_0': {'up': [16, 32]}, 'layers_1': …, 'layers_2': …}`, whatever the stack does.
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
        for name, run, first in model.storage():
            names = [f'layers_{first + i}' for i in range(len(run))]
            if names[0] not in params:
                continue  # Layers without parameters.
            each = [stacked(out.pop(n), layer) for n, layer in zip(names, run, strict=True)]
            is_run = name != names[0]
            out[name] = jax.tree.map(lambda *v: jnp.stack(v), *each) if is_run else each[0]
        return out
    for child in _children(model):
        name = child.scope_name()
        if name in params:
            out[name] = stacked(params[name], child)
    return out


def _children(value: Any) -> Iterator[Layer]:
    """The layers that `value` owns."""
    for _, child in value.sym_items():
        if isinstance(child, Layer):
            yield child
        elif isinstance(child, pg.Object | pg.Dict | pg.List):
            yield from _children(child)
