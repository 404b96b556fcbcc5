import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.sharding import PartitionSpec

from trainer.mesh import Arrangement
from trainer.metrics import weighted

Values = dict[str, jax.Array]
TokenLoss = Callable[..., tuple[jax.Array, Values]]
"""(inputs [1, n, D], *others [1, n]) -> (loss of each token [1, n], its other values by name)."""


def summed_ahead(
    terms: TokenLoss,
    x_BTD: jax.Array,
    weights_BT: jax.Array,
    *others_BT: jax.Array,
    chunks: int,
    mesh: Arrangement | None = None,
) -> tuple[jax.Array, Values]:
    """The weighted sum of a loss of tokens, chunk after chunk.

    Where the sum is differentiated, each chunk computes its gradients at once, so that no array of
    a whole batch is kept and nothing is computed again (Hsu et al. 2024, Liger Kernel). It has one
    cotangent, by which they are multiplied. Arrays that `terms` reads from outside have gradients,
    too, unless they are frozen.

    Each device divides its own tokens into chunks. The gradients of arrays from outside are summed
    over the devices once, not in each chunk.

    Args:
        terms: the loss of tokens. It is traced on the tokens of one chunk, outside of any mesh.
        weights_BT: of the losses.
        others_BT: further arrays of tokens, such as labels, which have no gradient.
        chunks: parts of the tokens of a device.
        mesh: divides the tokens; None for one device.

    Returns:
        The sum, float32; the other values of all tokens [B, T], which have no gradient.

    Example:
        >>> w, x = jnp.array([[2.0]]), jnp.array([[[1.0], [3.0]]])
        >>> def loss(w, x):
        ...     terms = lambda x, labels: (jnp.square((x @ w)[..., 0] - labels), {})
        ...     return summed_ahead(terms, x, jnp.ones((1, 2)), jnp.zeros((1, 2)), chunks=2)[0]
        >>> float(loss(w, x)), jax.grad(loss)(w, x).tolist()
        (40.0, [[40.0]])
    """
    tokens = _Tokens.of(weights_BT.shape, chunks, mesh)
    shapes = [
        jax.ShapeDtypeStruct((1, tokens.size, *each.shape[2:]), each.dtype)
        for each in (x_BTD, *others_BT)
    ]
    pure, outside = jax.closure_convert(terms, *shapes)

    @jax.custom_vjp
    def total(*given: Any) -> tuple[jax.Array, Values]:
        summed, values, _ = _over_chunks(pure, tokens, (False,) * (1 + len(outside)), *given)
        return summed, values

    def forward(*given: Any) -> Any:
        x, read, *_ = given
        is_trained = tuple(each.perturbed for each in (x, *read))
        values = jax.tree.map(lambda each: each.value, given, is_leaf=_is_primal)
        summed, of_tokens, gradients = _over_chunks(pure, tokens, is_trained, *values)
        return (summed, of_tokens), gradients

    def backward(gradients: Any, cotangents: Any) -> Any:
        factor, _ = cotangents
        if isinstance(factor, SymbolicZero):
            factor = jnp.zeros(())
        dx, *read = jax.tree.map(lambda each: (factor * each).astype(each.dtype), gradients)
        return dx, read, None, (None,) * len(others_BT)

    total.defvjp(forward, backward, symbolic_zeros=True)
    summed, values = total(x_BTD, outside, weights_BT, others_BT)
    return summed, jax.lax.stop_gradient(values)


