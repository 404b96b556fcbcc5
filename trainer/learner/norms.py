from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.learner.paths import keys, names, scan_lengths
from trainer.symbolic.component import Component


class NormMetrics(Component):
    """Norms logged in addition to `gradient_norm`, which is always there.

    Attributes:
        each_gradient: adds the metrics `gradient_norm/stack/layers_0/…`.
        parameters: adds the metric `parameter_norm`, of all trained parameters together.
        each_parameter: adds the metrics `parameter_norm/stack/layers_0/…`.
    """

    each_gradient: bool = False
    parameters: bool = False
    each_parameter: bool = False

    def measure(self, params: Any, gradients: Any) -> dict[str, jax.Array]:
        """The norms by the names of their metrics."""
        found: dict[str, jax.Array] = {}
        if self.each_gradient:
            found |= {f'gradient_norm/{at}': norm for at, norm in norms(gradients)}
        if self.parameters:
            found['parameter_norm'] = optax.tree.norm(params)
        if self.each_parameter:
            found |= {f'parameter_norm/{at}': norm for at, norm in norms(params)}
        return found


def map_layers(function: Callable[[jax.Array, tuple[int, ...]], jax.Array], tree: Any) -> Any:
    """Applies `function` to each array and the axes that belong to a single layer."""

    def of(path: Any, x: jax.Array) -> jax.Array:
        return function(x, own_axes(keys(path), x))

    return jax.tree_util.tree_map_with_path(of, tree)


def own_axes(path: tuple[str, ...], x: jax.Array) -> tuple[int, ...]:
    """The axes of a stored parameter, without the leading axes of scanned layers."""
    return tuple(range(len(scan_lengths(path)), x.ndim))


def norms(tree: Any) -> Iterator[tuple[str, jax.Array]]:
    """(name, norm) of each parameter of each layer; names are like `stack/layers_0/up/kernel`."""
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        at = keys(path)
        each = jnp.sqrt(jnp.sum(jnp.square(x), own_axes(at, x))).reshape(-1)
        yield from ((name, each[i]) for i, name in enumerate(names(at, '/')))
