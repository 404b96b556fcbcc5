"""Products of two arrays by an equation of einsum, for dtypes that einsum would convert."""

import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Terms(NamedTuple):
    """Letters of the axes of both factors and of the result."""

    left: str
    right: str
    result: str

    @property
    def of_left_gradient(self) -> 'Terms':
        """The product that is the gradient of the left factor: (result's gradient, right)."""
        return Terms(self.result, self.right, self.left)

    @property
    def of_right_gradient(self) -> 'Terms':
        """The product that is the gradient of the right factor: (left, result's gradient)."""
        return Terms(self.left, self.result, self.right)

    @property
    def is_plain(self) -> bool:
        """True if each letter stands in two terms at least, so the gradients are products, too."""
        every = [*self.left, *self.right, *self.result]
        distinct = all(len({*term}) == len(term) for term in self)
        return distinct and all(every.count(letter) > 1 for letter in every)

    def summed(self, term: str) -> tuple[int, ...]:
        """The axes of a factor over which the product sums."""
        return tuple(axis for axis, letter in enumerate(term) if letter not in self.result)


def terms_of(equation: str, left: int) -> Terms:
    """The terms of an equation, with letters in place of an ellipsis before the left factor.

    Args:
        equation: such as '...d,df->...f'.
        left: number of axes of the left factor.

    Example:
        >>> terms_of('...d,df->...f', 3)
        Terms(left='ABd', right='df', result='ABf')
    """
    given, result = equation.replace(' ', '').split('->')
    of_left, of_right = given.split(',')
    others = string.ascii_uppercase[: left - len(of_left.replace('...', ''))]
    return Terms(*(term.replace('...', others) for term in (of_left, of_right, result)))


def product_of(
    terms: Terms, left: jax.Array, right: jax.Array, dtype: Any, precision: Any = None
) -> jax.Array:
    """The product, with sums and a result of `dtype`; the factors may have different dtypes.

    Example:
        >>> x, kernel = jnp.ones((2, 3), jnp.int8), jnp.ones((4, 3), jnp.int8)
        >>> product_of(terms_of('bd,fd->fb', 2), x, kernel, jnp.int32).tolist()
        [[3, 3], [3, 3], [3, 3], [3, 3]]
    """
    of_left, of_right, result = terms
    shared = [letter for letter in of_left if letter in of_right]
    summed = [letter for letter in shared if letter not in result]
    batch = [letter for letter in shared if letter in result]
    pairs = (_axes(of_left, summed), _axes(of_right, summed))
    batches = (_axes(of_left, batch), _axes(of_right, batch))
    y = jax.lax.dot_general(
        left, right, (pairs, batches), precision=precision, preferred_element_type=dtype
    )
    free = [letter for letter in of_left + of_right if letter not in shared]
    return jnp.transpose(y, _axes([*batch, *free], result))


def placed(scale: jax.Array, term: str, result: str) -> jax.Array:
    """Scales of a factor, with size 1 where it is summed, as factors of the result.

    Example:
        >>> placed(jnp.ones((3, 1, 4)), 'bdf', 'fcb').shape
        (4, 1, 3)
    """
    kept = [letter for letter in term if letter in result]
    removed = tuple(axis for axis, letter in enumerate(term) if letter not in result)
    ordered = [letter for letter in result if letter in kept]
    scale = jnp.transpose(jnp.squeeze(scale, removed), _axes(kept, ordered))
    return jnp.expand_dims(scale, [at for at, letter in enumerate(result) if letter not in kept])


def _axes(term: Sequence[str], letters: Sequence[str]) -> tuple[int, ...]:
    return tuple(term.index(letter) for letter in letters)
