from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.decoding.base import (
    Decoded,
    Decoder,
    Extend,
    Prompts,
    decode_step,
    gather_cache,
    prefill,
)
from trainer.symbolic.component import Number, require_not_negative, require_positive
from trainer.symbolic.usual_values import UsualValue


class _Texts(NamedTuple):
    """Hypotheses of each prompt, the best first."""

    ids_BKT: jax.Array
    lengths_BK: jax.Array
    log_probs_BK: jax.Array
    scores_BK: jax.Array


class _State(NamedTuple):
    step: jax.Array
    cache: Any
    logits_RV: jax.Array
    live: _Texts
    ended: _Texts


class BeamSearch(Decoder):
    """Beam search (Graves 2012).

    Each step extends every live hypothesis by every token, and keeps the best; hypotheses that end
    are collected. Their score is their log probability, divided by ((5 + length) / 6)^alpha (Wu et
    al. 2016). Hypotheses without an end after the last step are scored the same way. A prompt is
    done when no live hypothesis can still enter its results.

    Attributes:
        beam_size: number of live hypotheses, and of results for each prompt.
        length_norm_alpha: preference for longer texts; 0 for none.
    """

    beam_size: int = 4
    length_norm_alpha: Number = 0.8

    usual = {
        'beam_size': UsualValue(4, 4, 10, '4: Vaswani et al. 2017; 10: Wu et al. 2016 and others'),
        'length_norm_alpha': UsualValue(0.6, 0.6, 1.0, 'Wu et al. 2016, Vaswani et al. 2017'),
    }

    def check(self) -> None:
        super().check()
        require_positive(self, 'beam_size')
        require_not_negative(self, 'length_norm_alpha')

    @property
    def num_results(self) -> int:
        return self.beam_size

    def decode(self, extend: Extend, prompts: Prompts, key: jax.Array) -> Decoded:
        beams, num_prompts = self.beam_size, prompts.ids_BP.shape[0]
        cache, logits_RV, index_R = prefill(extend, prompts, beams)

        def body(state: _State) -> _State:
            extended, parent_BJ, is_end_BJ = self._extended(state)
            ended = _best(_joined(state.ended, _only(extended, is_end_BJ)), beams)[0]
            live, chosen_BK = _best(_only(extended, ~is_end_BJ), beams)
            parent_BK = jnp.take_along_axis(parent_BJ, chosen_BK, axis=1)
            rows_R = (parent_BK + beams * jnp.arange(num_prompts)[:, None]).reshape(-1)
            ids_R = live.ids_BKT[:, :, state.step].reshape(-1)
            cache, next_RV = decode_step(
                extend, gather_cache(state.cache, rows_R), ids_R, index_R + state.step
            )
            return _State(state.step + 1, cache, next_RV, live, ended)

        first = _State(
            jnp.zeros((), jnp.int32),
            cache,
            logits_RV,
            self._empty(num_prompts, 0.0),
            self._empty(num_prompts, -jnp.inf),
        )
        last = jax.lax.while_loop(self._continues, body, first)
        best, _ = _best(_joined(last.ended, last.live), beams)
        return Decoded(*best)

    def _empty(self, num_prompts: int, first: float) -> _Texts:
        """Empty hypotheses; only the first is live, since all would be extended equally."""
        shape = (num_prompts, self.beam_size)
        log_probs_BK = jnp.full(shape, -jnp.inf, jnp.float32).at[:, 0].set(first)
        ids_BKT = jnp.zeros((*shape, self.max_decode_steps), jnp.int32)
        return _Texts(ids_BKT, jnp.zeros(shape, jnp.int32), log_probs_BK, log_probs_BK)

    def _extended(self, state: _State) -> tuple[_Texts, jax.Array, jax.Array]:
        """The best extensions; the hypothesis that each of them extends; True where it ends."""
        live, (num_prompts, beams) = state.live, state.live.scores_BK.shape
        log_probs_RV = jax.nn.log_softmax(state.logits_RV)
        log_probs_RV = self.allowed(log_probs_RV, state.step)
        vocab = log_probs_RV.shape[-1]
        total_BKV = live.log_probs_BK[:, :, None] + log_probs_RV.reshape(num_prompts, beams, vocab)
        # Enough for ended and live ones: a hypothesis has an extension for each token that ends it.
        count = min(beams * (1 + max(1, len(self.end_ids()))), beams * vocab)
        log_probs_BJ, flat_BJ = jax.lax.top_k(total_BKV.reshape(num_prompts, -1), count)
        parent_BJ, token_BJ = flat_BJ // vocab, (flat_BJ % vocab).astype(jnp.int32)
        ids_BJT = jnp.take_along_axis(live.ids_BKT, parent_BJ[:, :, None], axis=1)
        ids_BJT = ids_BJT.at[:, :, state.step].set(token_BJ)
        lengths_BJ = jnp.full_like(parent_BJ, state.step + 1)
        scores_BJ = log_probs_BJ / self._norm(state.step + 1)
        texts = _Texts(ids_BJT, lengths_BJ, log_probs_BJ, scores_BJ)
        return texts, parent_BJ, self.is_eos(token_BJ)

    def _continues(self, state: _State) -> jax.Array:
        # The log probability never grows, and its divisor is largest at the last step.
        bound_B = state.live.log_probs_BK[:, 0] / self._norm(jnp.array(self.max_decode_steps))
        is_done_B = state.ended.scores_BK[:, -1] >= bound_B
        return (state.step < self.max_decode_steps) & ~jnp.all(is_done_B)

    def _norm(self, length: jax.Array) -> jax.Array:
        return ((5 + length.astype(jnp.float32)) / 6) ** self.length_norm_alpha


def _only(texts: _Texts, where_BJ: jax.Array) -> _Texts:
    """Excludes all other hypotheses by scores of -inf."""
    return texts._replace(
        log_probs_BK=jnp.where(where_BJ, texts.log_probs_BK, -jnp.inf),
        scores_BK=jnp.where(where_BJ, texts.scores_BK, -jnp.inf),
    )


def _joined(first: _Texts, second: _Texts) -> _Texts:
    return _Texts(*(jnp.concatenate(each, axis=1) for each in zip(first, second, strict=True)))


def _best(texts: _Texts, count: int) -> tuple[_Texts, jax.Array]:
    scores_BK, chosen_BK = jax.lax.top_k(texts.scores_BK, count)
    lengths_BK = jnp.take_along_axis(texts.lengths_BK, chosen_BK, axis=1)
    log_probs_BK = jnp.take_along_axis(texts.log_probs_BK, chosen_BK, axis=1)
    ids_BKT = jnp.take_along_axis(texts.ids_BKT, chosen_BK[:, :, None], axis=1)
    return _Texts(ids_BKT, lengths_BK, log_probs_BK, scores_BK), chosen_BK
