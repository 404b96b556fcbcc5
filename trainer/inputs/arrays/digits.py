import functools
from pathlib import Path
from typing import Literal

import numpy as np

from trainer.inputs.arrays.arrays import Arrays, ArraysInput, arrays_of
from trainer.inputs.base import Batch
from trainer.inputs.permutation import Permutation, random_words_at

NUM_CLASSES = 10
"""The digits."""

NUM_TEST = 360
"""Test images, a fifth of all 1,797. The others are for training."""

_FILE = Path(__file__).with_name('digits.npz')
_SPLIT_SEED = 0
_SIZE = 8
_BRIGHTEST = 16


class DigitsInput(ArraysInput):
    """8×8 pixels of gray: `image` float32 [B, 8, 8, 1] in [0, 1], `label` int32 [B], `weights` [B].

    The images are the test part of the UCI set (Alpaydin & Kaynak 1998, CC BY 4.0). The splits are
    fixed, and drawn at random.

    Attributes:
        split: 'train' or 'test'.
        max_shift: in training, moves each image by a random number of pixels up to this one, in
            each direction; new pixels are black.
    """

    split: Literal['train', 'test']
    max_shift: int = 0

    def check(self) -> None:
        super().check()
        if not 0 <= self.max_shift < _SIZE:
            raise ValueError(f'max_shift must lie in [0, {_SIZE}): {self.max_shift}')
        if self.max_shift and not self.is_training:
            raise ValueError('max_shift is only for training; evaluation does not change images')

    def read(self) -> Arrays:
        return _read(self.split)

    def augment(self, batch: Batch, index: np.ndarray) -> Batch:
        if not self.max_shift:
            return batch
        return batch | {'image': self._shifted(batch['image'], index)}

    def _shifted(self, images: np.ndarray, index: np.ndarray) -> np.ndarray:
        most = self.max_shift
        words = random_words_at(index, self.input_random_seed, most)
        wide = np.uint64(2 * most + 1)
        down, right = words % wide, (words >> np.uint64(32)) % wide
        padded = np.pad(images, [(0, 0), (most, most), (most, most), (0, 0)])
        rows = down.astype(np.int64)[:, None] + np.arange(_SIZE)
        columns = right.astype(np.int64)[:, None] + np.arange(_SIZE)
        example = np.arange(len(images))[:, None, None]
        return padded[example, rows[:, :, None], columns[:, None, :]]


@functools.cache
def _read(split: str) -> Arrays:
    with np.load(_FILE, allow_pickle=False) as found:
        pixels, labels = found['images'], found['labels']
    images = (pixels / _BRIGHTEST).reshape(-1, _SIZE, _SIZE, 1)
    order = Permutation(len(images), _SPLIT_SEED)(np.arange(len(images)))
    chosen = order[:NUM_TEST] if split == 'test' else order[NUM_TEST:]
    return arrays_of({'image': images[chosen], 'label': labels[chosen].astype(np.int64)})
