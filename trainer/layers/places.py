"""Places of experts with a capacity, in each row of a batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Places(NamedTuple):
    """The places that the choices of tokens have.

    Attributes:
        at_BM: place of each choice among all of a row; the number of these where it has none.
        num_kept: number of choices that have a place.
        num_chosen: number of choices of tokens.
        stored: places of each expert in memory.
        num_experts: number of experts.
    """

    at_BM: jax.Array
    num_kept: jax.Array
    num_chosen: jax.Array
    stored: int
    num_experts: int

    @classmethod
    def of(
        cls,
        chosen_BME: jax.Array,
        experts_BM: jax.Array,
        places: int,
        stored: int,
        before_BE: jax.Array | None,
    ) -> 'Places':
        """Gives the first choices of an expert its places.

        Args:
            chosen_BME: 1 for the expert of a choice of a token, else 0.
            experts_BM: numbers of the same experts, earlier positions first.
            places: of each expert.
            stored: at least as many, in memory.
            before_BE: choices of earlier positions that are elsewhere; None for none.
        """
        counted_BME = jnp.cumsum(chosen_BME, axis=1)
        if before_BE is not None:
            counted_BME += before_BE[:, None]
        place_BM = jnp.sum(counted_BME * chosen_BME, axis=2) - 1
        is_kept_BM = (place_BM >= 0) & (place_BM < places)
        num_experts = chosen_BME.shape[2]
        at_BM = jnp.where(is_kept_BM, experts_BM * stored + place_BM, num_experts * stored)
        return cls(at_BM, jnp.sum(is_kept_BM), jnp.sum(chosen_BME), stored, num_experts)

    def filled(self, x_BTD: jax.Array) -> jax.Array:
        """The tokens in their places [B, E, C, D], zeros where there is none."""
        examples, length, dims = x_BTD.shape
        count = self.num_experts * self.stored
        rows_B1 = jnp.arange(examples)[:, None]
        token_BM = jnp.broadcast_to(jnp.arange(self.at_BM.shape[1]), self.at_BM.shape)
        token_BM = token_BM // (self.at_BM.shape[1] // length)
        source_BP = jnp.full((examples, count + 1), length).at[rows_B1, self.at_BM].set(token_BM)
        # Places without a token read the row of zeros at the end.
        padded_BTD = jnp.pad(x_BTD, ((0, 0), (0, 1), (0, 0)))
        given_BPD = padded_BTD[rows_B1, source_BP[:, :count]]
        return given_BPD.reshape(examples, self.num_experts, self.stored, dims)


def results_at(at_BM: jax.Array, y_BECD: jax.Array) -> jax.Array:
    """The results of choices [B, M, D], zero where they have no place."""
    examples, experts, places, dims = y_BECD.shape
    rows_B1 = jnp.arange(examples)[:, None]
    y_BPD = y_BECD.reshape(examples, experts * places, dims)
    return jnp.pad(y_BPD, ((0, 0), (0, 1), (0, 0)))[rows_B1, at_BM]
