"""Decoding with a cache equals a slow reference without one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.decoding import BeamSearch, Decoder, Greedy, Prompts, Sample
from trainer.decoding.base import Cache
from trainer.decoding.sampling import nucleus, top
from trainer.layers import (
    Attention,
    Embedding,
    FeedForward,
    LatentAttention,
    Stack,
    TransformerBlock,
    TransformerLm,
)
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.layers.positions import Positions
from trainer.symbolic.component import bind, numbers

VOCAB, STEPS = 11, 6
# Rows of unequal length; their padding must not matter.
PROMPTS = [[3, 1, 4], [5], [9, 2, 6, 5]]
Logits = Callable[[list[int]], np.ndarray]


def model(kind: str) -> TransformerLm:
    mixers = {
        'latent': LatentAttention(4, latent_dims=8),
        'window': Attention(4, num_kv_heads=2, window=3),
    }
    mixer = mixers.get(kind, Attention(4, num_kv_heads=2))
    scan = 'never' if kind == 'unrolled' else 'always'
    stack = Stack([TransformerBlock(mixer, FeedForward(32))], repeats=2, scan=scan)
    return TransformerLm(Embedding(VOCAB, 16), stack)


@pytest.fixture(
    scope='module',
    params=[
        'unrolled',
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('scanned', 'window', 'latent')),
    ],
)
def written(request: pytest.FixtureRequest) -> tuple[TransformerLm, Any]:
    """A model with large parameters, so that its predictions are confident."""
    made = model(request.param)
    params = made.module().init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))['params']
    unboxed = jax.tree.map(lambda leaf: 3 * leaf, jax.tree.map(jnp.asarray, _values(params)))
    return made, unboxed


def _values(boxed: Any) -> Any:
    from trainer.state import unboxed

    return unboxed(boxed)


def padded(fill: int = 7) -> Prompts:
    longest = max(map(len, PROMPTS))
    rows = [row + [fill] * (longest - len(row)) for row in PROMPTS]
    return Prompts(jnp.array(rows), jnp.array([len(row) for row in PROMPTS]))


def decode(written: tuple[TransformerLm, Any], decoder: Decoder, prompts: Prompts, seed: int = 0):
    made, params = written

    @jax.jit
    def run(params: Any, prompts: Prompts, values: Any) -> Any:
        bound = bind(decoder, values)

        def extend(cache: Cache, ids: jax.Array, positions: Positions) -> Any:
            variables = {'params': params} | ({} if cache is None else {CACHE: cache})
            length = prompts.ids_BP.shape[1] + decoder.max_decode_steps
            with forward_context(ForwardContext(cache_length=length)):
                logits, left = made.module().apply(variables, ids, positions, mutable=[CACHE])
            return left[CACHE], logits

        return bound.decode(extend, prompts, jax.random.key(seed))

    return jax.device_get(run(params, prompts, numbers(decoder)))


def reference(written: tuple[TransformerLm, Any]) -> Logits:
    """Logits of the next token, from all tokens so far."""
    made, params = written
    forward = jax.jit(lambda ids: made.module().apply({'params': params}, ids))

    def logits(ids: list[int]) -> np.ndarray:
        row = np.zeros((1, 12), np.int32)
        row[0, : len(ids)] = ids
        return np.asarray(forward(row)[0, len(ids) - 1], np.float64)

    return logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()


def slow_steps(
    logits: Logits, prompt: list[int], decoder: Any, choose: Callable[[np.ndarray, int], int]
) -> tuple[list[int], float]:
    ids: list[int] = []
    log_prob = 0.0
    for step in range(decoder.max_decode_steps):
        now = logits(prompt + ids)
        allowed = now.copy()
        if step < decoder.min_decode_steps:
            allowed[list(decoder.eos_ids)] = -np.inf
        token = choose(allowed, step)
        log_prob += log_softmax(now)[token]
        ids.append(token)
        if token in decoder.eos_ids:
            break
    return ids, log_prob


def slow_beam(logits: Logits, prompt: list[int], decoder: BeamSearch) -> list[tuple[float, Any]]:
    """All hypotheses by their scores."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []

    def score(log_prob: float, ids: list[int]) -> float:
        return log_prob / ((5 + len(ids)) / 6) ** decoder.length_norm_alpha

    for step in range(decoder.max_decode_steps):
        longer = []
        for log_prob, ids in live:
            each = log_softmax(logits(prompt + ids))
            for token in range(VOCAB):
                if not (token in decoder.eos_ids and step < decoder.min_decode_steps):
                    longer.append((log_prob + each[token], [*ids, token]))
        longer.sort(key=lambda text: -text[0])
        ended += [text for text in longer if text[1][-1] in decoder.eos_ids]
        ended = sorted(ended, key=lambda text: -score(*text))[: decoder.beam_size]
        live = [text for text in longer if text[1][-1] not in decoder.eos_ids]
        live = live[: decoder.beam_size]
    found = [(score(*text), text[1]) for text in ended + live]
    return sorted(found, key=lambda text: -text[0])[: decoder.beam_size]


