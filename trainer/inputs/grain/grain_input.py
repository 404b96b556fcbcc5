import hashlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from trainer.inputs.base import Batch
from trainer.inputs.grain.document_sources import DocumentSource
from trainer.inputs.grain.documents import Documents
from trainer.inputs.permutation import random_words
from trainer.inputs.strides import check_weights
from trainer.inputs.tokens.document_input import DocumentInput
from trainer.inputs.tokens.rows import Document, RowPacker
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.symbolic import extras
from trainer.symbolic.component import require_not_negative
from trainer.symbolic.errors import UserError, prefixed

_THREADS = 4
_READ_AHEAD = 64


class Encode:
    """Encodes a document as token ids; each process loads the vocabulary itself.

    The ids are returned as bytes: Grain sends each array in its own shared memory, which it does
    not always free.
    """

    def __init__(self, vocabulary: str) -> None:
        self._vocabulary = vocabulary

    def __call__(self, text: str) -> bytes:
        vocabulary = vocabulary_at(self._vocabulary)
        return np.append(vocabulary.encode(text), np.int32(vocabulary.eos_id)).tobytes()


class GrainInput(DocumentInput):
    """Documents of several sources, mixed, shuffled and cut into rows.

    With `packing`, rows are filled with documents one after another, cut where a row ends. Without,
    each document is cut into its own rows.

    In training, each epoch shuffles the documents of each source, and each host reads its own
    documents; Grain mixes the sources, document by document. The rows do not depend on the number
    of worker processes. A position is the number of a document and an offset in it.

    Attributes:
        sources: document sources by name.
        weights: in training, the share of each source in the documents, by the same names; empty
            for shares by the number of documents. They need not add up to 1. With other weights, a
            resumed run repeats some documents and misses others; `MixtureInput` allows changes.
        shuffle_window: shuffles only within this many neighbouring documents, for sources with slow
            random access; 0 for all of them.
        num_workers: processes that read and encode training data; 0 for threads of this process.
    """

    sources: dict[str, DocumentSource]
    weights: dict[str, float] = {}
    shuffle_window: int = 0
    num_workers: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._by_name: dict[str, Documents] = {}
        self._open: Any = None  # Grain's iterator, where there is one.
        self._rows: RowPacker[int] | None = None
        self._go_to(0, 0)

    def check(self) -> None:
        super().check()
        if not self.sources:
            raise ValueError('sources must name at least one source')
        require_not_negative(self, 'shuffle_window', 'num_workers')
        if not self.weights:
            return
        if not self.is_training:
            raise ValueError('weights are only for training; evaluation reads everything once')
        check_weights(self.weights, 'sources', self.sources)

    def documents(self) -> dict[str, Documents]:
        """The documents by source, names sorted; raises UserError if one has none."""
        for name in sorted(self.sources) if not self._by_name else []:
            with prefixed(f'sources.{name}'):
                self._by_name[name] = self.sources[name].documents()
                if not len(self._by_name[name]):
                    raise UserError('its files have no document')
        return self._by_name

    def prepare(self) -> None:
        extras.require('grain', 'GrainInput', 'grain')
        self._vocabulary()
        self.documents()

    def fingerprint(self) -> str:
        names = [f'{name} {found.fingerprint}' for name, found in self.documents().items()]
        return hashlib.sha256('\n'.join([self.vocabulary_name(), *names]).encode()).hexdigest()

    def get_next(self) -> Batch:
        if self._rows is None:
            documents = self._encoded_from(self._start[0])
            self._rows = RowPacker(documents, *self._start, self.sequence_length, self.packing)
        return self._take_batch(self._rows)

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

    def _here(self) -> tuple[int, int]:
        return self._start if self._rows is None else (self._rows.place, self._rows.offset)

    def _go_to(self, document: int, offset: int) -> None:
        if self._open is not None:
            self._open.close()  # Ends threads and worker processes.
        self._open = None
        self._start = (document, offset)
        self._rows = None

    def _encoded_from(self, first: int) -> Iterator[Document[int]]:
        grain = importlib.import_module('grain')
        dataset = self._mixed() if self.is_training else self._all()
        dataset = dataset.map(Encode(self.vocabulary))[first:].to_iter_dataset(
            grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_READ_AHEAD)
        )
        if self.is_training and self.num_workers:
            if not flags.FLAGS.is_parsed():  # Outside of a command. Grain's workers need its flags.
                flags.FLAGS.mark_as_parsed()
            options = grain.MultiprocessingOptions(
                self.num_workers, per_worker_buffer_size=_READ_AHEAD
            )
            dataset = dataset.mp_prefetch(options)
        self._open = iter(dataset)
        for number, encoded in enumerate(self._open, first):
            yield Document(number, number + 1, np.frombuffer(encoded, np.int32))

    def _mixed(self) -> Any:
        """The training documents of this host: an infinite Grain dataset."""
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
        # The seed depends on the name, so that other sources do not affect this one.
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
