"""A comparison of models by the operations that JAX traces."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from trainer.layers.attention import Attention
from trainer.layers.base import Layer
from trainer.layers.heads import MultiHead
from trainer.layers.rotary import Rotary
from trainer.layers.stack import Stack
from trainer.symbolic.component import components


def computation(model: Layer, *inputs: Any) -> Any:
    """Equal for models that make the same of inputs of these shapes, given the same parameters.

    Layout (`scan`, `remat`, kernels) and parts that act in training alone, such as dropout, do not
    count. Nothing is computed.
    """
    model = model.clone(deep=True)
    for each in components(model):
        if isinstance(each, Stack):
            plain: Any = {'scan': 'never', 'remat': 'none', 'save_names': [], 'offload_names': []}
            each.rebind(plain, raise_on_no_change=False)
        elif isinstance(each, MultiHead):
            each.rebind(implementation='auto', raise_on_no_change=False)
            if isinstance(each, Attention) and each.position == 'rotary':
                each.rebind(position=Rotary())
    module = model.module()
    variables = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    closed = jax.make_jaxpr(module.apply)(variables, *inputs)
    names = [str(path) for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
    return names, str(closed.jaxpr), [np.asarray(each).tolist() for each in closed.consts]


def differing_fields(one: Any, other: Any, path: str) -> Iterator[str]:
    """The fields of two components that differ, each with both values."""
    if type(one) is type(other) and hasattr(one, 'sym_items'):
        for key, value in one.sym_items():
            below = f'{path}[{key}]' if isinstance(key, int) else f'{path}.{key}'
            if not other.sym_hasattr(key):
                yield f'{below}: {_short(value)}, there nothing'
            else:
                yield from differing_fields(value, other.sym_getattr(key), below)
    elif one != other:
        yield f'{path}: {_short(one)}, there {_short(other)}'


def _short(value: Any) -> str:
    return type(value).__name__ if hasattr(value, 'sym_items') else repr(value)
