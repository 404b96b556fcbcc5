"""Layers: symbolic outside, flax inside.

A layer is a component with one `forward`. One generic flax module, `LayerModule`, runs every
layer; flax's scopes, collections and lifted transformations do the rest:

    class Linear(Layer):
        output_dims: int

        def forward(self, x_BD):
            shape = (x_BD.shape[-1], self.output_dims)
            kernel_DF = self.param('kernel', shape, axes=('embed', 'mlp'))
            return self.product('bd,df->bf', x_BD, kernel_DF)

Calling a child (`self.linear(x)`) runs it as a submodule of the layer that *owns* it, under the
name that it has there. So the path of a weight is the path of its layer. A layer that is passed to
another layer (a shared embedding) still uses its owner's weights.
"""

import contextvars
import functools
import itertools
import zlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.context import ForwardContext as ForwardContext
from trainer.layers.context import current_context
from trainer.layers.context import forward_context as forward_context
from trainer.layers.context import label_weights as label_weights
from trainer.layers.initialization import Draw, Initializer, KernelInit
from trainer.layers.lora import Adapter, require_multiplied
from trainer.layers.parameters import ParameterBox, has_one_size_each, new_parameter
from trainer.layers.precision import RoundedKernel, multiply
from trainer.layers.quantized import SCALE, dequantized
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

Keys = dict[str, jax.Array]

PARAMS, NON_TRAINABLE, AUX_LOSS, SUMMARIES = 'params', 'non_trainable', 'aux_loss', 'summaries'
CACHE = 'cache'
"""Flax collections: trained and untrained variables, and outputs of a forward pass."""


class Frame:
    """A running layer: its flax module, the modules of its children, its random keys.

    Keys follow the path of the layer. So random draws of a layer depend neither on its neighbours,
    nor on whether its stack is scanned or unrolled.
    """

    def __init__(
        self, module: nn.Module, layer: 'Layer', keys: Keys, up: 'Frame | None', call: int = 0
    ):
        self.module, self.layer, self.keys, self.up = module, layer, keys, up
        self._calls_from_root: tuple[int, ...] = (*(up._calls_from_root if up else ()), call)
        self._children: dict[str, LayerModule] = {}
        self._calls: dict[str, int] = {}
        self._draws = 0
        self.adapters: list[Adapter] = []
        self.rounded: list[RoundedKernel] = []

    def child(self, layer: 'Layer', name: str) -> tuple[nn.Module, int]:
        """The module of a child, created at its first call, and the number of this call."""
        if name not in self._children:
            self._children[name] = LayerModule(layer=layer, name=name, parent=self.module)
        elif self._children[name].layer is not layer:
            raise ValueError(f'{self.layer.sym_path}: two layers are both called {name!r}')
        call = self._calls[name] = self._calls.get(name, -1) + 1
        return self._children[name], call

    def keys_of(self, name: str, call: int = 0) -> Keys:
        """Keys for call number `call` of a child; the key of its parameters is always the same."""
        keys = {stream: fold(key, name) for stream, key in self.keys.items()}
        return {
            stream: key if stream == 'params' else jax.random.fold_in(key, call)
            for stream, key in keys.items()
        }

    def name_in_cache(self, name: str) -> str:
        """The name of `name` in the cache of this call: each call of a layer has its own cache."""
        calls = list(itertools.dropwhile(lambda call: not call, self._calls_from_root))
        return '_'.join([name, *map(str, calls)])

    def draw(self, stream: str) -> jax.Array:
        """Draws a new key from a stream."""
        if stream not in self.keys:
            raise ValueError(f'{self.layer.sym_path}: there is no random stream {stream!r}')
        self._draws += 1
        return jax.random.fold_in(self.keys[stream], self._draws)


