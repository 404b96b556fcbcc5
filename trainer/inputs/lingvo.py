"""Batches of anything that has the interface of Lingvo's input generators.

Lingvo itself is not needed: what makes batches is any object with

    GetPreprocessedInputBatch()    the next batch: a dict, nested or not, of arrays or tensors whose
                                   first axis is the examples. StopIteration, or TensorFlow's
                                   OutOfRangeError, where there is none.
    IdsToStrings(ids, lengths)     the texts of rows of ids; it may be missing.

An experiment may come out of a file, and no file may choose what code runs here: it can name a
function that makes such an object only if your own code has registered it.

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

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.symbolic.errors import UserError
from trainer.symbolic.names import nearest


class Generator(Protocol):
    """What makes batches."""

    def GetPreprocessedInputBatch(self) -> Mapping[str, Any]: ...


F = TypeVar('F', bound=Callable[['LingvoInputAdaptor'], Generator])

_factories: dict[str, Callable[['LingvoInputAdaptor'], Generator]] = {}


def lingvo_generator(factory: F) -> F:
    """Registers a function that makes a generator, under its dotted path.

    It is called with the input that wants the generator, and anew for each `reset`.
    """
    _factories[f'{factory.__module__}.{factory.__qualname__}'] = factory
    return factory


class LingvoInputAdaptor(Input):
    """The batches of a generator as they come.

    Nested features get names with dots, `src.ids`; what is not made of numbers is left out. The
    generator shares the data between hosts. It is asked again from its beginning for what was read
    before a restart, so it must make the same batches again for a resumed run to go on exactly.

    Attributes:
        generator: the dotted path of a registered function: see `lingvo_generator`.
        num_samples: in evaluation, end after so many examples of all hosts together, for a
            generator that goes on for ever; 0 to end where it ends.
        input_random_seed: for the generator.
    """

    generator: str
    num_samples: int = 0
    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._spec: dict[str, jax.ShapeDtypeStruct] = {}
        self._ahead: Batch | None = None  # Made, and not yet read.
        self._begin()

    def check(self) -> None:
        super().check()
        if self.num_samples < 0:
            raise ValueError(f'num_samples must not be negative: {self.num_samples}')
        if self.num_samples and self.is_training:
            raise ValueError('num_samples is for evaluation; training goes on for ever')

    def prepare(self) -> None:
        self.element_spec()

    def fingerprint(self) -> str:
        return f'{self.generator} {self.num_samples}'

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        if not self._spec:
            try:
                self._ahead = self._made()  # What batches look like, only a batch can tell.
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
        """The batches of this host from the first on, out of those of the generator."""
        for batch in self.inner_batches():
            size = _size(batch)
            if size != self.batch_size:
                raise UserError(
                    f'{self.generator} makes batches of {size} examples, and batch_size is '
                    f'{self.batch_size}: set it so, or use LingvoInputAdaptorNewBatchSize'
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
            raise UserError(f'{self.generator}: it ended, and training data must go on for ever')
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
    """The batches of a generator, cut into smaller ones of `batch_size` examples.

    For generators that pack a fixed number of sequences at a time, and pack better with more. The
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
    """The examples of a generator once, shared between the hosts, the last batch filled up.

    The generator makes all examples on every host, in the same order, in batches of any size; each
    host takes its rows of each step, so they end together. What a batch is filled up with is
    zeros, also in `eval_sample_weights` [B], which is 1 elsewhere.
    """

    def check(self) -> None:
        super().check()
        if self.is_training:
            raise ValueError('is_training must be false: LingvoEvalAdaptor is for evaluation')
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
        weights = np.ones(_size(batch), np.float32)
        found = {}
        for name, array in {**batch, 'eval_sample_weights': weights}.items():
            rows = array[first : first + self.batch_size]
            missing = self.batch_size - len(rows)
            found[name] = np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
        return found


def _flat(batch: Any, path: str = '') -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(batch, Mapping):
        for name in sorted(batch):
            yield from _flat(batch[name], f'{path}.{name}' if path else name)
    elif isinstance(batch, list | tuple):
        for i, part in enumerate(batch):
            yield from _flat(part, f'{path}[{i}]')
    elif (array := _as_array(batch)).dtype.kind in 'fiub':
        kinds = {'f': np.float32, 'i': np.int32, 'u': np.int32, 'b': np.bool_}
        yield path, array.astype(kinds[array.dtype.kind])


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(value.numpy() if hasattr(value, 'numpy') else value)


def _size(batch: Batch) -> int:
    sizes = {len(array) for array in batch.values() if array.ndim}
    if len(sizes) != 1:
        raise UserError(f'features of a batch have different numbers of examples: {sorted(sizes)}')
    return sizes.pop()


def _is_end(error: Exception) -> bool:
    tensorflow = sys.modules.get('tensorflow')  # Whoever raises its error has imported it.
    ends = (StopIteration, EndOfData)
    return isinstance(
        error, ends if tensorflow is None else (*ends, tensorflow.errors.OutOfRangeError)
    )
