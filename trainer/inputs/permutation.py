import hashlib
import math

import numpy as np

_ROUNDS = 6


def random_words(count: int, *seeds: int) -> np.ndarray:
    """`count` uint64 that depend only on the seeds: equal on any machine, in any version.

    Example:
        >>> random_words(2, 0, 1)
        array([14719997280833369599,   791792424563691658], dtype=uint64)
    """
    name = '/'.join(str(seed) for seed in seeds).encode()
    digests = (hashlib.blake2b(name, digest_size=8, salt=bytes([i])) for i in range(count))
    return np.array([int.from_bytes(digest.digest(), 'little') for digest in digests], np.uint64)


def random_words_at(index: np.ndarray, *seeds: int) -> np.ndarray:
    """A uint64 for each index that depends only on the index and the seeds.

    Example:
        >>> words = random_words_at(np.arange(3), 0)
        >>> bool((random_words_at(np.arange(1, 3), 0) == words[1:]).all())
        True
    """
    return _hash(_hash(index.astype(np.uint64)) ^ random_words(1, *seeds)[0])


class Permutation:
    """A random permutation of range(size).

    A Feistel network over pairs (left, right) of the smallest grid with `size` cells. Each round
    adds a hash of one half to the other. This is invertible, so no two indices collide. Results
    outside range(size) go through the network again.

    Example:
        >>> drawn = Permutation(5, 0)(np.arange(5))
        >>> sorted(drawn.tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, *seeds: int):
        """Draws a permutation; equal seeds and sizes give equal ones. The size is at least 1."""
        self._size = np.uint64(size)
        rows = math.isqrt(size - 1) + 1
        self._rows, self._columns = np.uint64(rows), np.uint64(-(-size // rows))
        self._keys = random_words(_ROUNDS, *seeds)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """The images (int64) of indices in range(size)."""
        image = self._shuffle(index.astype(np.uint64))
        while (outside := image >= self._size).any():
            image[outside] = self._shuffle(image[outside])
        return image.astype(np.int64)

    def _shuffle(self, cell: np.ndarray) -> np.ndarray:
        left: np.ndarray = cell // self._columns
        right: np.ndarray = cell % self._columns
        for i in range(0, _ROUNDS, 2):
            # The hash is reduced first: a sum that wraps around would not be invertible.
            left = (left + _hash(right ^ self._keys[i]) % self._rows) % self._rows
            right = (right + _hash(left ^ self._keys[i + 1]) % self._columns) % self._columns
        return left * self._columns + right


def _hash(word: np.ndarray) -> np.ndarray:
    # The finalizer of splitmix64 (Steele, Lea & Flood 2014). uint64 wraps around.
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
