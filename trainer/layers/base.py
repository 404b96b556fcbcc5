"""Layers: symbolic outside, flax inside.

A layer is a component with one `forward`. One generic flax module, `LayerModule`, runs every
layer; flax's scopes, collections and lifted transformations do the rest:

    class Linear(Layer):
        output_dims: int

        def forward(self, x_BD):
            shape = (x_BD.shape[-1], self.output_dims)
            return x_BD @ self.param('kernel', shape, axes=('embed', 'mlp'))

Calling a child (`self.linear(x)`) runs it as a submodule of the layer that *owns* it, named by its
place there, so the path of a weight is the path of its layer, and a layer that is handed to
another one (a shared embedding) still uses its owner's weights.
"""

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from trainer import mesh as mesh_lib
from trainer.symbolic.component import Component

Initializer = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
Keys = dict[str, jax.Array]

PARAMS, NON_TRAINABLE, AUX_LOSS, SUMMARIES = 'params', 'non_trainable', 'aux_loss', 'summaries'
CACHE = 'cache'
"""What layers have: what is trained, what is not, and what a forward pass leaves behind."""


@dataclasses.dataclass(frozen=True)
class ForwardContext:
    """What holds for every layer of one forward pass.

    Attributes:
        training: whether dropout and the like are active.
        dtype: what layers compute in; parameters themselves are float32.
        mesh: where activations are laid out, or None to leave that to the compiler.
        example_weights: of the examples of the batch, 0 where one only fills it up; None where
            each counts.
        cache_length: decoding: layers keep what they made of earlier positions, of so many at
            most; None where all positions are there at once.
    """

    training: bool = False
    dtype: Any = jnp.float32
    mesh: jax.sharding.Mesh | None = None
    example_weights: jax.Array | None = None
    cache_length: int | None = None


_DEFAULT = ForwardContext()
_context: contextvars.ContextVar[ForwardContext] = contextvars.ContextVar(
    'context', default=_DEFAULT
)


@contextlib.contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Sets what holds for the layers that are run inside the `with` block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


class ParameterBox(nn.LogicallyPartitioned):
    """A new parameter together with its logical axes and whether weight decay applies to it."""

    decay: bool = flax.struct.field(default=True, pytree_node=False)


class Frame:
    """A layer that is running: its flax module, the modules of its children, its random keys.

    Keys follow the path of the layer, so what a layer draws does not depend on its neighbours,
    nor on whether the stack that holds it is scanned or unrolled.
    """

    def __init__(
        self, module: nn.Module, layer: 'Layer', keys: Keys, up: 'Frame | None', call: int = 0
    ):
        self.module, self.layer, self.keys, self.up = module, layer, keys, up
        self._calls_from_root: tuple[int, ...] = (*(up._calls_from_root if up else ()), call)
        self._children: dict[str, LayerModule] = {}
        self._calls: dict[str, int] = {}
        self._draws = 0

    def child(self, layer: 'Layer', name: str) -> tuple[nn.Module, int]:
        """The module of a child, made at its first call, and the number of this call."""
        if name not in self._children:
            self._children[name] = LayerModule(layer=layer, name=name, parent=self.module)
        elif self._children[name].layer is not layer:
            raise ValueError(f'{self.layer.sym_path}: two layers are both called {name!r}')
        call = self._calls[name] = self._calls.get(name, -1) + 1
        return self._children[name], call

    def keys_of(self, name: str, call: int = 0) -> Keys:
        """Keys for the call number `call` of a child; its parameters' key is always the same."""
        keys = {stream: fold(key, name) for stream, key in self.keys.items()}
        return {
            stream: key if stream == 'params' else jax.random.fold_in(key, call)
            for stream, key in keys.items()
        }

    def name_in_cache(self, name: str) -> str:
        """Where this call of the layer keeps `name`: one that is called twice has two of it."""
        calls = list(itertools.dropwhile(lambda call: not call, self._calls_from_root))
        return '_'.join([name, *map(str, calls)])

    def draw(self, stream: str) -> jax.Array:
        """A new key from a stream."""
        if stream not in self.keys:
            raise ValueError(f'{self.layer.sym_path}: there is no random stream {stream!r}')
        self._draws += 1
        return jax.random.fold_in(self.keys[stream], self._draws)


