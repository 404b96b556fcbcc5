"""Precision of the products of activations and kernels: `Layer.product` multiplies by it."""

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from trainer.layers.float8_product import HISTORY, float8_product, histories, updated
from trainer.layers.initialization import KernelInit
from trainer.layers.int8_product import int8_product
from trainer.layers.periods import names
from trainer.layers.products import Terms, terms_of
from trainer.layers.targets import check_targets, fits, require_matches
from trainer.symbolic.component import Component, require_positive
from trainer.symbolic.errors import UserError

_FIELD = 'task.precision'
State = Callable[[str, tuple[int, ...]], jax.Array]
"""`Layer.state` of the layer with a kernel."""


class Precision(Component):
    """Rounds both factors of products to 8 bits; their results are in `task.fprop_dtype`.

    It applies to the products of layers with their kernels, in training, evaluation and decoding.
    Products that make the outputs of the model, scores of a router or float32 logits stay as they
    are. So do tables, convolutions, ragged products of experts, steps of a recurrence, low-rank
    adapters and modules of flax.

    Attributes:
        targets: regular expressions for whole names of kernels, layer by layer:
            `stack.layers_3.attention.query`.
    """

    targets: list[str] = ['.*']

    def check(self) -> None:
        check_targets(self, 'round')

    def product(
        self, terms: Terms, x: jax.Array, kernel: jax.Array, history: Callable[[], jax.Array]
    ) -> jax.Array:
        """The product of an activation and a kernel, in the dtype of x.

        Args:
            history: makes the state `Float8.history` at the first call.
        """
        raise NotImplementedError(type(self).__name__)

    def require_device(self, device: jax.Device) -> None:
        """Raises UserError with the reason if a device cannot multiply so; CPUs emulate it."""
        least = self._least_capability()
        capability = getattr(device, 'compute_capability', None)
        if device.platform != 'gpu':
            return
        where = f'{_FIELD}={type(self).__name__}()'
        if not re.fullmatch(r'\d+\.\d+', str(capability)):
            raise UserError(
                f'{where} needs a GPU of NVIDIA, and this one is a {device.device_kind}: set it to '
                'None'
            )
        if tuple(map(int, str(capability).split('.'))) < least:
            raise UserError(
                f'{where} needs a GPU of compute capability {least[0]}.{least[1]}, and '
                f'{device.device_kind} has {capability}: set it to None'
            )

    def _least_capability(self) -> tuple[int, int]:
        raise NotImplementedError(type(self).__name__)

    def rounded(
        self,
        path: Sequence[str],
        kernel: jax.Array,
        init: Any,
        state: State,
        found: set[str] | None,
    ) -> 'list[RoundedKernel]':
        """A kernel whose products are rounded; [] if they are not.

        Args:
            path: of the kernel.
            init: its initializer, which knows its inputs and outputs.
            state: `Layer.state` of its layer.
            found: gets the names of the kernel, if there is such a product; None for none.
        """
        is_kernel = isinstance(init, KernelInit) and init.in_axes(kernel.ndim)
        if not is_kernel or not init.out_axes(kernel.ndim):
            return []
        if not fits(self.targets, path, _FIELD):
            return []
        return [RoundedKernel(tuple(path), kernel, self, state, found)]

    def require_targets(self, found: Collection[str], params: Any) -> None:
        """Raises UserError unless each target matches a kernel whose products are rounded.

        Args:
            found: names of these kernels.
            params: the parameters of the model.
        """
        if not found and '.*' in self.targets:
            raise UserError(
                f'{_FIELD}: the model has no product of an activation and a kernel inside of it '
                'that could be rounded: set it to None. Convolutions and modules of flax stay as '
                'they are'
            )
        every = [name for path in flatten_dict(params) for name in names(path)]
        require_matches(self.targets, sorted(found), every, _FIELD)


class Int8(Precision):
    """Products of 8-bit integers. Jacob et al. 2018; Abdolrashidi et al. 2021.

    Each row of activations and each output of a kernel has a scale: its largest number by 127.
    Gradients are products of the rounded factors in `task.fprop_dtype`, and ignore the rounding.

    Example:
        >>> Int8(targets=[r'.*\\.(gate|up|down)']).targets
        ['.*\\\\.(gate|up|down)']
    """

    def product(
        self, terms: Terms, x: jax.Array, kernel: jax.Array, history: Callable[[], jax.Array]
    ) -> jax.Array:
        y: jax.Array = int8_product(terms, x.dtype, x, kernel)
        return y

    def _least_capability(self) -> tuple[int, int]:
        return 7, 5


class Float8(Precision):
    """Products of 8-bit floating-point numbers, with delayed scaling. Micikevicius et al. 2022.

    Activations and kernels are rounded to e4m3, gradients of results to e5m2. The largest number
    of the last passes scales each of them. These are the states `<kernel>_float8_amax` of the
    layer: a pass of training overwrites them, and a skipped step leaves them.

    Attributes:
        passes: number of passes in the history; 1 takes the scale from the last one alone. It is
            structure.
    """

    passes: int = 16

    def check(self) -> None:
        super().check()
        require_positive(self, 'passes')

    def product(
        self, terms: Terms, x: jax.Array, kernel: jax.Array, history: Callable[[], jax.Array]
    ) -> jax.Array:
        y: jax.Array = float8_product(terms, x.dtype, x, kernel, history())
        return y

    def _least_capability(self) -> tuple[int, int]:
        return 8, 9


@dataclasses.dataclass(eq=False)
class RoundedKernel:
    """A kernel whose products are rounded, in one call of a layer.

    Attributes:
        path: of the kernel.
        state: `Layer.state` of its layer.
        found: gets the names of the kernel at a product; None for none.
    """

    path: tuple[str, ...]
    kernel: jax.Array
    precision: Precision
    state: State
    found: set[str] | None
    _history: jax.Array | None = None

    def product(self, equation: str, x: jax.Array) -> jax.Array | None:
        """The rounded product; None if it has sums that are no product."""
        terms = terms_of(equation, x.ndim)
        if not terms.is_plain:
            return None
        if self.found is not None:
            self.found.update(names(self.path))
        return self.precision.product(terms, x, self.kernel, self._amax)

    def _amax(self) -> jax.Array:
        if self._history is None:
            assert isinstance(self.precision, Float8)
            name, shape = f'{self.path[-1]}{HISTORY}', (3, self.precision.passes)
            self._history = self.state(name, shape)
        return self._history


def multiply(
    equation: str,
    x: jax.Array,
    kernel: jax.Array,
    dtype: Any = None,
    rounded: Sequence[RoundedKernel] = (),
) -> jax.Array:
    """The product by an equation of einsum, rounded if it is of a rounded kernel.

    Args:
        dtype: of the sums and of the result, which then are not rounded; None for that of the
            arguments.
    """
    for each in rounded if dtype is None else ():
        if each.kernel is kernel:
            y = each.product(equation, x)
            if y is not None:
                return y
    return jnp.einsum(equation, x, kernel, preferred_element_type=dtype)


def overwritten(precision: Precision | None, states: Any) -> Any:
    """The part of the states of layers that a pass overwrites by its gradients; {} without any."""
    return histories(states) if isinstance(precision, Float8) else {}


def after_pass(states: Any, gradients: Any) -> Any:
    """States after a pass of training, by the gradients of those that it overwrites.

    Args:
        states: of layers.
        gradients: of `overwritten`; {} changes nothing.
    """
    return {
        name: state
        if name not in gradients
        else after_pass(state, gradients[name])
        if isinstance(state, dict)
        else updated(state, gradients[name])
        for name, state in states.items()
    }
