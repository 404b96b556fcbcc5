from typing import Any

import jax
from flax import nnx, traverse_util

from trainer.layers.adapter import FlaxAdapter, Tree
from trainer.layers.base import NON_TRAINABLE, PARAMS, current_frame, fold

Path = tuple[str, ...]


class NnxAdapter(FlaxAdapter):
    """A module of flax nnx as a layer. See `FlaxAdapter` for the storage of its variables.

    Parameters are `nnx.Param`s; `nnx.with_partitioning` sets their axes. Each pass creates the
    module again, fills in the stored variables, and sets it to training or evaluation. Random state
    is not stored: each step has new keys, other than those of `make`. A stream of another name is
    the stream `default`. `nnx.BatchNorm` computes in float32 unless it is given a
    dtype, such as `self.dtype`. Nothing reads sown values.

    Example:
        >>> class Doubled(NnxAdapter):
        ...     dims: int = 32
        ...
        ...     def make(self, rngs):
        ...         return nnx.Linear(4, 2 * self.dims, rngs=rngs)
        >>> x = jax.numpy.ones((2, 4))
        >>> variables = Doubled().module().init({'params': jax.random.key(0)}, x)
        >>> variables['params']['kernel'].value.shape
        (4, 64)
    """

    def make(self, rngs: nnx.Rngs) -> Any:
        """Creates the module with the random streams `rngs`."""
        raise NotImplementedError(f'{type(self).__name__} has no make()')

    def run(self, *args: Any, **kwargs: Any) -> Any:
        dropout = self.key('dropout')
        named = {stream: self.key(stream) for stream in (PARAMS, 'default')}
        rngs = nnx.Rngs(**named, dropout=dropout)
        with nnx.use_eager_sharding(False):  # The program sets the sharding.
            module = self.make(rngs)
        params, rest = _variables(module)
        if current_frame().module.is_initializing() and not self.stored(PARAMS):
            self.store(_tree(params), _tree_of_axes(params), _tree(rest))
        for variables, collection in ((params, PARAMS), (rest, NON_TRAINABLE)):
            values = traverse_util.flatten_dict(self.stored(collection))
            for path, variable in variables.items():
                variable.set_value(values[path])
        module.train() if self.training else module.eval()
        if self.training:
            _renew_streams(module, dropout)
        outputs = module(*args, **kwargs)
        if self.training:
            self.put(NON_TRAINABLE, _tree(rest))
        return outputs


def _renew_streams(module: Any, dropout: jax.Array) -> None:
    """Gives each random stream of a module a key of this step; that of dropout has one already."""
    for _, stream in nnx.iter_graph(module):
        if isinstance(stream, nnx.RngStream) and stream.tag != 'dropout':
            # Forks of a stream differ, and stay different.
            of_step = jax.random.bits(fold(dropout, stream.tag))
            fold_in, keys = jax.random.fold_in, stream.key.get_value()
            for _ in range(keys.ndim):  # It is split.
                fold_in = jax.vmap(fold_in, (0, None))
            stream.key.set_value(fold_in(keys, of_step))


def _variables(module: Any) -> tuple[dict[Path, Any], dict[Path, Any]]:
    """The trained and the other variables of a module by path, without random state."""
    params: dict[Path, Any] = {}
    rest: dict[Path, Any] = {}
    for path, variable in nnx.iter_graph(module):
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState):
            kind = params if isinstance(variable, nnx.Param) else rest
            kind[tuple(map(str, path))] = variable
    return params, rest


def _tree(variables: dict[Path, Any]) -> Tree:
    values = {path: variable.get_value() for path, variable in variables.items()}
    return traverse_util.unflatten_dict(values)


def _tree_of_axes(variables: dict[Path, Any]) -> Tree:
    axes = {path: each.get_metadata().get('out_sharding') for path, each in variables.items()}
    return traverse_util.unflatten_dict(axes)
