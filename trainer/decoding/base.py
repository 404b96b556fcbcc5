from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.layers.positions import Positions
from trainer.layers.stack import cache_axis
from trainer.symbolic.component import Component, require_positive
from trainer.symbolic.errors import prefixed

Cache = Any
"""Decoding cache of a model; None before the first position."""

Extend = Callable[[Cache, jax.Array, Positions], tuple[Cache, jax.Array]]
"""(cache, ids [B, T], their positions) -> (cache, logits [B, T, V] of the tokens after them)."""


class Prompts(NamedTuple):
    """Prompts to continue.

    Attributes:
        ids_BP: the tokens, from the first position on, with any padding.
        lengths_B: their number in each row, at least one.
    """

    ids_BP: jax.Array
    lengths_B: jax.Array


class Decoded(NamedTuple):
    """Generated texts of each prompt, the best first.

    Attributes:
        ids_BNT: the tokens after the prompt; 0 after `lengths_BN`.
        lengths_BN: their number, the end-of-text token included.
        log_probs_BN: their log probability under the model, in nats, float32.
        scores_BN: the scores that order them.
    """

    ids_BNT: jax.Array
    lengths_BN: jax.Array
    log_probs_BN: jax.Array
    scores_BN: jax.Array


class DecodeOutput(NamedTuple):
    """The result of a decode step, on all hosts.

    Attributes:
        batch: the global batch.
        prompt_lengths_B: number of prompt tokens in each row; 0 for padding.
    """

    batch: dict[str, jax.Array]
    prompt_lengths_B: jax.Array
    decoded: Decoded


class Decoder(Component):
    """Base of decoders.

    Attributes:
        max_decode_steps: largest number of generated tokens.
        min_decode_steps: smallest number of generated tokens.
        eos_ids: tokens that end a text; or a directory with a `tokenizer.json`, for its own.
        prompt_length: number of prompt tokens in each row, where batches do not set it; see
            `trainer.tasks.tokens.TokenTask`.
    """

    max_decode_steps: int
    min_decode_steps: int = 0
    eos_ids: list[int] | str = []
    prompt_length: int | None = None

    def check(self) -> None:
        require_positive(self, 'max_decode_steps', 'prompt_length')
        if not 0 <= self.min_decode_steps <= self.max_decode_steps:
            raise ValueError(
                f'min_decode_steps must lie in [0, {self.max_decode_steps}]: '
                f'{self.min_decode_steps}'
            )
        if not isinstance(self.eos_ids, str) and any(each < 0 for each in self.eos_ids):
            raise ValueError(f'eos_ids must be at least 0: {list(self.eos_ids)}')

    @property
    def num_results(self) -> int:
        """Number of texts for each prompt."""
        return 1

    def decode(self, extend: Extend, prompts: Prompts, key: jax.Array) -> Decoded:
        """Continues prompts. The model's cache holds them and `max_decode_steps` more tokens."""
        raise NotImplementedError(type(self).__name__)

    def end_ids(self) -> list[int]:
        """The tokens that end a text; raises UserError if `eos_ids` is no vocabulary."""
        if not isinstance(self.eos_ids, str):
            return list(self.eos_ids)
        with prefixed('task.decoder.eos_ids'):
            return vocabulary_at(self.eos_ids).eos_ids

    def is_eos(self, ids: jax.Array) -> jax.Array:
        """True for tokens that end a text."""
        return jnp.isin(ids, jnp.array(self.end_ids(), ids.dtype))

    def allowed(self, logits: jax.Array, step: jax.Array) -> jax.Array:
        """Masks end-of-text tokens before `min_decode_steps`, in logits [..., V] of step `step`."""
        if not self.eos_ids or not self.min_decode_steps:
            return logits
        is_end_V = self.is_eos(jnp.arange(logits.shape[-1]))
        return jnp.where(is_end_V & (step < self.min_decode_steps), -jnp.inf, logits)


def prefill(extend: Extend, prompts: Prompts, count: int) -> tuple[Cache, jax.Array, jax.Array]:
    """Reads whole prompts, and repeats each for `count` texts.

    Returns:
        The cache; the logits [R, V] of the first new token; the lengths [R] of the prompts.
    """
    positions = Positions.unpacked(prompts.ids_BP.shape)
    positions = positions._replace(lengths_B=prompts.lengths_B)
    cache, logits_BPV = extend(None, prompts.ids_BP, positions)
    last_B11 = (prompts.lengths_B - 1)[:, None, None]
    logits_BV = jnp.take_along_axis(logits_BPV, last_B11, axis=1)[:, 0]
    each_R = jnp.arange(len(prompts.ids_BP) * count) // count
    return gather_cache(cache, each_R), logits_BV[each_R], prompts.lengths_B[each_R]


def decode_step(
    extend: Extend, cache: Cache, ids_B: jax.Array, index_B: jax.Array
) -> tuple[Cache, jax.Array]:
    """Adds one token per row, at `index_B`. Returns the cache, and logits [B, V] of the next."""
    cache, logits_B1V = extend(cache, ids_B[:, None], Positions(index_B[:, None]))
    return cache, logits_B1V[:, 0]


def gather_cache(cache: Cache, rows: jax.Array) -> Cache:
    """Gathers rows of a cache."""

    def of(path: Any, leaf: jax.Array) -> jax.Array:
        return jnp.take(leaf, rows, axis=cache_axis(path))

    return jax.tree_util.tree_map_with_path(of, cache)