def fold(key: jax.Array, name: str) -> jax.Array:
    """Derives a key from `name`, the same one in every process."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


_frames: contextvars.ContextVar[Frame | None] = contextvars.ContextVar('frames', default=None)


def current_frame() -> Frame:
    """The frame of the running layer; raises ValueError if no layer is running."""
    frame = _frames.get()
    if frame is None:
        raise ValueError('no layer is running: call layer.module().init or .apply')
    return frame


class Layer(Component):
    """A component with parameters. Subclasses define `forward`, from arrays to arrays."""

    is_unique = True

    is_pointwise = False
    """True if each position is computed by itself, so that decoding needs no cache."""

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
        owner = self.sym_ancestor(lambda value: isinstance(value, Layer))
        frame = _frames.get()
        while frame is not None and frame.layer is not owner:
            frame = frame.up
        if owner is None or frame is None:
            where = f'{type(self).__name__} at {str(self.sym_path)!r}'
            raise ValueError(
                f'{where}: its owner is not running. Layers are fields of the layer that uses '
                'them, or are passed down by it; they are never created inside `forward`'
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

    # For use in `forward`.

    @property
    def training(self) -> bool:
        """True in a training step."""
        return current_context().training

    @property
    def dtype(self) -> Any:
        """The dtype of computations."""
        return current_context().dtype

    @property
    def makes_outputs(self) -> bool:
        """True where the result is that of the model: a loss needs its last product in float32."""
        frame = current_frame()
        while frame.up is not None and frame.up.layer.passes_on(frame.layer):
            frame = frame.up
        return frame.up is None

    def passes_on(self, child: 'Layer') -> bool:
        """True if the result of a child is the result of this layer."""
        return False

    @property
    def example_weights(self) -> jax.Array | None:
        """Weights of the examples of the batch, 0 for padding; None if all examples count."""
        return current_context().example_weights

    def param(
        self,
        name: str,
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        init: Initializer | Draw | None = None,
        decay: bool = True,
        keep_float32: bool = False,
        is_output: bool = False,
        used: float = 1.0,
    ) -> jax.Array:
        """A parameter of this layer, cast to the dtype of computations.

        Args:
            axes: the logical axis of each dimension, as in `trainer.mesh.RULES` or
                `mesh.rules` of the experiment.
            init: makes new values; one with less than two axes needs it.
            decay: weight decay applies to it.
            keep_float32: returns it as float32, and stores all but tables so.
            is_output: it makes the outputs of the model, or the scores of a router: no hidden
                matrix, so Muon leaves it to AdamW.
            used: share of it that computes the result of a token.
        """
        frame = current_frame()
        if init is None or isinstance(init, Initializer):
            init = KernelInit(init)
        if isinstance(init, KernelInit):
            init = init.of_axes(axes)
            if not init.fits(len(shape)):
                raise UserError(
                    f'{str(self.sym_path) or "model"} ({type(self).__name__}): parameter {name!r} '
                    f'of shape {tuple(shape)} has no axes of inputs and outputs: pass `init`, such '
                    'as init=flax.linen.initializers.zeros'
                )

        def boxed(key: jax.Array) -> ParameterBox:
            own = fold(frame.keys['params'], name) if 'params' in frame.keys else key
            traits = {'decay': decay, 'is_output': is_output, 'used': used}
            is_table = isinstance(init, KernelInit) and init.in_axis == ()
            wide = keep_float32 and not is_table
            dtype = jnp.float32 if wide else current_context().param_dtype
            return new_parameter(init, own, shape, axes, dtype, **traits)

        scale: Any = frame.module.get_variable(PARAMS, f'{name}{SCALE}', None)
        if scale is None or frame.module.is_initializing():
            value: Any = frame.module.param(name, boxed)
        else:
            value = dequantized(frame.module.get_variable(PARAMS, name), scale)
        kernel = jnp.asarray(value, jnp.float32 if keep_float32 else self.dtype)
        return kernel if is_output else self._adapted(name, kernel, axes, init)

    def _adapted(self, name: str, kernel: jax.Array, axes: Any, init: Any) -> jax.Array:
        frame, context = current_frame(), current_context()
        path = (*frame.module.path, name)
        if context.precision is not None:
            frame.rounded += context.precision.rounded(
                path, kernel, init, self.state, context.rounded
            )
        if (lora := context.adapters) is None:
            return kernel
        key = fold(frame.keys['dropout'], f'{name}_lora') if self.training else None
        adapter = lora.adapter(path, kernel, axes, init, self.param, key)
        if adapter is None:
            return kernel
        frame.adapters.append(adapter)
        return adapter.kernel

    def product(
        self,
        equation: str,
        x: jax.Array,
        kernel: jax.Array,
        dtype: Any = None,
        in_loop: bool = False,
    ) -> jax.Array:
        """The product of an activation and a kernel, by an equation of einsum.

        Every matrix product with a parameter passes here, convolutions excepted.

        Args:
            equation: such as '...d,df->...f'.
            kernel: from `param`.
            dtype: of the sums and of the result, which `task.precision` then does not round; None
                for the dtype of the arguments.
            in_loop: it is inside a loop of the layer, where `task.precision` does not round it.
        """
        if not has_one_size_each(equation, x.shape, kernel.shape):
            raise UserError(
                f'{self.sym_path} ({type(self).__name__}): {list(x.shape)} does not fit its kernel '
                f"{list(kernel.shape)} in '{equation}'"
            )
        frame = _frames.get()
        rounded = frame.rounded if frame and not in_loop else []
        multiplied = functools.partial(multiply, equation, x, dtype=dtype, rounded=rounded)
        for adapter in frame.adapters if frame else ():
            if adapter.kernel is kernel:
                y = adapter.product(equation, x, dtype, multiplied)
                if y is not None:
                    return y
        return multiplied(kernel)

    def state(
        self, name: str, shape: tuple[int, ...], init: Draw = nn.initializers.zeros
    ) -> jax.Array:
        """A float32 value of this layer without a gradient, such as a running mean.

        It is replicated on all devices, and saved with the parameters.
        """

        def boxed() -> ParameterBox:
            # No state is random, so no stream is split for it.
            value = init(jax.random.key(0), shape, jnp.float32)
            return ParameterBox(value, names=(None,) * len(shape), decay=False)

        variable: Any = current_frame().module.variable(NON_TRAINABLE, name, boxed)
        return jnp.asarray(variable.value)

    def set_state(self, name: str, value: jax.Array) -> None:
        """Sets a `state` for the next step. Only training calls this."""
        current_frame().module.put_variable(NON_TRAINABLE, name, value)

    @property
    def cache_length(self) -> int | None:
        """Capacity of decoding caches, in positions; None outside of decoding."""
        return current_context().cache_length

    def cached(self, name: str, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """A cached array of earlier positions, zeros at first. Its first axis is the examples."""
        frame = current_frame()
        stored = frame.name_in_cache(name)
        variable: Any = frame.module.variable(CACHE, stored, jnp.zeros, shape, dtype)
        return jnp.asarray(variable.value)

    def set_cached(self, name: str, value: jax.Array) -> None:
        """Caches an array for later positions."""
        frame = current_frame()
        frame.module.put_variable(CACHE, frame.name_in_cache(name), value)

    def create_once(self, name: str, make: Callable[[], jax.Array]) -> jax.Array:
        """Creates an array that does not depend on the position; decoding caches it."""
        if self.cache_length is None:
            return make()
        frame = current_frame()
        variable: Any = frame.module.variable(CACHE, frame.name_in_cache(name), make)
        return jnp.asarray(variable.value)

    def add_aux_loss(self, name: str, loss: jax.Array) -> None:
        """Adds a scalar to the loss of training steps, as load balancing does."""
        zero = functools.partial(jnp.zeros, ())
        current_frame().module.sow(AUX_LOSS, name, loss, jnp.add, zero)

    def add_summary(self, name: str, value: jax.Array) -> None:
        """Logs a scalar as `<layer path>/<name>` with the training metrics."""
        zero = functools.partial(jnp.zeros, ())
        current_frame().module.sow(SUMMARIES, name, value, lambda _, new: new, zero)

    def rng(self, stream: str) -> jax.Array:
        """A new random key from a stream such as 'dropout'."""
        return current_frame().draw(stream)

    def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
        """Shards an activation over the mesh by the logical axes of its dimensions.

        Positions (`length`) that do not divide evenly are replicated.
        """
        mesh = current_context().mesh
        if mesh is None:
            return x
        what = f'an activation of {type(self).__name__} at {str(self.sym_path)!r}'
        at = mesh.activation_sharding(axes, x.shape, what)
        return x if mesh.is_abstract else jax.lax.with_sharding_constraint(x, at)


def run_layer(
    module: nn.Module, layer: Layer, method: str, args: Any, kwargs: Any, keys: Keys, call: int = 0
) -> Any:
    """Runs a method of `layer` with its parameters in the scope of `module`."""
    frame = Frame(module, layer, keys, _frames.get(), call)
    token = _frames.set(frame)
    try:
        result = getattr(layer, method)(*args, **kwargs)
        require_multiplied(frame.adapters)
        return result
    finally:
        _frames.reset(token)


class LayerModule(nn.Module):
    """The flax module that runs any layer."""

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
