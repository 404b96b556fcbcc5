"""The flax modules of scanned layers, whose numbers and random keys are inputs of the scan."""

from typing import Any

import flax.linen as nn
import jax

from trainer.layers.base import Keys, Layer, run_layer
from trainer.layers.branch import require_like, taken
from trainer.symbolic.component import bind

Own = tuple[dict[str, jax.Array], list[Keys]]
"""Numbers of a scanned layer, and the keys of each of its applications."""


class ScanStep(nn.Module):
    """One period of scanned layers; their numbers and their keys are inputs of the scan."""

    layers: list[Any]

    def __call__(self, x: jax.Array, each: list[Own], *args: Any) -> tuple[jax.Array, None]:
        for layer, own in zip(self.layers, each, strict=True):
            x = layer(x, own, *args)
        return x, None


class ScannedLayer(nn.Module):
    """One layer of a period."""

    layer: Any

    def __call__(self, x: jax.Array, own: Own, *args: Any) -> jax.Array:
        values, keys = own
        layer = bind(self.layer, values) if values else self.layer
        for call, of_call in enumerate(keys):
            x = self.applied(layer, x, args, of_call, call)
        return x

    @nn.compact
    def applied(self, layer: Layer, x: jax.Array, args: Any, keys: Keys, call: int) -> jax.Array:
        """Applies the layer to `x`."""
        y: jax.Array = run_layer(
            self, layer, 'forward', (x, *taken(layer, x, args)), {}, keys, call
        )
        require_like(self.layer, x, y)
        return y
