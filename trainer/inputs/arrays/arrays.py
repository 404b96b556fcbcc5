import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping

import jax
import numpy as np

from trainer.inputs.base import Batch, pad_batch
from trainer.inputs.indexed import IndexedInput
from trainer.runtime.data_paths import data_path, open_data
from trainer.symbolic.errors import UserError


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Features of examples.

    Attributes:
        features: arrays by name; their first axis is the examples.
        fingerprint: SHA-256 of their content.
    """

    features: Mapping[str, np.ndarray]
    fingerprint: str

    @property
    def num_examples(self) -> int:
        return len(next(iter(self.features.values()))) if self.features else 0


def arrays_of(features: Mapping[str, np.ndarray]) -> Arrays:
    """Converts features to float32 and int32, and computes their fingerprint.

    Unsigned 8-bit features of several axes, such as images, stay 8-bit: tasks divide them by 255.

    Raises:
        UserError: a feature has no numbers, or the features differ in their number of examples.

    Example:
        >>> arrays_of({'label': np.array([3, 1])}).features['label'].dtype
        dtype('int32')
    """
    kept, digest = {}, hashlib.sha256()
    for name, array in sorted(features.items()):
        if array.ndim < 1 or array.dtype.kind not in 'fiub':
            raise UserError(f'feature {name!r} is not an array of numbers: {array.dtype}')
        if array.dtype.kind in 'iu' and not np.array_equal(array, array.astype(np.int32)):
            raise UserError(f'feature {name!r} has integers that need more than 32 bits')
        small = array.astype(stored_dtype(array))
        kept[name] = np.ascontiguousarray(small)
        digest.update(f'{name} {small.dtype} {small.shape}\n'.encode())
        digest.update(kept[name].data)
    sizes = {name: len(array) for name, array in kept.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(f'the features have different numbers of examples: {sizes}')
    return Arrays(kept, digest.hexdigest())


def stored_dtype(array: np.ndarray) -> type[np.generic]:
    """The dtype of a feature in batches: float32, int32, or uint8 for images and the like."""
    if array.dtype == np.uint8 and array.ndim > 1:
        return np.uint8
    return np.float32 if array.dtype.kind == 'f' else np.int32


class ArraysInput(IndexedInput):
    """Examples of arrays that a subclass reads, with `weights`, 0 for padding.

    If the arrays have no `weights`, each example has weight 1: float32 [B].

    Example:
        >>> class Squares(ArraysInput):
        ...     def read(self):
        ...         x = np.arange(5, dtype=np.float32)
        ...         return arrays_of({'x': x, 'square': x**2})
        >>> data = Squares(batch_size=3)
        >>> data.get_next()['square'].tolist(), data.get_next()['weights'].tolist()
        ([0.0, 1.0, 4.0], [1.0, 1.0, 0.0])
    """

    def _on_bound(self) -> None:
        super()._on_bound()
        self._arrays: Arrays | None = None

    def read(self) -> Arrays:
        """Reads the arrays; raises UserError if they are missing."""
        raise NotImplementedError(type(self).__name__)

    def augment(self, batch: Batch, index: np.ndarray) -> Batch:
        """Augments a training batch, with random numbers from `random_words_at(index, …)`.

        The indices of the examples, int64 [B], count over all epochs.
        """
        return batch

    def arrays(self) -> Arrays:
        """The arrays, read once."""
        if self._arrays is None:
            self._arrays = self.read()
        return self._arrays

    def prepare(self) -> None:
        if not self.num_examples():
            raise UserError('the arrays have no examples')

    def fingerprint(self) -> str:
        return self.arrays().fingerprint

    def num_examples(self) -> int:
        return self.arrays().num_examples

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        spec = {
            name: jax.ShapeDtypeStruct((self.batch_size, *array.shape[1:]), array.dtype)
            for name, array in self.arrays().features.items()
        }
        return {'weights': jax.ShapeDtypeStruct((self.batch_size,), np.float32), **spec}

    def train_batch(self, index: np.ndarray) -> Batch:
        _, example = self.drawn(index)
        return self.augment(self._examples(example), index)

    def eval_batch(self, index: np.ndarray) -> Batch:
        existing = index[index < self.num_examples()]
        return pad_batch(self._examples(existing), len(index) - len(existing), self)

    def _examples(self, example: np.ndarray) -> Batch:
        rows = {name: array[example] for name, array in self.arrays().features.items()}
        return {'weights': np.ones(len(example), np.float32), **rows}


class NpzInput(ArraysInput):
    """The arrays of an `.npz` file of `numpy.savez`, as features with the same names.

    Attributes:
        path: the file, on a disk or in a bucket (`gs://…`, `s3://…`). Arrays of Python objects are
            an error.
    """

    path: str

    def read(self) -> Arrays:
        place = data_path(self.path)
        try:
            with open_data(place) as stream, np.load(stream, allow_pickle=False) as arrays:
                return arrays_of({name: arrays[name] for name in arrays.files})
        except (
            *(OSError, EOFError, ValueError, AttributeError, MemoryError),
            zipfile.BadZipFile,
        ) as error:
            paths = ' and '.join(self.settings('path'))
            raise UserError(
                f'{self.path!r} cannot be read as an .npz file ({error}). Set {paths} to one that '
                'numpy.savez wrote.'
            ) from error
