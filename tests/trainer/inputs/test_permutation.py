import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.inputs.permutation import Permutation, random_words


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 5))
def test_every_index_has_one_image(size, seed, epoch):
    images = Permutation(size, seed, epoch)(np.arange(size))
    assert sorted(images.tolist()) == list(range(size))


def test_large_ranges_cost_nothing():
    size = 10**12
    index = np.arange(size - 1000, size)
    images = Permutation(size, 0)(index)
    assert len(set(images.tolist())) == 1000
    assert images.min() >= 0
    assert images.max() < size
    # Images of neighbours are spread: a tenth of the range has about a tenth of them.
    assert 50 < np.sum(images < size // 10) < 150


def test_images_do_not_depend_on_other_indices():
    permutation = Permutation(1000, 3)
    together = permutation(np.arange(1000))
    assert [permutation(np.array([i]))[0] for i in range(0, 1000, 97)] == list(together[::97])


def test_seeds_draw_different_permutations():
    drawn = {
        tuple(Permutation(50, seed, epoch)(np.arange(50))) for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(drawn) == 4


@pytest.mark.parametrize('seeds', [(0, 1), (1, 0), (0,), (10,), (1, 10)])
def test_words_differ_by_seeds(seeds):
    assert random_words(1, *seeds) != random_words(1, 0, 0)
    assert len(set(random_words(100, *seeds).tolist())) == 100


def test_words_are_equal_in_every_version():
    # Checkpoints depend on it: a position refers to the same examples in every version.
    assert random_words(2, 0, 1).tolist() == [14719997280833369599, 791792424563691658]
    assert Permutation(10, 0)(np.arange(10)).tolist() == [8, 1, 9, 3, 5, 2, 4, 0, 7, 6]
