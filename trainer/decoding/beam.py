"""Beam search: several texts side by side, of which the best go on."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainer.decoding.base import Decoded, Decoder, Extend, Prompts, begin, one_more, picked
from trainer.symbolic.component import Number, require_positive


class _Texts(NamedTuple):
    """Some texts for each prompt, the best first."""

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
    """Keeps the texts that are likeliest so far (Graves 2012).

    Each step extends every text by every token, and goes on with the best that have not ended;
    those that end are kept aside. Their score is the logarithm of their probability, divided by
    ((5 + length) / 6)^alpha (Wu et al. 2016). What has not ended after the last step is scored as
    it is. A prompt is done as soon as no text that goes on could still be among its best.

    Attributes:
        beam_size: texts that go on at a time, and results for each prompt.
        length_norm_alpha: how much longer texts are preferred; 0 not at all.
    """

    beam_size: int = 4
    length_norm_alpha: Number = 0.8

    def check(self) -> None:
        super().check()
        require_positive(self, 'beam_size')
        if self.length_norm_alpha < 0:
            raise ValueError(f'length_norm_alpha must not be negative: {self.length_norm_alpha}')

    @property
    def num_results(self) -> int:
        return self.beam_size

    def decode(self, extend: Extend, prompts: Prompts, key: jax.Array) -> Decoded:
        beams, num_prompts = self.beam_size, prompts.ids_BP.shape[0]
        cache, logits_BV = begin(extend, prompts)
        each_R = jnp.arange(num_prompts * beams) // beams
        index_R = prompts.lengths_B[each_R]

        def body(state: _State) -> _State:
            extended, parent_BJ, is_end_BJ = self._extended(state)
            ended = _best(_joined(state.ended, _only(extended, is_end_BJ)), beams)[0]
            live, chosen_BK = _best(_only(extended, ~is_end_BJ), beams)
            parent_BK = jnp.take_along_axis(parent_BJ, chosen_BK, axis=1)
            rows_R = (parent_BK + beams * jnp.arange(num_prompts)[:, None]).reshape(-1)
            ids_R = live.ids_BKT[:, :, state.step].reshape(-1)
            cache, next_RV = one_more(
                extend, picked(state.cache, rows_R), ids_R, index_R + state.step
            )
            return _State(state.step + 1, cache, next_RV, live, ended)

        first = _State(
            jnp.zeros((), jnp.int32),
            picked(cache, each_R),
            logits_BV[each_R],
            self._empty(num_prompts, 0.0),
            self._empty(num_prompts, -jnp.inf),
        )
        last = jax.lax.while_loop(self._goes_on, body, first)
        best, _ = _best(_joined(last.ended, last.live), beams)
        return Decoded(*best)

    def _empty(self, num_prompts: int, first: float) -> _Texts:
        """No text yet; at first one goes on, since several would be the same."""
        shape = (num_prompts, self.beam_size)
        log_probs_BK = jnp.full(shape, -jnp.inf, jnp.float32).at[:, 0].set(first)
        ids_BKT = jnp.zeros((*shape, self.max_decode_steps), jnp.int32)
        return _Texts(ids_BKT, jnp.zeros(shape, jnp.int32), log_probs_BK, log_probs_BK)

    def _extended(self, state: _State) -> tuple[_Texts, jax.Array, jax.Array]:
        """The best continuations of each prompt's texts, enough for those that end and that do not.

        Returns:
            The texts; which one each of them continues; whether it ends.
        """
        live, (num_prompts, beams) = state.live, state.live.scores_BK.shape
        log_probs_RV = jax.nn.log_softmax(state.logits_RV)
        log_probs_RV = self.allowed(log_probs_RV, state.step)
        vocab = log_probs_RV.shape[-1]
        total_BKV = live.log_probs_BK[:, :, None] + log_probs_RV.reshape(num_prompts, beams, vocab)
        # Each text has one continuation for each token that ends it.
        count = min(beams * (1 + max(1, len(self.eos_ids))), beams * vocab)
        log_probs_BJ, flat_BJ = jax.lax.top_k(total_BKV.reshape(num_prompts, -1), count)
        parent_BJ, token_BJ = flat_BJ // vocab, (flat_BJ % vocab).astype(jnp.int32)
        ids_BJT = jnp.take_along_axis(live.ids_BKT, parent_BJ[:, :, None], axis=1)
        ids_BJT = ids_BJT.at[:, :, state.step].set(token_BJ)
        lengths_BJ = jnp.full_like(parent_BJ, state.step + 1)
        scores_BJ = log_probs_BJ / self._norm(state.step + 1)
        texts = _Texts(ids_BJT, lengths_BJ, log_probs_BJ, scores_BJ)
        return texts, parent_BJ, self.is_eos(token_BJ)

    def _goes_on(self, state: _State) -> jax.Array:
        # The probability of a text never grows, and what it is divided by is largest at the end.
        bound_B = state.live.log_probs_BK[:, 0] / self._norm(jnp.array(self.max_decode_steps))
        is_done_B = state.ended.scores_BK[:, -1] >= bound_B
        return (state.step < self.max_decode_steps) & ~jnp.all(is_done_B)

    def _norm(self, length: jax.Array) -> jax.Array:
        return ((5 + length.astype(jnp.float32)) / 6) ** self.length_norm_alpha


def _only(texts: _Texts, where_BJ: jax.Array) -> _Texts:
    """The texts of which something holds; the others can be no candidates."""
    return texts._replace(
        log_probs_BK=jnp.where(where_BJ, texts.log_probs_BK, -jnp.inf),
        scores_BK=jnp.where(where_BJ, texts.scores_BK, -jnp.inf),
    )


def _joined(first: _Texts, second: _Texts) -> _Texts:
    return _Texts(*(jnp.concatenate(each, axis=1) for each in zip(first, second, strict=True)))


def _best(texts: _Texts, count: int) -> tuple[_Texts, jax.Array]:
    """The best by their scores, and which of the texts they are."""
    scores_BK, chosen_BK = jax.lax.top_k(texts.scores_BK, count)
    lengths_BK = jnp.take_along_axis(texts.lengths_BK, chosen_BK, axis=1)
    log_probs_BK = jnp.take_along_axis(texts.log_probs_BK, chosen_BK, axis=1)
    ids_BKT = jnp.take_along_axis(texts.ids_BKT, chosen_BK[:, :, None], axis=1)
    return _Texts(ids_BKT, lengths_BK, log_probs_BK, scores_BK), chosen_BK