def fold(key: jax.Array, name: str) -> jax.Array:
    """A key that depends on `name`, equally in every process."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


_frames: contextvars.ContextVar[Frame | None] = contextvars.ContextVar('frames', default=None)


def current_frame() -> Frame:
    """The frame of the layer that is running.

    Raises:
        ValueError: none is.
    """
    frame = _frames.get()
    if frame is None:
        raise ValueError('no layer is running: call layer.module().init or .apply')
    return frame


class Layer(Component):
    """A component with parameters. Subclasses write `forward`, with arrays in and arrays out."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(type(self).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call('forward', *args, **kwargs)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a method of this layer as a child of its owner.

        Raises:
            ValueError: the layer that owns this one is not running.
        """
        return self.call_as(None, method, *args, **kwargs)

    def call_as(self, name: str | None, method: str, *args: Any, **kwargs: Any) -> Any:
        """Like `call`, with the parameters under another name in the owner."""
        owner, frame = self._owner(), _frames.get()
        while frame is not None and frame.layer is not owner:
            frame = frame.up
        if owner is None or frame is None:
            where = f'{type(self).__name__} at {str(self.sym_path)!r}'
            raise ValueError(
                f'{where}: its owner is not running. Layers are fields of the layer that uses '
                'them, or are handed down by it; they are never made inside `forward`'
            )
        name = name or self.scope_name()
        module, call = frame.child(self, name)
        keys = frame.keys_of(name, call)
        return module(*args, _method=method, _keys=keys, _call=call, **kwargs)

    def module(self) -> nn.Module:
        """This layer as the root of a flax module: `.init(rngs, …)` and `.apply(variables, …)`."""
        return LayerModule(layer=self)

    def scope_name(self) -> str:
        """The name of this layer's parameters in its owner: `ffn`, or `layers_3` in a list."""
        parent, keys = self.sym_parent, [self.sym_path.key]
        while parent is not None and not isinstance(parent, Layer):
            keys.append(parent.sym_path.key)
            parent = parent.sym_parent
        return '_'.join(str(key) for key in reversed(keys))

    def _owner(self) -> 'Layer | None':
        parent = self.sym_parent
        while parent is not None and not isinstance(parent, Layer):
            parent = parent.sym_parent
        return parent

    # What `forward` may use.

    @property
    def training(self) -> bool:
        """Whether this is a training step."""
        return _context.get().training

    @property
    def dtype(self) -> Any:
        """The dtype to compute in."""
        return _context.get().dtype

    @property
    def example_weights(self) -> jax.Array | None:
        """Weights of the examples of the batch, 0 for padding; None where each counts."""
        return _context.get().example_weights

    def param(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        init: Initializer = nn.initializers.lecun_normal(),  # noqa: B008
        decay: bool = True,
        keep_float32: bool = False,
    ) -> jax.Array:
        """A float32 parameter of this layer, cast to the dtype that layers compute in.

        Args:
            name: its name in this layer.
            shape: its shape.
            axes: the logical axis of each dimension, as in `trainer.mesh.RULES`.
            init: draws the initial value.
            decay: whether weight decay applies to it.
            keep_float32: whether it is never cast, whatever layers compute in.
        """
        frame = current_frame()
        mesh_lib.partition_spec(axes)  # An unknown axis would be replicated in silence.

        def boxed(key: jax.Array) -> ParameterBox:
            own = fold(frame.keys['params'], name) if 'params' in frame.keys else key
            return ParameterBox(init(own, shape, jnp.float32), names=axes, decay=decay)

        value = frame.module.param(name, boxed)
        return jnp.asarray(value) if keep_float32 else jnp.asarray(value, self.dtype)

    def state(
        self, name: str, shape: tuple[int, ...], init: Initializer = nn.initializers.zeros
    ) -> jax.Array:
        """A float32 value of this layer that no gradient changes, such as a running mean.

        It is the same on all devices, and saved with the parameters.

        Args:
            name: its name in this layer.
            shape: its shape.
            init: draws the initial value.
        """

        def boxed() -> ParameterBox:
            # No state is drawn at random so far, and so no stream is split for it.
            value = init(jax.random.key(0), shape, jnp.float32)
            return ParameterBox(value, names=(None,) * len(shape), decay=False)

        variable: Any = current_frame().module.variable(NON_TRAINABLE, name, boxed)
        return jnp.asarray(variable.value)

    def set_state(self, name: str, value: jax.Array) -> None:
        """Changes a `state`, from the next step on. Only training does."""
        current_frame().module.put_variable(NON_TRAINABLE, name, value)

    @property
    def cache_length(self) -> int | None:
        """How many positions are kept while decoding; None where nothing is."""
        return _context.get().cache_length

    def cached(self, name: str, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """What was kept of earlier positions: zeros at first. Its first axis is of the examples."""
        frame = current_frame()
        stored = frame.name_in_cache(name)
        variable: Any = frame.module.variable(CACHE, stored, jnp.zeros, shape, dtype)
        return jnp.asarray(variable.value)

    def set_cached(self, name: str, value: jax.Array) -> None:
        """Keeps something for later positions."""
        frame = current_frame()
        frame.module.put_variable(CACHE, frame.name_in_cache(name), value)

    def create_once(self, name: str, make: Callable[[], jax.Array]) -> jax.Array:
        """What does not depend on the position: made at the first ones, and kept while decoding."""
        if self.cache_length is None:
            return make()
        frame = current_frame()
        variable: Any = frame.module.variable(CACHE, frame.name_in_cache(name), make)
        return jnp.asarray(variable.value)

    def add_aux_loss(self, name: str, loss: jax.Array) -> None:
        """Adds a scalar to the loss of the task, as load balancing does."""
        zero = functools.partial(jnp.zeros, ())
        current_frame().module.sow(AUX_LOSS, name, loss, jnp.add, zero)

    def add_summary(self, name: str, value: jax.Array) -> None:
        """Has a scalar written with the training metrics, under the path of this layer."""
        zero = functools.partial(jnp.zeros, ())
        current_frame().module.sow(SUMMARIES, name, value, lambda _, new: new, zero)

    def rng(self, stream: str) -> jax.Array:
        """A new random key from a stream such as 'dropout'."""
        return current_frame().draw(stream)

    def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        """Lays an activation out on the mesh by the logical axes of its dimensions.

        Positions (`length`) that do not divide evenly are on all devices.
        """
        mesh = _context.get().mesh
        if mesh is None:
            return x
        what = f'an activation of {type(self).__name__} at {str(self.sym_path)!r}'
        return jax.lax.with_sharding_constraint(
            x, mesh_lib.activation_sharding(mesh, axes, x.shape, what)
        )


def run_layer(
    module: nn.Module, layer: Layer, method: str, args: Any, kwargs: Any, keys: Keys, call: int = 0
) -> Any:
    """Runs a method of `layer` with its parameters in the scope of `module`."""
    token = _frames.set(Frame(module, layer, keys, _frames.get(), call))
    try:
        return getattr(layer, method)(*args, **kwargs)
    finally:
        _frames.reset(token)


class LayerModule(nn.Module):
    """The one flax module that runs every layer."""

    layer: Any

    @nn.compact
    def __call__(
        self,
        *args: Any,
        _method: str = 'forward',
        _keys: Keys | None = None,
        _call: int = 0,
        **kwargs: Any,
    ) -> Any:
        if _keys is None:  # The root: its keys come from flax.
            streams = ['params'] if self.is_initializing() else []
            streams += [name for name in ('dropout',) if self.has_rng(name)]
            _keys = {name: self.make_rng(name) for name in streams}
        return run_layer(self, self.layer, _method, args, kwargs, _keys, _call)
