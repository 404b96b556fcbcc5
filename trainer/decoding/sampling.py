from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.decoding.base import Decoded, Decoder, Extend, Prompts, decode_step, prefill
from trainer.symbolic.component import Number, require_not_negative, require_positive
from trainer.symbolic.usual_values import UsualValue


class _State(NamedTuple):
    step: jax.Array
    cache: Any
    logits_RV: jax.Array
    ids_RT: jax.Array
    lengths_R: jax.Array
    log_probs_R: jax.Array
    is_done_R: jax.Array


class Greedy(Decoder):
    """Chooses the most likely token at each step.

    Example:
        >>> Greedy(max_decode_steps=8, eos_ids=[1]).num_results
        1
    """

    def decode(self, extend: Extend, prompts: Prompts, key: jax.Array) -> Decoded:
        count, rows = self.num_results, prompts.ids_BP.shape[0] * self.num_results
        cache, logits_RV, lengths_R = prefill(extend, prompts, count)

        def body(state: _State) -> _State:
            keys_R = jax.vmap(jax.random.fold_in, (None, 0))(
                jax.random.fold_in(key, state.step), jnp.arange(rows)
            )
            logits_RV = self.allowed(state.logits_RV, state.step)
            chosen_R = jnp.where(state.is_done_R, 0, self.choose(logits_RV, keys_R))
            log_probs_RV = jax.nn.log_softmax(state.logits_RV)
            of_chosen_R = jnp.take_along_axis(log_probs_RV, chosen_R[:, None], axis=1)[:, 0]
            continues_R = ~state.is_done_R
            cache, next_RV = decode_step(extend, state.cache, chosen_R, lengths_R + state.step)
            return _State(
                state.step + 1,
                cache,
                next_RV,
                state.ids_RT.at[:, state.step].set(chosen_R),
                state.lengths_R + continues_R,
                state.log_probs_R + jnp.where(continues_R, of_chosen_R, 0.0),
                state.is_done_R | self.is_eos(chosen_R),
            )

        def continues(state: _State) -> jax.Array:
            return (state.step < self.max_decode_steps) & ~jnp.all(state.is_done_R)

        first = _State(
            jnp.zeros((), jnp.int32),
            cache,
            logits_RV,
            jnp.zeros((rows, self.max_decode_steps), jnp.int32),
            jnp.zeros(rows, jnp.int32),
            jnp.zeros(rows, jnp.float32),
            jnp.zeros(rows, bool),
        )
        last = jax.lax.while_loop(continues, body, first)
        return _ordered(last, count)

    def choose(self, logits_RV: jax.Array, keys_R: jax.Array) -> jax.Array:
        """The next token of each row, int32."""
        return jnp.argmax(logits_RV, axis=-1).astype(jnp.int32)


class Sample(Greedy):
    """Draws each token from the model's distribution, or from its most likely part.

    The draws of a row depend on the key and its index in the batch, not on other rows.

    Attributes:
        num_samples: texts for each prompt.
        temperature: divides the logits; 0 chooses the most likely token.
        k: draws from the k most likely tokens (Fan et al. 2018); 0 from all.
        p: draws from the most likely tokens with a total probability of p (Holtzman et al. 2020).
    """

    num_samples: int = 1
    temperature: Number = 1.0
    k: int = 0
    p: Number = 1.0

    usual = {
        'p': UsualValue(0.95, 0.9, 0.95, 'Holtzman et al. 2020, Chen et al. 2021 (Codex)'),
        'k': UsualValue(40, 10, 50, '10: Fan et al. 2018; 40: GPT-2'),
    }

    def check(self) -> None:
        super().check()
        require_positive(self, 'num_samples')
        require_not_negative(self, 'temperature', 'k')
        if not 0 < self.p <= 1:
            raise ValueError(f'p must lie in (0, 1]: {self.p}')

    @property
    def num_results(self) -> int:
        return self.num_samples

    def choose(self, logits_RV: jax.Array, keys_R: jax.Array) -> jax.Array:
        likeliest_R = super().choose(logits_RV, keys_R)
        cooled_RV = logits_RV / jnp.maximum(self.temperature, 1e-6)
        likely_RV = nucleus(top(cooled_RV, self.k), self.p)
        drawn_R = jax.vmap(jax.random.categorical)(keys_R, likely_RV).astype(jnp.int32)
        return jnp.where(jnp.asarray(self.temperature) > 0, drawn_R, likeliest_R)


def top(logits: jax.Array, k: int) -> jax.Array:
    """Logits [..., V] with -inf for all but the k highest; 0 keeps all of them.

    Of tokens that tie, the first ones are kept, as in `Greedy`.

    Example:
        >>> top(jnp.array([2.0, 3.0, 2.0]), 2).tolist()
        [2.0, 3.0, -inf]
    """
    if not 0 < k < logits.shape[-1]:
        return logits
    return _likeliest(logits, jax.lax.top_k(logits, k)[0][..., -1:], jnp.asarray(k))


def nucleus(logits: jax.Array, p: jax.Array | float) -> jax.Array:
    """Logits [..., V] with -inf for all but the most likely, with a total probability of p.

    Example:
        >>> nucleus(jnp.log(jnp.array([0.2, 0.5, 0.3])), 0.6).tolist()[0]
        -inf
    """
    descending = jnp.sort(logits, axis=-1, descending=True)
    before = jnp.cumsum(jax.nn.softmax(descending), axis=-1) - jax.nn.softmax(descending)
    # The first is always kept. All are kept where p is 1, in spite of rounding.
    kept = (before < p) | (jnp.asarray(p) >= 1)
    lowest = jnp.min(jnp.where(kept, descending, jnp.inf), axis=-1, keepdims=True)
    return _likeliest(logits, lowest, jnp.sum(kept, axis=-1, keepdims=True))


def _likeliest(logits: jax.Array, lowest: jax.Array, count: jax.Array) -> jax.Array:
    """The `count` largest logits, the smallest of which is `lowest`; -inf for all others."""
    is_lowest = logits == lowest
    ties = count - jnp.sum(logits > lowest, axis=-1, keepdims=True)
    is_spare = is_lowest & (jnp.cumsum(is_lowest, axis=-1) > ties)
    return jnp.where((logits < lowest) | is_spare, -jnp.inf, logits)


def _ordered(state: _State, count: int) -> Decoded:
    def by_prompt(x: jax.Array) -> jax.Array:
        return x.reshape(-1, count, *x.shape[1:])

    log_probs_BN = by_prompt(state.log_probs_R)
    order_BN = jnp.argsort(-log_probs_BN, axis=1, stable=True)
    ids_BNT = jnp.take_along_axis(by_prompt(state.ids_RT), order_BN[..., None], axis=1)
    lengths_BN = jnp.take_along_axis(by_prompt(state.lengths_R), order_BN, axis=1)
    log_probs_BN = jnp.take_along_axis(log_probs_BN, order_BN, axis=1)
    return Decoded(ids_BNT, lengths_BN, log_probs_BN, log_probs_BN)