class _Tokens(NamedTuple):
    """The arrangement of tokens [B, T] as chunks of the tokens of each device.

    Attributes:
        shape: B and T.
        parts: of B and of T, one on each device.
        chunks: parts of the tokens of a device.
        size: number of tokens in a chunk.
        mesh: divides the tokens; None if one device has all.
        axes: its axes that divide B, and those that divide T.
    """

    shape: tuple[int, ...]
    parts: tuple[int, ...]
    chunks: int
    size: int
    mesh: Arrangement | None
    axes: tuple[Any, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], chunks: int, mesh: Arrangement | None) -> '_Tokens':
        parts = [1, 1]
        axes: list[tuple[str, ...]] = [(), ()]
        if mesh is not None and not mesh.is_abstract:
            for at, logical in enumerate(('batch', 'length')):
                count, names = mesh.parts(logical)
                if shape[at] % count == 0:  # Other positions are whole on every device.
                    parts[at], axes[at] = count, names
        count = math.prod(shape) // math.prod(parts)
        size = math.ceil(count / chunks)
        divided = mesh if math.prod(parts) > 1 else None
        return cls(shape, tuple(parts), math.ceil(count / size), size, divided, tuple(axes))

    def divided(self, each: jax.Array) -> jax.Array:
        """[B, T, …] -> [chunks, parts of B, parts of T, 1, size, …]; the last ones are padding."""
        (rows, columns), (B, T), more = self.parts, self.shape, each.shape[2:]
        cut = each.reshape(rows, B // rows, columns, T // columns, *more).swapaxes(1, 2)
        flat = cut.reshape(rows, columns, -1, *more)
        if missing := self.chunks * self.size - flat.shape[2]:
            flat = jnp.pad(flat, [(0, 0), (0, 0), (0, missing), *[(0, 0)] * len(more)])
        of_chunks = flat.reshape(rows, columns, self.chunks, 1, self.size, *more)
        return self.placed(jnp.moveaxis(of_chunks, 2, 0), 1)

    def joined(self, each: jax.Array) -> jax.Array:
        """The inverse of `divided`."""
        (rows, columns), (B, T), more = self.parts, self.shape, each.shape[5:]
        flat = jnp.moveaxis(each, 0, 2).reshape(rows, columns, -1, *more)
        cut = flat[:, :, : B * T // (rows * columns)].reshape(
            rows, columns, B // rows, T // columns, *more
        )
        return cut.swapaxes(1, 2).reshape(B, T, *more)

    def gathered(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """Gathers arrays over the axes that divide tokens, once for all chunks.

        Other axes, such as `tensor`, still divide them.
        """
        if self.mesh is None or not arrays:
            return arrays
        whole, names = PartitionSpec(), {name for names in self.axes for name in names}
        found: list[jax.Array] = jax.shard_map(
            lambda arrays: arrays,
            mesh=self.mesh.mesh,
            in_specs=(whole,),
            out_specs=whole,
            axis_names=names,
            check_vma=False,
        )(arrays)
        return found

    def placed(self, each: jax.Array, at: int = 0) -> jax.Array:
        """Puts each part on its devices; the axes of the parts begin `at`."""
        if self.mesh is None:
            return each
        free = [PartitionSpec.UNCONSTRAINED] * (each.ndim - at - 2)
        spec = PartitionSpec(*[None] * at, *(names or None for names in self.axes), *free)
        return jax.lax.with_sharding_constraint(each, self.mesh.placed(spec))


def _over_chunks(
    pure: Callable[..., Any],
    tokens: _Tokens,
    is_trained: tuple[bool, ...],
    x_BTD: jax.Array,
    outside: list[jax.Array],
    weights_BT: jax.Array,
    others_BT: tuple[jax.Array, ...],
) -> tuple[jax.Array, Values, list[jax.Array | None]]:
    """The sum, the other values, and gradients of x and of the arrays from outside.

    Args:
        is_trained: True where x, or an array from outside, needs its gradient.
    """

    outside = tokens.gathered(outside)

    def loss(trained: list[jax.Array], x: jax.Array, weights: jax.Array, others: Any) -> Any:
        left = iter(trained)
        pairs = zip(is_trained, (x, *outside), strict=True)
        x, *read = (next(left) if own else each for own, each in pairs)
        losses, values = pure(x, *others, *read)
        return jnp.sum(weighted(losses, weights)), values

    def of_part(chunk: Any) -> Any:
        x, weights, others = chunk
        trained = [each for own, each in zip(is_trained, (x, *outside), strict=True) if own]
        if not trained:
            return loss([], *chunk), []
        return jax.value_and_grad(loss, has_aux=True)(trained, x, weights, others)

    def of_chunk(carry: Any, chunk: Any) -> Any:
        # Each part has gradients of its own, so the devices need not agree in a loop.
        (total, values), gradients = jax.vmap(jax.vmap(of_part))(chunk)
        dx = gradients[:1] if is_trained[0] else []
        read = [tokens.placed(each) for each in gradients[len(dx) :]]
        return jax.tree.map(jnp.add, carry, (total, read)), (values, dx)

    zeros = [
        tokens.placed(
            jnp.zeros((*tokens.parts, *each.shape), jnp.promote_types(each.dtype, jnp.float32))
        )
        for own, each in zip(is_trained[1:], outside, strict=True)
        if own
    ]
    carry = tokens.placed(jnp.zeros(tokens.parts)), zeros
    divided = jax.tree.map(tokens.divided, (x_BTD, weights_BT, others_BT))
    (total, sums), (values, dx) = jax.lax.scan(of_chunk, carry, divided)
    left = iter(sums)
    gradients = [tokens.joined(dx[0]) if dx else None]
    for own, each in zip(is_trained[1:], outside, strict=True):
        gradients.append(jnp.sum(next(left), (0, 1)).astype(each.dtype) if own else None)
    return jnp.sum(total), jax.tree.map(tokens.joined, values), gradients


def _is_primal(value: Any) -> bool:
    return isinstance(value, CustomVJPPrimal)