def texts(decoded: Any) -> list[list[list[int]]]:
    return [
        [ids[:length].tolist() for ids, length in zip(row, lengths, strict=True)]
        for row, lengths in zip(decoded.ids_BNT, decoded.lengths_BN, strict=True)
    ]


@pytest.mark.pax('… decoder_cache, prefix_decoder_cache', 'Common: `seqlen`, `max_decode_steps`')
@pytest.mark.pax('Greedy')
@pytest.mark.parametrize(
    'fields', [{}, {'eos_ids': [4, 8]}, {'eos_ids': [4, 8], 'min_decode_steps': 3}]
)
@pytest.mark.fast(1)
@pytest.mark.contract
def test_greedy_decoding_equals_the_reference(written: Any, fields: Any) -> None:
    decoder = Greedy(max_decode_steps=STEPS, **fields)
    decoded = decode(written, decoder, padded())
    logits = reference(written)
    for row, prompt in enumerate(PROMPTS):
        ids, log_prob = slow_steps(logits, prompt, decoder, lambda now, _: int(np.argmax(now)))
        assert texts(decoded)[row] == [ids]
        assert decoded.log_probs_BN[row, 0] == pytest.approx(log_prob, abs=1e-3)
        assert not decoded.ids_BNT[row, 0, len(ids) :].any()


@pytest.mark.pax('Beam, flat beam')
@pytest.mark.parametrize(('alpha', 'eos_ids'), [(0.0, []), (0.0, [4]), (0.8, [4, 8, 10])])
@pytest.mark.fast(1)
def test_beam_search_equals_the_reference(written: Any, alpha: float, eos_ids: list[int]) -> None:
    decoder = BeamSearch(STEPS, eos_ids=eos_ids, beam_size=3, length_norm_alpha=alpha)
    decoded = decode(written, decoder, padded())
    logits = reference(written)
    for row, prompt in enumerate(PROMPTS):
        wanted = slow_beam(logits, prompt, decoder)
        assert texts(decoded)[row] == [ids for _, ids in wanted]
        scores = [score for score, _ in wanted]
        np.testing.assert_allclose(decoded.scores_BN[row], scores, atol=1e-3)


@pytest.mark.slow
def test_a_beam_of_one_is_greedy(written: Any) -> None:
    fields: Any = {'max_decode_steps': STEPS, 'eos_ids': [4]}
    beam = decode(written, BeamSearch(beam_size=1, length_norm_alpha=0.0, **fields), padded())
    greedy = decode(written, Greedy(**fields), padded())
    # Beam search may prefer a text that ended early to a longer one.
    for one, other in zip(beam.log_probs_BN[:, 0], greedy.log_probs_BN[:, 0], strict=True):
        assert one >= other - 1e-4


