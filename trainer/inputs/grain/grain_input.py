"""Language model batches out of documents, read by Grain."""

import hashlib
import importlib
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import flags

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.grain.document_sources import DocumentSource
from trainer.inputs.grain.documents import Documents
from trainer.inputs.permutation import random_words
from trainer.inputs.tokens.language import batch_of_segments, language_spec
from trainer.inputs.tokens.rows import Document, Rows
from trainer.inputs.tokens.vocabulary import Vocabulary, vocabulary_at
from trainer.symbolic.errors import UserError

_THREADS = 4
_READ_AHEAD = 64


class Encode:
    """Makes token ids of a document, in whatever process: the vocabulary is loaded there.

    As bytes: each array would be sent in a shared memory of its own, which Grain does not always
    give back.
    """

    def __init__(self, vocabulary: str) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> bytes:
        vocabulary = vocabulary_at(self._vocabulary)
        return np.append(vocabulary.encode(text), np.int32(vocabulary.eos_id)).tobytes()


class GrainInput(Input):
    """Documents of several sources, mixed, shuffled, cut into rows.

    A document ends with the vocabulary's end id. Rows are filled with documents one after another,
    cut where a row ends (`packing`), or hold one document each, cut into rows. `ids` are the
    labels shifted by one, with 0 before the first label of each segment.

    In training the documents of each source are shuffled anew in each epoch, and each host reads
    documents of its own; Grain mixes the sources, document by document. Which rows come is a
    function of the fields alone: the number of worker processes changes nothing. A position is the
    number of a document and a place in it. In evaluation all hosts read everything, in order, and
    take their rows in turn, so that they end together.

    Attributes:
        sources: where documents come from, by name.
        sequence_length: tokens in a row.
        weights: in training, the share of each source in the documents, by the same names; empty
            to read each as often as it has documents. They need not add up to 1. A run that
            resumes with other weights reads other documents twice and misses some: `MixtureInput`
            mixes inputs whose weights may change.
        vocabulary: path of a SentencePiece model; '' for bytes.
        packing: several documents to a row, with `segment_ids` and `segment_pos`.
        shuffle_window: shuffle only within so many neighbouring documents, for sources that are
            slow to read in any order; 0 for all of them.
        input_random_seed: draws the order of the documents. Not used in evaluation.
        num_workers: processes that read and encode training data; 0 for threads of this process.
    """

    sources: dict[str, DocumentSource]
    sequence_length: int
    weights: dict[str, float] = {}
    vocabulary: str = ''
    packing: bool = False
    shuffle_window: int = 0
    input_random_seed: int = 0
    num_workers: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._by_name: dict[str, Documents] = {}
        self._open: Any = None  # Grain's iterator, where there is one.
        self._rows: Rows[int] | None = None
        self._go_to(0, 0)

    def check(self) -> None:
        super().check()
        if self.sequence_length < 1:
            raise ValueError(f'sequence_length must be at least 1: {self.sequence_length}')
        if not self.sources:
            raise ValueError('sources must name at least one source')
        for name in ('shuffle_window', 'num_workers'):
            if self.sym_getattr(name) < 0:
                raise ValueError(f'{name} must not be negative: {self.sym_getattr(name)}')
        if not self.weights:
            return
        if not self.is_training:
            raise ValueError('weights are for training; evaluation reads everything once')
        if set(self.weights) != set(self.sources):
            raise ValueError(
                f'weights must have the names of sources, {sorted(self.sources)}: '
                f'{sorted(self.weights)}'
            )
        for name, weight in self.weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f'weights.{name} must be at least 0 and finite: {weight}')
        if not any(self.weights.values()):
            raise ValueError('weights must not all be zero')

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocabulary().vocab_size

    def vocabulary_name(self) -> str:
        return self._vocabulary().fingerprint

    def documents(self) -> dict[str, Documents]:
        """The documents of each source, by sorted names.

        Raises:
            UserError: a source has none.
        """
        for name in sorted(self.sources) if not self._by_name else []:
            try:
                self._by_name[name] = self.sources[name].documents()
            except UserError as error:
                raise UserError(f'sources.{name}: {error}') from error
            if not len(self._by_name[name]):
                raise UserError(f'sources.{name}: there is no document in its files')
        return self._by_name

    @property
    def positions_are_global(self) -> bool:
        return not self.is_training  # Training reads the documents of this host alone.

    def prepare(self) -> None:
        self._vocabulary()
        self.documents()

    def fingerprint(self) -> str:
        names = [f'{name} {found.fingerprint}' for name, found in self.documents().items()]
        return hashlib.sha256('\n'.join([self.vocabulary_name(), *names]).encode()).hexdigest()

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length, packed=self.packing)

    def get_next(self) -> Batch:
        if self._rows is None:
            self._rows = self._rows_from(*self._start)
        if self.is_training:
            rows = self._rows.take(self.batch_size)
        else:
            step = self._rows.take(self.batch_size * self.num_hosts)
            if not step:
                raise EndOfData
            first = self.infeed_host_index * self.batch_size
            rows = step[first : first + self.batch_size]
        return batch_of_segments(rows, self.element_spec(), self._vocabulary().bytes_per_id)

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return self._vocabulary().decode(ids)

    def reset(self) -> None:
        self._go_to(0, 0)

    def close(self) -> None:
        self._go_to(*self._here())

    def get_position(self) -> dict[str, Any]:
        document, offset = self._here()
        return {'document': document, 'offset': offset, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._go_to(int(position['document']), int(position['offset']))

    def _vocabulary(self) -> Vocabulary:
        return vocabulary_at(self.vocabulary)

    def _here(self) -> tuple[int, int]:
        return self._start if self._rows is None else (self._rows.place, self._rows.offset)

    def _go_to(self, document: int, offset: int) -> None:
        if self._open is not None:
            self._open.close()  # Ends threads and worker processes.
        self._open = None
        self._start = (document, offset)
        self._rows = None

    def _rows_from(self, document: int, offset: int) -> Rows[int]:
        documents = self._encoded_from(document)
        return Rows(documents, document, offset, self.sequence_length, self.packing)

    def _encoded_from(self, first: int) -> Iterator[Document[int]]:
        grain = importlib.import_module('grain')
        dataset = self._mixed() if self.is_training else self._all()
        dataset = dataset.map(Encode(self.vocabulary))[first:].to_iter_dataset(
            grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_READ_AHEAD)
        )
        if self.is_training and self.num_workers:
            if not flags.FLAGS.is_parsed():  # Not in a command. Grain's workers ask for its flags.
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(
                self.num_workers, per_worker_buffer_size=_READ_AHEAD
            )
            dataset = dataset.mp_prefetch(options)
        self._open = iter(dataset)
        for number, encoded in enumerate(self._open, first):
            yield Document(number, number + 1, np.frombuffer(encoded, np.int32))

    def _mixed(self) -> Any:
        """This host's training documents: a Grain dataset without end."""
        grain = importlib.import_module('grain')
        documents = self.documents()
        weights = {name: self.weights.get(name, len(found)) for name, found in documents.items()}
        parts = {
            name: self._shuffled(name)[self.infeed_host_index :: self.num_hosts]
            for name in documents
            if weights[name]
        }
        return grain.MapDataset.mix(list(parts.values()), [float(weights[name]) for name in parts])

    def _shuffled(self, name: str) -> Any:
        grain = importlib.import_module('grain')
        dataset = grain.MapDataset.source(self.documents()[name])
        # By the name, so that another source changes nothing for this one.
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
        seed = int(random_words(1, self.input_random_seed, number)[0] % 2**32)
        if not self.shuffle_window:
            return dataset.shuffle(seed).repeat()
        return grain.experimental.WindowShuffleMapDataset(
            dataset.repeat(), window_size=self.shuffle_window, seed=seed
        )

    def _all(self) -> Any:
        grain = importlib.import_module('grain')
        return grain.MapDataset.concatenate(
            [grain.MapDataset.source(found) for found in self.documents().values()]
        )
