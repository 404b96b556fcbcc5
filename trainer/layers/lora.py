"""Low-rank adapters: small trained matrices beside frozen kernels.

`Layer.param` returns the adapted kernel, so every layer is right without knowing of adapters.
`Layer.product` recognizes such a kernel, and multiplies by the two small matrices instead. Then no
gradient of the size of a kernel exists, and dropout applies to the adapter's input. XLA removes an
adapted kernel that nothing reads.
"""

import dataclasses
import functools
import math
import re
import string
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import initializers
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.layers.declared_flops import declared_flops
from trainer.layers.initialization import Filled, KernelInit
from trainer.layers.periods import names
from trainer.layers.quantized import SCALE, Format, scale_shape
from trainer.layers.targets import check_targets, fits, require_matches
from trainer.symbolic.component import (
    Component,
    OptionalNumber,
    require_above_zero,
    require_fraction,
    require_positive,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, over, span_at

_FIELD = 'task.adapters'
_SUFFIX = re.compile(r'_lora_(a|b|magnitude)$')
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Axes of the batch, the inputs and the outputs of a kernel, counted from the end."""

_ALPHA = 'twice the rank: Biderman et al. 2024; the rank: Hu et al. 2021'
_OF_PEFT = 1 / 3
"""Variance of new values of A, times the inputs, as in `peft`."""


class LoRA(Component):
    """Trains low-rank updates of kernels alone, and freezes all else. Hu et al. 2021.

    A kernel W computes as W + scale * A B, where A has `rank` columns and B begins at zero. A
    frozen parameter has no gradient, no optimizer state and no average. The parameters are
    `<kernel>_lora_a` and `<kernel>_lora_b`, in float32. Kernels that make the outputs of the model
    or the scores of a router have no adapter; neither have tables, vectors and modules of flax.

    Attributes:
        rank: number of columns of A. It is structure: another rank compiles another program.
        alpha: the scale is alpha / rank; None for twice the rank.
        dropout: share of the inputs of an adapter that is zeroed in training; None for none.
        targets: regular expressions for whole names of kernels, layer by layer:
            `stack.layers_3.attention.query`.
        rslora: the scale is alpha / sqrt(rank) (Kalajdzievski 2023).
        dora: trains the norm of each output of a kernel, too, as `<kernel>_lora_magnitude`, which
            is the difference from the norm in W (Liu et al. 2024).
        quantized: stores the frozen kernels that have adapters as 'int8', or as 'nf4' in 4 bits
            (Dettmers et al. 2023), in blocks of 64 inputs with a scale each; None stores them as
            `task.param_dtype`.

    Example:
        >>> LoRA(rank=8).scale(), LoRA(rank=16, alpha=16.0, rslora=True).scale()
        (2.0, 4.0)
    """

    rank: int = 8
    alpha: OptionalNumber = None
    dropout: OptionalNumber = None
    targets: list[str] = ['.*']
    rslora: bool = False
    dora: bool = False
    quantized: Format | None = None

    usual = {
        'rank': UsualValue(8, 4, 64, 'Hu et al. 2021; 64: QLoRA (Dettmers et al. 2023)'),
        'dropout': UsualValue(0.05, 0.0, 0.1, 'QLoRA (Dettmers et al. 2023), peft'),
    }

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        alpha = over(
            span_of_rank(experiment), lambda rank: UsualValue(2 * rank, rank, 2 * rank, _ALPHA)
        )
        return super().usual_values(experiment) | ({'alpha': alpha} if alpha else {})

    def check(self) -> None:
        require_positive(self, 'rank')
        require_above_zero(self, 'alpha')
        require_fraction(self, 'dropout')
        check_targets(self, 'adapt')

    @property
    def numerator(self) -> Any:
        """Alpha, also where it has its default."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    def scale(self) -> Any:
        """The factor of the product of A and B."""
        return self.numerator / (math.sqrt(self.rank) if self.rslora else self.rank)

    def check_params(self, params: Any) -> None:
        """Raises UserError unless each target matches a kernel with an adapter."""
        known = [
            name
            for path in flatten_dict(params)
            if path[-1].endswith('_lora_a')
            for name in names((*path[:-1], path[-1].removesuffix('_lora_a')))
        ]
        every = [name for path in flatten_dict(params) for name in names(path)]
        require_matches(self.targets, known, every, _FIELD)

    def adapter(
        self,
        path: Sequence[str],
        kernel: jax.Array,
        axes: tuple[str | None, ...],
        init: Any,
        param: Callable[..., jax.Array],
        key: jax.Array | None,
    ) -> 'Adapter | None':
        """Makes the adapter of a kernel; None if it has none.

        Args:
            path: of the kernel.
            axes: its logical axes.
            init: its initializer, which knows its inputs and outputs.
            param: `Layer.param` of its layer.
            key: for dropout; None outside of training.
        """
        if belongs_to_adapter(path[-1]) or not isinstance(init, KernelInit):
            return None
        count = kernel.ndim
        inputs, outputs = init.in_axes(count), init.out_axes(count)
        if not inputs or not outputs or not fits(self.targets, path, _FIELD):
            return None
        batch = tuple(axis for axis in range(-count, 0) if axis not in {*inputs, *outputs})
        sizes = [math.prod(kernel.shape[axis] for axis in each) for each in (inputs, outputs)]
        if self.rank > min(sizes):
            raise UserError(
                f'{_FIELD}.rank: {self.rank} is above the width of '
                f'{names(path)[0]}, which is {min(sizes)}: lower it, or leave the kernel '
                'out of targets'
            )

        def drawn(suffix: str, of: tuple[int, ...], at: int, init: Any) -> jax.Array:
            shape, logical = [kernel.shape[i] for i in of], [axes[i] for i in of]
            shape.insert(at, self.rank)
            logical.insert(at, None)
            name = f'{path[-1]}_lora_{suffix}'
            return param(name, tuple(shape), tuple(logical), init, keep_float32=True)

        a = drawn('a', (*batch, *inputs), count, _init(batch, inputs, 1, None))
        b = drawn('b', (*batch, *outputs), len(batch), _init(batch, 1, outputs, Filled(0.0)))
        magnitude = None
        if self.dora:
            of = sorted((*batch, *outputs))
            magnitude = param(
                f'{path[-1]}_lora_magnitude',
                tuple(kernel.shape[axis] for axis in of),
                tuple(axes[axis] for axis in of),
                initializers.zeros,
                decay=False,
                keep_float32=True,
            )
        if self.quantized is not None:
            of_scale = scale_shape(kernel.shape, inputs[-1])
            divided = list(axes)
            divided[inputs[-1]] = None
            more: dict[str, Any] = {'decay': False, 'keep_float32': True}
            param(path[-1] + SCALE, of_scale, tuple(divided), initializers.ones, **more)
        rate = None if key is None else self.dropout
        each = (batch, inputs, outputs)
        name = names(path)[0]
        return Adapter(name, kernel, a, b, magnitude, self.scale(), each, rate, key)


def _init(
    batch: tuple[int, ...], inputs: int | tuple[int, ...], outputs: int | tuple[int, ...], init: Any
) -> KernelInit:
    """The initializer of A or B, whose axes are those of a batch, then inputs, then outputs."""
    sizes = [each if isinstance(each, int) else len(each) for each in (inputs, outputs)]
    begin = len(batch)
    middle = begin + sizes[0]
    return KernelInit(
        init,
        tuple(range(begin, middle)),
        tuple(range(middle, middle + sizes[1])),
        tuple(range(begin)),
        gain=_OF_PEFT,
    )


@dataclasses.dataclass(eq=False)
class Adapter:
    """A kernel with its adapter, in one call of a layer.

    Attributes:
        name: of the kernel.
        base: the frozen kernel.
        a, b: [batch…, inputs…, rank] and [batch…, rank, outputs…].
        magnitude: differences of the norms of outputs, in the order of the kernel; None without.
        axes: of the batch, the inputs and the outputs of the kernel, counted from the end.
        rate: of dropout; None for none.
        is_multiplied: a product has used it.
    """

    name: str
    base: jax.Array
    a: jax.Array
    b: jax.Array
    magnitude: jax.Array | None
    scale: Any
    axes: Axes
    rate: Any
    key: jax.Array | None
    is_multiplied: bool = False

    def __post_init__(self) -> None:
        # Counts as free: most products do not read it, and elsewhere it costs `rank` tokens.
        parts = (self.base, self.a, self.b, self.magnitude, self.scale)
        self.kernel = declared_flops(0, functools.partial(merged, self.axes), *parts)

    def product(
        self,
        equation: str,
        x: jax.Array,
        dtype: Any,
        multiplied: Callable[[jax.Array], jax.Array],
    ) -> jax.Array | None:
        """The product with the adapted kernel, in its small factors; None if they do not fit.

        Args:
            multiplied: x by the frozen kernel.
        """
        given, result = equation.replace(' ', '').split('->')
        of_x, of_kernel = given.split(',')
        batch, inputs, outputs = (''.join(of_kernel[axis] for axis in axes) for axes in self.axes)
        if {*inputs} & {*result} or not {*batch, *outputs} <= {*result}:
            return None
        self.is_multiplied = True
        rank = next(each for each in string.ascii_lowercase if each not in equation)
        inner = ''.join(each for each in result if each not in outputs) + rank
        a, b = self.a.astype(x.dtype), self.b.astype(x.dtype)
        low = jnp.einsum(f'{of_x},{batch}{inputs}{rank}->{inner}', self._dropped(x), a)
        added = jnp.einsum(
            f'{inner},{batch}{rank}{outputs}->{result}', low, b, preferred_element_type=dtype
        )
        y = multiplied(self.base)
        y = y + (added * self.scale).astype(y.dtype)
        if self.magnitude is None:
            return y
        kept = ''.join(each for each in of_kernel if each not in inputs)
        factor = _factor(self.base, self.a, self.b, self.magnitude, self.scale, self.axes)
        return jnp.einsum(f'{result},{kept}->{result}', y, factor.astype(y.dtype))

    def _dropped(self, x: jax.Array) -> jax.Array:
        if self.rate is None:
            return x
        assert self.key is not None
        keep = 1.0 - jnp.asarray(self.rate, jnp.float32)
        mask = jax.random.bernoulli(self.key, keep, x.shape)
        return jnp.where(mask, x / keep.astype(x.dtype), 0).astype(x.dtype)


def merged(
    axes: Axes, base: jax.Array, a: jax.Array, b: jax.Array, magnitude: jax.Array | None, scale: Any
) -> jax.Array:
    """The adapted kernel; the arguments are those of `Adapter`."""
    whole = _sum(base, a, b, scale, axes)
    if magnitude is not None:
        whole *= jnp.expand_dims(_factor(base, a, b, magnitude, scale, axes), axes[1])
    return whole.astype(base.dtype)


def _sum(base: jax.Array, a: jax.Array, b: jax.Array, scale: Any, axes: Axes) -> jax.Array:
    """The kernel and the product of its factors, in float32."""
    letters = string.ascii_lowercase[: base.ndim]
    batch, inputs, outputs = (''.join(letters[axis] for axis in each) for each in axes)
    return base + scale * jnp.einsum(f'{batch}{inputs}z,{batch}z{outputs}->{letters}', a, b)


def _factor(
    base: jax.Array, a: jax.Array, b: jax.Array, magnitude: jax.Array, scale: Any, axes: Axes
) -> jax.Array:
    """The factor of each output: its trained norm by the norm of the sum."""
    # The gradient flows through the numerator alone (Liu et al. 2024, section 4.3).
    whole = jax.lax.stop_gradient(_sum(base, a, b, scale, axes))
    return (norm_of(base, axes[1]) + magnitude) / norm_of(whole, axes[1])


def require_multiplied(adapters: Sequence[Adapter]) -> None:
    """Raises UserError if dropout cannot apply: a layer uses a kernel outside of `product`."""
    for each in adapters:
        if each.rate is not None and not each.is_multiplied:
            raise UserError(
                f'{_FIELD}.dropout: {each.name} is no factor of a plain product of its layer, '
                'so its adapter has no input to drop: set dropout to None, or leave the kernel out '
                'of targets'
            )


def norm_of(kernel: jax.Array, inputs: tuple[int, ...]) -> jax.Array:
    """The norm of each output of a kernel, in float32."""
    return jnp.sqrt(jnp.sum(jnp.square(kernel.astype(jnp.float32)), axis=inputs))


def span_of_rank(experiment: Any) -> tuple[float, float] | None:
    """The smallest and the largest rank of the adapters of an experiment; None without any."""
    return span_at(experiment, f'{_FIELD}.rank')


def axes_of(kernel: jax.Array, a: jax.Array, b: jax.Array) -> Axes:
    """The axes of a kernel that begins with those of the batch, then has its inputs.

    Example:
        >>> axes_of(jnp.ones((3, 8, 2, 4)), jnp.ones((3, 8, 1)), jnp.ones((3, 1, 2, 4)))
        ((-4,), (-3,), (-2, -1))
    """
    batch = a.ndim + b.ndim - 2 - kernel.ndim
    middle = a.ndim - 1
    parts = (0, batch), (batch, middle), (middle, kernel.ndim)
    one, two, three = (tuple(range(i - kernel.ndim, j - kernel.ndim)) for i, j in parts)
    return one, two, three


def is_adapter(name: str) -> bool:
    """True for the name of a parameter of an adapter.

    Example:
        >>> is_adapter('stack.layers_0.attention.query_lora_a'), is_adapter('query')
        (True, False)
    """
    return bool(_SUFFIX.search(name))


def belongs_to_adapter(name: str) -> bool:
    """True also for the scales of a quantized kernel, which are not trained."""
    return is_adapter(name) or name.endswith(SCALE)


def adapters_of(params: Any) -> Any:
    """The adapters in a tree of parameters; the whole tree if it has none.

    Example:
        >>> adapters_of({'up': 1, 'up_lora_a': 2, 'up_lora_b': 3})
        {'up_lora_a': 2, 'up_lora_b': 3}
    """
    flat = flatten_dict(params)
    found: Collection[Any] = [path for path in flat if is_adapter(path[-1])]
    return unflatten_dict({path: flat[path] for path in found}) if found else params