@pytest.mark.pax('fprop_for_prefix', 'Sample: number, temperature')
@pytest.mark.parametrize('fields', [{'p': 0.7}, {'temperature': 0.5, 'k': 5}])
@pytest.mark.slow
def test_samples_equal_the_reference(written: Any, fields: Any) -> None:
    decoder = Sample(max_decode_steps=STEPS, eos_ids=[4], num_samples=2, **fields)
    decoded = decode(written, decoder, padded(), seed=3)
    logits = reference(written)
    for row, prompt in enumerate(PROMPTS):
        wanted = []
        for sample in range(2):

            def draw(now: np.ndarray, step: int, at: int = 2 * row + sample) -> int:
                key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), step), at)
                return int(decoder.choose(jnp.asarray(now, jnp.float32)[None], key[None])[0])

            wanted.append(slow_steps(logits, prompt, decoder, draw))
        wanted.sort(key=lambda text: -text[1])
        assert texts(decoded)[row] == [ids for ids, _ in wanted]


def test_padding_of_a_prompt_does_not_matter(written: Any) -> None:
    decoder = Sample(max_decode_steps=STEPS, num_samples=2)
    one, other = (decode(written, decoder, padded(fill)) for fill in (7, 2))
    np.testing.assert_array_equal(one.ids_BNT, other.ids_BNT)


@pytest.mark.slow
def test_without_temperature_samples_are_greedy(written: Any) -> None:
    sampled = decode(written, Sample(STEPS, temperature=0.0), padded())
    np.testing.assert_array_equal(sampled.ids_BNT, decode(written, Greedy(STEPS), padded()).ids_BNT)


def test_draws_have_the_probabilities_of_the_likely_tokens() -> None:
    probabilities = np.array([0.4, 0.3, 0.2, 0.1])
    logits = jnp.log(jnp.tile(jnp.array(probabilities), (4000, 1)))
    keys = jax.random.split(jax.random.key(0), 4000)
    for decoder, kept in ((Sample(1), 4), (Sample(1, k=3), 3), (Sample(1, p=0.6), 2)):
        counts = np.bincount(np.asarray(decoder.choose(logits, keys)), minlength=4) / 4000
        wanted = np.where(np.arange(4) < kept, probabilities, 0)
        np.testing.assert_allclose(counts, wanted / wanted.sum(), atol=0.03)


def test_top_k_and_nucleus_keep_likely_tokens() -> None:
    logits = jnp.log(jnp.array([0.1, 0.6, 0.3]))
    assert np.isfinite(top(logits, 0)).tolist() == [True] * 3
    assert np.isfinite(top(logits, 7)).tolist() == [True] * 3
    assert np.isfinite(nucleus(logits, 0.6)).tolist() == [False, True, False]
    assert np.isfinite(nucleus(logits, 0.61)).tolist() == [False, True, True]
    assert np.isfinite(nucleus(logits, 1.0)).tolist() == [True] * 3


@pytest.mark.parametrize(
    ('decoder', 'kept'), [(Sample(1, k=1), 1), (Sample(1, k=2), 2), (Sample(1, p=0.2), 1)]
)
def test_of_tokens_that_tie_the_first_are_likely(decoder: Sample, kept: int) -> None:
    logits = jnp.tile(jnp.array([0.0, 1.0, 1.0, 1.0]), (200, 1))
    drawn = decoder.choose(logits, jax.random.split(jax.random.key(0), 200))
    assert sorted(set(np.asarray(drawn).tolist())) == list(range(1, 1 + kept))


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: Greedy(0), 'max_decode_steps'),
        (lambda: Greedy(4, min_decode_steps=5), 'min_decode_steps'),
        (lambda: Greedy(4, eos_ids=[-1]), 'eos_ids'),
        (lambda: Sample(4, p=0.0), 'p must'),
        (lambda: Sample(4, temperature=-1.0), 'temperature'),
        (lambda: BeamSearch(4, beam_size=0), 'beam_size'),
        (lambda: BeamSearch(4, length_norm_alpha=-1.0), 'length_norm_alpha'),
    ],
)
def test_impossible_values_are_refused(make: Callable[[], Decoder], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
