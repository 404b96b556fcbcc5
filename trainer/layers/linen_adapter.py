import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging
from flax.errors import InvalidRngError

from trainer.layers.adapter import FlaxAdapter, Tree
from trainer.layers.base import (
    AUX_LOSS,
    NON_TRAINABLE,
    PARAMS,
    SUMMARIES,
    Keys,
    current_frame,
    fold,
)
from trainer.symbolic.errors import UserError


class LinenAdapter(FlaxAdapter):
    """A module of flax linen as a layer. See `FlaxAdapter` for the storage of its variables.

    `nn.with_logical_partitioning` sets the axes. `docs/extending/flax-modules.md` has a module.

    Scalars that the module sows into 'aux_loss' are added to the loss, and those in 'summaries' are
    logged. All else that it sows is left out.

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
        dropout = self.key('dropout')

        def apply(variables: Tree, mutable: list[str]) -> tuple[Any, Tree]:
            return _with_all_streams(
                lambda rngs: host.apply(variables, *args, rngs=rngs, mutable=mutable, **kwargs),
                {'dropout': dropout},
            )

        if current_frame().module.is_initializing() and not self.stored(PARAMS):
            keys = {PARAMS: self.key(PARAMS), 'dropout': dropout}
            outputs, variables = _with_all_streams(
                lambda rngs: host.init_with_output(rngs, *args, **kwargs), keys
            )
            added = {name for name in variables if _is_sown(apply, variables, name)}
            self._pass_on({name: variables[name] for name in added})
            new = {n: tree.get('inner', {}) for n, tree in variables.items() if n not in added}
            params = new.pop(PARAMS, {})
            self.store(nn.meta.unbox(params), jax.tree.map(_axes, params, is_leaf=_is_box), new)
            return outputs
        rest = self.stored(NON_TRAINABLE)
        variables = {
            name: {'inner': tree} for name, tree in {PARAMS: self.stored(PARAMS), **rest}.items()
        }
        added = {AUX_LOSS, SUMMARIES} - rest.keys()
        outputs, changed = apply(variables, [*added, *(rest if self.training else ())])
        self._pass_on({name: changed[name] for name in added & changed.keys()})
        if self.training:
            state = {name: tree['inner'] for name, tree in changed.items() if name in rest}
            self.put(NON_TRAINABLE, state)
        return outputs

    def _pass_on(self, added: Tree) -> None:
        """Adds losses of the module to the loss, and logs its summaries."""
        for collection, tree in added.items():
            if collection not in (AUX_LOSS, SUMMARIES):
                logging.log_first_n(
                    logging.WARNING,
                    '%s: nothing reads %r, into which the module of %s sows: sow losses into %r, '
                    'and scalars to log into %r',
                    1,
                    self.sym_path,
                    collection,
                    type(self).__name__,
                    AUX_LOSS,
                    SUMMARIES,
                )
                continue
            for path, value in jax.tree_util.tree_leaves_with_path(tree['inner']):
                keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
                if jnp.ndim(value):
                    raise UserError(
                        f'{self.sym_path}: its module sows {".".join(keys)} of shape '
                        f'{jnp.shape(value)} into {collection!r}: sow a scalar'
                    )
                add = self.add_aux_loss if collection == AUX_LOSS else self.add_summary
                add('_'.join(keys), value)


def _with_all_streams(apply: Callable[[Keys], Any], rngs: Keys) -> Any:
    """Calls `apply` with a key for each random stream that the module draws from.

    Only the module knows its streams. Flax would draw from the stream of parameters for a missing
    one, and from one key for all iterations of a scan that splits it.
    """
    while True:
        try:
            return apply(rngs)
        except InvalidRngError as error:
            missing = re.search(r'needs PRNG for "(.+)"', str(error))
            if missing is None or missing[1] in rngs:
                raise
            rngs = rngs | {missing[1]: fold(rngs['dropout'], missing[1])}


def _is_sown(apply: Callable[[Tree, list[str]], Any], variables: Tree, name: str) -> bool:
    """True for a collection that the module writes and never reads: the outputs of a pass."""
    if name == PARAMS:
        return False
    others = {other: tree for other, tree in variables.items() if other != name}
    try:
        jax.eval_shape(lambda: apply(nn.meta.unbox(others), []))
    except Exception:  # The module needs the variables.
        return False
    return True


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
