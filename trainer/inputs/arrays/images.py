import hashlib
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, pad_batch
from trainer.inputs.indexed import IndexedInput
from trainer.inputs.permutation import random_words_at
from trainer.runtime.data_paths import data_path, local_copy
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import choice

_FINGERPRINT_IMAGES = 64
"""Number of images in a fingerprint, beside all labels."""


class ImagesInput(IndexedInput):
    """`image` uint8 [B, H, W, C], `label` int32 [B] and `weights` float32 [B], 0 for padding.

    `numpy.save` writes the files `<split>_images.npy`, uint8 [N, H', W', C], and
    `<split>_labels.npy`, integers [N]. They are memory-mapped: only the rows of a batch are in
    memory. Those in a bucket are copied to a local disk first: see `local_copy`. Larger images are
    cropped: randomly in training, in the center in evaluation.

    Attributes:
        data_dir: the directory of the files, on a disk or in a bucket (`gs://…`, `s3://…`).
        split: such as 'train' or 'test'.
        image_shape: height, width and colours of an image.
        flip: in training, mirrors a random half of the images, left to right.
    """

    data_dir: str
    split: str
    image_shape: list[int]
    flip: bool = False

    usual = {'flip': choice(True, 'He et al. 2016, also for CIFAR')}

    def _on_bound(self) -> None:
        super()._on_bound()
        self._files: tuple[np.ndarray, np.ndarray] | None = None
        self._fingerprint = ''

    def check(self) -> None:
        super().check()
        if len(self.image_shape) != 3 or min(self.image_shape) < 1:
            raise ValueError(
                f'image_shape must be height, width and colours: {list(self.image_shape)}'
            )
        if self.flip and not self.is_training:
            raise ValueError('flip is only for training; evaluation does not change images')

    def prepare(self) -> None:
        self._read()

    def fingerprint(self) -> str:
        if not self._fingerprint:
            images, labels = self._read()
            digest = hashlib.sha256(f'{self.split} {images.shape} {labels.dtype}'.encode())
            digest.update(np.ascontiguousarray(labels).data)
            count = min(_FINGERPRINT_IMAGES, len(images))
            sample = np.linspace(0, len(images) - 1, count).astype(np.int64)
            digest.update(np.ascontiguousarray(images[sample]).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        rows = (self.batch_size,)
        return {
            'image': jax.ShapeDtypeStruct((*rows, *self.image_shape), np.uint8),
            'label': jax.ShapeDtypeStruct(rows, np.int32),
            'weights': jax.ShapeDtypeStruct(rows, np.float32),
        }

    def num_examples(self) -> int:
        return len(self._read()[0])

    def train_batch(self, index: np.ndarray) -> Batch:
        _, example = self.drawn(index)
        words = random_words_at(index, self.input_random_seed)
        return self._batch_of(example, words)

    def eval_batch(self, index: np.ndarray) -> Batch:
        existing = index[index < self.num_examples()]
        return pad_batch(self._batch_of(existing, None), len(index) - len(existing), self)

    def close(self) -> None:
        self._files = None

    def _batch_of(self, example: np.ndarray, words: np.ndarray | None) -> Batch:
        """Examples with crops drawn from `words`, uint64 [B]; without, cropped in the center."""
        images, labels = self._read()
        height, width, colours = self.image_shape
        spare_rows, spare_columns = images.shape[1] - height, images.shape[2] - width
        batch = np.zeros((len(example), height, width, colours), np.uint8)
        for i, row in enumerate(example):
            down, right, mirrored = spare_rows // 2, spare_columns // 2, False
            if words is not None:
                down, right, mirrored = _drawn(int(words[i]), spare_rows, spare_columns)
            image = images[row, down : down + height, right : right + width]
            batch[i] = image[:, ::-1] if mirrored and self.flip else image
        weights = np.ones(len(example), np.float32)
        return {'image': batch, 'label': labels[example].astype(np.int32), 'weights': weights}

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        if self._files is None:
            images, labels = self._opened('images'), self._opened('labels')
            self._check_files(images, labels)
            self._files = images, labels
        return self._files

    def _opened(self, what: str) -> np.ndarray:
        file = data_path(self.data_dir) / f'{self.split}_{what}.npy'
        try:
            found: Any = np.load(local_copy(file), mmap_mode='r', allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            places = ' '.join(f'{setting}=DIR' for setting in self.settings('data_dir'))
            raise UserError(
                f'{file} cannot be read ({error}). Point at a directory with '
                f'{self.split}_images.npy, uint8 [N, height, width, colours], and '
                f'{self.split}_labels.npy, integers [N], which numpy.save wrote: --set {places}'
            ) from error
        return np.asarray(found) if what == 'labels' else found

    def _check_files(self, images: np.ndarray, labels: np.ndarray) -> None:
        height, width, colours = self.image_shape
        fits = images.ndim == 4 and images.shape[1] >= height and images.shape[2] >= width
        if images.dtype != np.uint8 or not fits or images.shape[3] != colours or not len(images):
            raise UserError(
                f'the images of {self.split} are {images.dtype} {list(images.shape)}: image_shape '
                f'needs uint8 [N, {height} or more, {width} or more, {colours}]'
            )
        if labels.dtype.kind not in 'iu' or labels.shape != images.shape[:1]:
            raise UserError(
                f'the labels of {self.split} are {labels.dtype} {list(labels.shape)}: expected an '
                f'integer for each of {len(images)} images'
            )


def _drawn(word: int, spare_rows: int, spare_columns: int) -> tuple[int, int, bool]:
    """The first row and column of a crop, and True if it is mirrored."""
    mirrored, word = bool(word & 1), word >> 1
    return (word >> 32) % (spare_rows + 1), (word & 0xFFFF_FFFF) % (spare_columns + 1), mirrored
