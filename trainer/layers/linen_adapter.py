from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

from trainer.layers.adapter import FlaxAdapter, Tree
from trainer.layers.base import NON_TRAINABLE, PARAMS, current_frame


class LinenAdapter(FlaxAdapter):
    """A module of flax linen as a layer. See `FlaxAdapter` for the storage of its variables.

    `nn.with_logical_partitioning` sets the axes. Dropout uses the stream 'dropout'.
    `docs/extending/flax-modules.md` has such a module.

    Example:
        >>> class Doubled(LinenAdapter):
        ...     dims: int = 32
        ...
        ...     def make(self):
        ...         return nn.Dense(2 * self.dims)
        >>> x = jax.numpy.ones((2, 4))
        >>> variables = Doubled().module().init({'params': jax.random.key(0)}, x)
        >>> variables['params']['kernel'].value.shape
        (4, 64)
    """

    def make(self) -> nn.Module:
        """Creates the module; `self.training` and `self.dtype` belong to the current pass."""
        raise NotImplementedError(f'{type(self).__name__} has no make()')

    def run(self, *args: Any, **kwargs: Any) -> Any:
        # With a parent, it would put its own variables into the scope of the layer.
        host: Any = _Host(self.make, parent=None)
        keys = {stream: self.key(stream) for stream in (PARAMS, 'dropout')}
        if current_frame().module.is_initializing() and not self.stored(PARAMS):
            outputs, variables = host.init_with_output(keys, *args, **kwargs)
            new = {name: tree.get('inner', {}) for name, tree in variables.items()}
            params = new.pop(PARAMS, {})
            self.store(nn.meta.unbox(params), jax.tree.map(_axes, params, is_leaf=_is_box), new)
            return outputs
        rest: Tree = self.stored(NON_TRAINABLE)
        variables = {
            name: {'inner': tree} for name, tree in {PARAMS: self.stored(PARAMS), **rest}.items()
        }
        if not self.training:
            return host.apply(variables, *args, rngs=keys, **kwargs)
        outputs, changed = host.apply(variables, *args, rngs=keys, mutable=list(rest), **kwargs)
        self.put(NON_TRAINABLE, {name: tree['inner'] for name, tree in changed.items()})
        return outputs


class _Host(nn.Module):
    make_inner: Callable[[], nn.Module]

    def setup(self) -> None:
        self.inner = self.make_inner()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inner: Any = self.inner
        return inner(*args, **kwargs)


def _is_box(value: Any) -> bool:
    return isinstance(value, nn.meta.AxisMetadata)


def _axes(value: Any) -> tuple[str | None, ...] | None:
    return value.names if isinstance(value, nn.Partitioned) else None
