import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.inputs.strides import Strides

weights = st.lists(
    st.sampled_from([0.0, 1e-9, 0.1, 1.0, 2.0]) | st.floats(0, 1e6), min_size=1, max_size=6
).filter(any)
seeds = st.integers(0, 2**32)


@given(weights, seeds)
def test_each_source_has_its_share_at_any_time(shares, seed):
    chosen = Strides(shares, seed).next(300)
    taken = np.cumsum(chosen[:, None] == np.arange(len(shares)), axis=0)
    wanted = np.arange(1, 301)[:, None] * np.array(shares) / sum(shares)
    assert np.abs(taken - wanted).max() <= len(shares)


@given(weights, seeds, st.integers(0, 200))
def test_the_sequence_continues_from_any_place(shares, seed, start):
    whole = Strides(shares, seed).next(250)
    np.testing.assert_array_equal(Strides(shares, seed, start).next(250 - start), whole[start:])


@given(weights, seeds, st.integers(0, 10**12))
def test_the_sequence_continues_after_many_examples(shares, seed, start):
    # Rounding must be consistent, or examples would be lost.
    before = Strides(shares, seed, start)
    before.next(50)
    np.testing.assert_array_equal(before.next(50), Strides(shares, seed, start + 50).next(50))


@given(weights, seeds, st.floats(1e-3, 1e3))
def test_only_ratios_of_weights_matter(shares, seed, factor):
    assume(all(weight == 0 or weight * factor > 1e-12 for weight in shares))
    scaled = Strides([weight * factor for weight in shares], seed)
    taken, wanted = (
        np.bincount(strides.next(100), minlength=len(shares))
        for strides in (scaled, Strides(shares, seed))
    )
    assert np.abs(taken - wanted).max() <= 1  # Scaling may round.


def test_a_source_of_weight_zero_is_never_chosen():
    assert set(Strides([0, 3, 0, 1], seed=1).next(100)) == {1, 3}


def test_seeds_differ_in_the_order():
    orders = {Strides([1, 1, 1], seed).next(9).tobytes() for seed in range(20)}
    assert len(orders) == 6  # Every order of the three.


@pytest.mark.parametrize('seed', range(3))
def test_sources_take_turns(seed):
    chosen = Strides([3, 1], seed).next(40).reshape(10, 4)
    assert (np.sum(chosen == 1, axis=1) == 1).all()
