"""What all ways to decode have in common."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.layers.positions import Positions
from trainer.layers.stack import cache_axis
from trainer.symbolic.component import Component, require_positive

Cache = Any
"""What a model keeps of the positions so far; None before the first."""

Extend = Callable[[Cache, jax.Array, Positions], tuple[Cache, jax.Array]]
"""(cache, ids [B, T], their positions) -> (cache, logits [B, T, V] of the tokens after them)."""


class Prompts(NamedTuple):
    """What is to be continued.

    Attributes:
        ids_BP: the tokens, from the first position on; what fills up a row counts for nothing.
        lengths_B: how many of them are there, at least one in each row.
    """

    ids_BP: jax.Array
    lengths_B: jax.Array


class Decoded(NamedTuple):
    """What was written, the best first.

    Attributes:
        ids_BNT: the tokens after the prompt; 0 behind the end.
        lengths_BN: how many they are, with the one that ends them.
        log_probs_BN: the logarithm of their probability under the model, in nats, float32.
        scores_BN: what they are ordered by.
    """

    ids_BNT: jax.Array
    lengths_BN: jax.Array
    log_probs_BN: jax.Array
    scores_BN: jax.Array


class DecodeOutput(NamedTuple):
    """What a decode step makes of a batch, on all hosts.

    Attributes:
        batch: all of it, with the shares of all hosts.
        prompt_lengths_B: how many tokens of each row were continued.
        decoded: what was written.
    """

    batch: dict[str, jax.Array]
    prompt_lengths_B: jax.Array
    decoded: Decoded


class Decoder(Component):
    """A way to decode.

    Attributes:
        max_decode_steps: so many tokens are written at most.
        min_decode_steps: so many at least, whatever would end before.
        eos_ids: any of these tokens ends a text; none of them is padding, which is 0.
        prompt_length: so many tokens of each row are the prompt, where batches do not say; see
            `trainer.tasks.tokens.TokenTask`.
    """

    max_decode_steps: int
    min_decode_steps: int = 0
    eos_ids: list[int] = []
    prompt_length: int | None = None

    def check(self) -> None:
        require_positive(self, 'max_decode_steps', 'prompt_length')
        if not 0 <= self.min_decode_steps <= self.max_decode_steps:
            raise ValueError(
                f'min_decode_steps must lie in [0, {self.max_decode_steps}]: '
                f'{self.min_decode_steps}'
            )
        if any(each < 1 for each in self.eos_ids):
            raise ValueError(f'eos_ids must be above 0, which is padding: {list(self.eos_ids)}')

    @property
    def num_results(self) -> int:
        """How many texts there are for each prompt."""
        return 1

    def decode(self, extend: Extend, prompts: Prompts, key: jax.Array) -> Decoded:
        """Continues prompts.

        Args:
            extend: the model; its cache holds the prompt and `max_decode_steps` more tokens.
            prompts: what to continue.
            key: random key.
        """
        raise NotImplementedError(type(self).__name__)

    def is_eos(self, ids: jax.Array) -> jax.Array:
        """Whether tokens end a text."""
        return jnp.isin(ids, jnp.array(list(self.eos_ids), ids.dtype))

    def allowed(self, logits: jax.Array, step: jax.Array) -> jax.Array:
        """Logits [..., V] of the token number `step`, from 0: none ends before its time."""
        if not self.eos_ids or not self.min_decode_steps:
            return logits
        is_end_V = self.is_eos(jnp.arange(logits.shape[-1]))
        return jnp.where(is_end_V & (step < self.min_decode_steps), -jnp.inf, logits)


def begin(extend: Extend, prompts: Prompts) -> tuple[Cache, jax.Array]:
    """Reads prompts, all tokens at once: the cache, and logits [B, V] of the first new token."""
    positions = Positions.unpacked(prompts.ids_BP.shape)
    cache, logits_BPV = extend(None, prompts.ids_BP, positions)
    last_B11 = (prompts.lengths_B - 1)[:, None, None]
    return cache, jnp.take_along_axis(logits_BPV, last_B11, axis=1)[:, 0]


def one_more(
    extend: Extend, cache: Cache, ids_B: jax.Array, index_B: jax.Array
) -> tuple[Cache, jax.Array]:
    """Adds one token a row, at `index_B`: the cache, and logits [B, V] of the next one."""
    cache, logits_B1V = extend(cache, ids_B[:, None], Positions(index_B[:, None]))
    return cache, logits_B1V[:, 0]


def picked(cache: Cache, rows: jax.Array) -> Cache:
    """The cache of some of the examples, in another order, or several times."""

    def of(path: Any, leaf: jax.Array) -> jax.Array:
        return jnp.take(leaf, rows, axis=cache_axis(path))

    return jax.tree_util.tree_map_with_path(of, cache)
