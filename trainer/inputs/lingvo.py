"""Batches from objects with the interface of Lingvo's input generators.

Lingvo itself is not needed. A generator is any object with these methods:

    GetPreprocessedInputBatch()    the next batch: a dict, nested or not, of arrays or tensors whose
                                   first axis is the examples. Raises StopIteration, or TensorFlow's
                                   OutOfRangeError, at the end.
    IdsToStrings(ids, lengths)     the texts of rows of ids; optional.

Experiments may be loaded from files, and a file must not choose the code that runs. So an
experiment can only name a factory that your own code has registered.

    @lingvo_generator
    def my_input(data: LingvoInputAdaptor) -> MyGenerator:
        return MyGenerator(data.infeed_host_index, data.num_hosts, data.input_random_seed)

    LingvoInputAdaptor(generator='my.module.my_input', batch_size=8)
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from trainer.inputs.arrays.arrays import stored_dtype
from trainer.inputs.base import Batch, EndOfData, Input, pad_batch
from trainer.symbolic.component import require_not_negative
from trainer.symbolic.errors import UserError, nearest


class Generator(Protocol):
    """A generator of batches."""

    def GetPreprocessedInputBatch(self) -> Mapping[str, Any]: ...


F = TypeVar('F', bound=Callable[['LingvoInputAdaptor'], Generator])

_factories: dict[str, Callable[['LingvoInputAdaptor'], Generator]] = {}


def lingvo_generator(factory: F) -> F:
    """Registers a factory of generators under its dotted path.

    It is called with the input of the generator, and again for each `reset`.
    """
    _factories[f'{factory.__module__}.{factory.__qualname__}'] = factory
    return factory


class LingvoInputAdaptor(Input):
    """The batches of a generator, unchanged.

    Nested features get dotted names, such as `src.ids`; features without numbers are left out. The
    generator divides the data between hosts. A restart reads the generator from its beginning, so
    it must be deterministic for an exact resume.

    Attributes:
        generator: the dotted path of a registered function; see `lingvo_generator`.
        num_samples: in evaluation, ends after this many examples of all hosts together, for
            infinite generators; 0 ends where the generator ends.
        input_random_seed: for the generator.
    """

    generator: str
    num_samples: int = 0
    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._spec: dict[str, jax.ShapeDtypeStruct] = {}
        self._ahead: Batch | None = None  # A generated batch that was not yet returned.
        self._begin()

    def check(self) -> None:
        super().check()
        require_not_negative(self, 'num_samples')
        if self.num_samples and self.is_training:
            raise ValueError('num_samples is only for evaluation; training data are infinite')

    def prepare(self) -> None:
        self.element_spec()

    def fingerprint(self) -> str:
        return f'{self.generator} {self.num_samples}'

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        if not self._spec:
            try:
                self._ahead = self._made()  # Only a batch has the shapes.
            except EndOfData:
                raise UserError(f'{self.generator}: there is no example') from None
        return dict(self._spec)

    def get_next(self) -> Batch:
        batch = self._made() if self._ahead is None else self._ahead
        self._ahead = None
        self._read += 1
        return batch

    def text_of(self, ids: np.ndarray, key: str) -> str:
        to_strings = getattr(self._opened(), 'IdsToStrings', None)
        if to_strings is None:
            return super().text_of(ids, key)
        (text,) = _as_array(to_strings(ids[None], np.array([len(ids)], np.int32)))
        return text.decode(errors='replace') if isinstance(text, bytes) else str(text)

    def reset(self) -> None:
        self._begin()

    def get_position(self) -> dict[str, Any]:
        return {'batch': self._read, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._begin()
        for _ in range(int(position['batch'])):
            self._made()
        self._read = int(position['batch'])

    def batches(self) -> Iterator[Batch]:
        """The batches of this host from the first on."""
        for batch in self.inner_batches():
            size = _size(batch)
            if size != self.batch_size:
                raise UserError(
                    f'{self.generator} makes batches of {size} examples, but batch_size is '
                    f'{self.batch_size}: set it to {size}, or use LingvoInputAdaptorNewBatchSize'
                )
            yield batch

    def inner_batches(self) -> Iterator[Batch]:
        """The batches of the generator from the first on, as flat dicts of arrays."""
        while True:
            try:
                made = self._opened().GetPreprocessedInputBatch()
            except Exception as error:
                if _is_end(error):
                    return
                raise
            yield dict(_flat(made))

    def _begin(self) -> None:
        self._read = 0
        self._made_count = 0
        self._ahead = None
        self._generator: Generator | None = None
        self._batches: Iterator[Batch] | None = None

    def _made(self) -> Batch:
        step = self.batch_size * self.num_hosts
        if self.num_samples and self._made_count * step >= self.num_samples:
            raise EndOfData
        if self._batches is None:
            self._batches = self.batches()
        batch = next(self._batches, None)
        if batch is None and self.is_training:
            raise UserError(f'{self.generator}: it ended, but training data must be infinite')
        if batch is None:
            raise EndOfData
        self._made_count += 1
        return self._checked(batch)

    def _checked(self, batch: Batch) -> Batch:
        spec = {n: jax.ShapeDtypeStruct(array.shape, array.dtype) for n, array in batch.items()}
        self._spec = self._spec or spec
        for name in {*spec, *self._spec}:
            now, first = spec.get(name), self._spec.get(name)
            if now != first:
                raise UserError(
                    f'{self.generator}: {name} was {first} in the first batch, now {now}'
                )
        return batch

    def _opened(self) -> Generator:
        if self._generator is None:
            factory = _factories.get(self.generator)
            if factory is None:
                raise UserError(
                    f'generator {self.generator!r} is not registered. '
                    f'{nearest(self.generator, _factories)} Put @lingvo_generator before the '
                    'function, and let --exp import its module.'
                )
            self._generator = factory(self)
        return self._generator


class LingvoInputAdaptorNewBatchSize(LingvoInputAdaptor):
    """The batches of a generator, split into smaller ones of `batch_size` examples.

    For generators that pack a fixed number of sequences, and pack better with more of them. The
    size of their batches must be a multiple of `batch_size`.
    """

    def batches(self) -> Iterator[Batch]:
        for batch in self.inner_batches():
            size = _size(batch)
            if size % self.batch_size:
                raise UserError(
                    f'{self.generator} makes batches of {size} examples, which is no multiple of '
                    f'batch_size {self.batch_size}'
                )
            for first in range(0, size, self.batch_size):
                yield {n: array[first : first + self.batch_size] for n, array in batch.items()}


class LingvoEvalAdaptor(LingvoInputAdaptor):
    """The examples of a generator once, divided between the hosts, with a padded last batch.

    The generator yields all examples on every host, in the same order, in batches of any size. Each
    host takes its rows of each step, so the hosts end together. Padding is zeros, also in
    `eval_sample_weights` [B], which is 1 elsewhere. It multiplies `weights`, where there are some.
    """

    def check(self) -> None:
        super().check()
        if self.is_training:
            raise ValueError('is_training must be false: LingvoEvalAdaptor is only for evaluation')
        if not self.reset_for_eval:
            raise ValueError('reset_for_eval must be true: it evaluates one epoch at a time')

    def batches(self) -> Iterator[Batch]:
        step = self.batch_size * self.num_hosts
        waiting: Batch = {}
        for batch in self._samples():
            waiting = {
                n: np.concatenate([waiting[n], a]) if waiting else a for n, a in batch.items()
            }
            while _size(waiting) >= step:
                yield self._mine({name: array[:step] for name, array in waiting.items()})
                waiting = {name: array[step:] for name, array in waiting.items()}
        if waiting and _size(waiting):
            yield self._mine(waiting)

    def _samples(self) -> Iterator[Batch]:
        left = self.num_samples
        for batch in self.inner_batches():
            if not self.num_samples:
                yield batch
                continue
            yield {name: array[:left] for name, array in batch.items()}
            left -= min(left, _size(batch))
            if not left:
                return

    def _mine(self, batch: Batch) -> Batch:
        first = self.infeed_host_index * self.batch_size
        weighted = {**batch, 'eval_sample_weights': np.ones(_size(batch), np.float32)}
        own = {name: array[first : first + self.batch_size] for name, array in weighted.items()}
        return pad_batch(own, self.batch_size - _size(own), self)


def _flat(batch: Any, path: str = '') -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(batch, Mapping):
        for name in sorted(batch):
            yield from _flat(batch[name], f'{path}.{name}' if path else name)
    elif isinstance(batch, list | tuple):
        for i, part in enumerate(batch):
            yield from _flat(part, f'{path}[{i}]')
    elif (array := _as_array(batch)).dtype.kind in 'fiub':
        kind = array.dtype.kind
        yield path, array.astype(np.bool_ if kind == 'b' else stored_dtype(array))


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, 'numpy') else value)


def _size(batch: Batch) -> int:
    sizes = {len(array) for array in batch.values() if array.ndim}
    if len(sizes) != 1:
        raise UserError(f'features of a batch have different numbers of examples: {sorted(sizes)}')
    return sizes.pop()


def _is_end(error: Exception) -> bool:
    tensorflow = sys.modules.get('tensorflow')  # A generator that raises its error imported it.
    ends = (StopIteration, EndOfData)
    return isinstance(
        error, ends if tensorflow is None else (*ends, tensorflow.errors.OutOfRangeError)
    )
