"""Fused kernels of `tokamax`, in place of products that XLA compiles.

`tokamax` takes the best kernel that it has for the device and the shapes, and else XLA's.
Normalizations are not among them: its kernel compiles the epsilon in, which here is a number.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from trainer.layers.activations import Activation
from trainer.symbolic.errors import UserError
from trainer.symbolic.extras import needed, require

_FIELD = "task.kernels='tokamax'"

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array] | None] = {
    'gelu': jax.nn.gelu,
    'identity': None,
    'relu': jax.nn.relu,
    'sigmoid': jax.nn.sigmoid,
    'silu': jax.nn.silu,
}
"""Activations of gated units: `tokamax` looks up their kernels by the functions of JAX."""


def require_kernels(mesh: jax.sharding.Mesh) -> None:
    """Raises UserError unless `tokamax` is installed and has kernels for a mesh."""
    platform = mesh.devices.flat[0].platform
    if platform not in ('gpu', 'tpu'):
        raise UserError(
            f"{_FIELD} has kernels of GPUs and TPUs, and JAX runs on a {platform}: set it to 'jax'"
        )
    if mesh.size > 1:
        raise UserError(
            f'{_FIELD} has kernels of one device, and XLA cannot divide them over the {mesh.size} '
            "of the mesh: set it to 'jax'"
        )
    require('kernels', _FIELD, 'tokamax')


def attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    mask: jax.Array | None,
    is_causal: bool,
    window: int | None,
    bias: jax.Array | None,
) -> jax.Array:
    """Attention as `MultiHead._attend` defines it."""
    out: jax.Array = _library().dot_product_attention(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        bias=bias,
        mask=mask,
        is_causal=is_causal,
        local_window_size=None if window is None else (window - 1, 0),
    )
    return out


def gated_unit(
    x: jax.Array, gate_DF: jax.Array, up_DF: jax.Array, activation: Activation
) -> jax.Array:
    """activation(x @ gate_DF) * (x @ up_DF), without both products in memory.

    Args:
        activation: one of `ACTIVATIONS`.
    """
    weights, function = (gate_DF, up_DF), ACTIVATIONS[activation]
    y: jax.Array = _library().gated_linear_unit(x, weights, activation=function)
    return y


def ragged_product(x_ND: jax.Array, kernels_EDF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """Rows by the kernels of their groups, as `grouped_product` defines it."""
    y: jax.Array = _library().ragged_dot(x_ND, kernels_EDF, sizes_E)
    return y


def _library() -> Any:
    with needed('kernels', _FIELD):
        library = importlib.import_module('tokamax')
    if (
        not flags.FLAGS.is_parsed()
    ):  # It would parse the flags of the command, which are not absl's.
        flags.FLAGS.mark_as_parsed()
    return library
