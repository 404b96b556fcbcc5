"""Language model batches over compressed JSON lines, such as C4's published shards."""

import glob
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.permutation import Permutation
from trainer.inputs.text.json_lines import summary, texts
from trainer.inputs.tokens.language import batch_of_segments, language_spec
from trainer.inputs.tokens.rows import Document, Rows
from trainer.inputs.tokens.vocabulary import Vocabulary, vocabulary_at
from trainer.symbolic.errors import UserError


class Place(NamedTuple):
    """The next document to be read.

    Attributes:
        epoch: times that all shards have been read.
        shard: shards of this epoch that have been read.
        document: documents (lines) of this shard that have been read.
        read: documents of this epoch that have been read, over all shards.
    """

    epoch: int = 0
    shard: int = 0
    document: int = 0
    read: int = 0

    def after_document(self) -> 'Place':
        """The beginning of the next line."""
        return self._replace(document=self.document + 1, read=self.read + 1)


class JsonShardsInput(Input):
    """Documents out of `*.json.gz` files, one JSON object with a `text` a line.

    Shards are read one after another without TensorFlow; a restored position opens its shard and
    none before. A document ends with the vocabulary's end id. Rows are filled with documents one
    after another, cut where a row ends (`packing`), or hold one document each, cut into rows.
    `ids` are the labels shifted by one, with 0 before the first label of each segment.

    In training each host reads shards of its own, in an order drawn for each epoch; where there
    are fewer shards than hosts, lines of its own. Documents within a shard are not shuffled: C4's
    were before it was published. In evaluation all hosts read everything, in order, and take
    their rows in turn, so that they end together.

    Attributes:
        paths: files or patterns, such as `c4-train.*.json.gz`.
        sequence_length: tokens in a row.
        vocabulary: path of a SentencePiece model; '' for bytes.
        packing: several documents to a row, with `segment_ids` and `segment_pos`.
        input_random_seed: draws the order of the shards. Not used in evaluation.
        num_documents: read only so many documents; 0 for all. For evaluation.
    """

    paths: list[str]
    sequence_length: int
    vocabulary: str = ''
    packing: bool = False
    input_random_seed: int = 0
    num_documents: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._files: list[Path] = []
        self._fingerprint = ''
        self._go_to(Place(), 0)

    def check(self) -> None:
        super().check()
        if self.sequence_length < 1:
            raise ValueError(f'sequence_length must be at least 1: {self.sequence_length}')
        if self.num_documents and self.is_training:
            raise ValueError('num_documents is for evaluation; training reads all documents')

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocabulary().vocab_size

    def vocabulary_name(self) -> str:
        return self._vocabulary().fingerprint

    @property
    def positions_are_global(self) -> bool:
        return not self.is_training  # Training reads the documents of this host alone.

    def prepare(self) -> None:
        self._vocabulary()
        self.fingerprint()

    def fingerprint(self) -> str:
        if not self._fingerprint:
            names = [f'{self.num_documents} {self._vocabulary().fingerprint}']
            names += [summary(file) for file in self.files()]
            self._fingerprint = hashlib.sha256('\n'.join(names).encode()).hexdigest()
        return self._fingerprint

    def files(self) -> list[Path]:
        """The shards, in the order of their names.

        Raises:
            UserError: there are none.
        """
        if not self._files:
            matches = [glob.glob(str(Path(path).expanduser())) for path in self.paths]
            self._files = sorted({Path(name) for names in matches for name in names})
        if not self._files:
            raise UserError(
                f'no shard found for {list(self.paths)}. Set '
                f'{" and ".join(self.settings("paths"))} to *.json.gz files or patterns.'
            )
        return self._files

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length, packed=self.packing)

    def get_next(self) -> Batch:
        if self.is_training:
            return self._batch_of(self._rows.take(self.batch_size))
        rows = self._rows.take(self.batch_size * self.num_hosts)
        if not rows:
            raise EndOfData
        first = self.infeed_host_index * self.batch_size
        return self._batch_of(rows[first : first + self.batch_size])

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return self._vocabulary().decode(ids)

    def reset(self) -> None:
        self._go_to(Place(), 0)

    def get_position(self) -> dict[str, Any]:
        place, offset = self._rows.place, self._rows.offset
        return {**place._asdict(), 'offset': offset, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        place = Place(*(int(position[name]) for name in Place._fields))
        self._go_to(place, int(position['offset']))

    def _vocabulary(self) -> Vocabulary:
        return vocabulary_at(self.vocabulary)

    def _go_to(self, place: Place, offset: int) -> None:
        documents = self._read_from(place)
        self._rows = Rows(documents, place, offset, self.sequence_length, self.packing)

    def _read_from(self, start: Place) -> Iterator[Document[Place]]:
        vocabulary = self._vocabulary()
        for place, text in self._texts_from(start):
            tokens = np.append(vocabulary.encode(text), np.int32(vocabulary.eos_id))
            yield Document(place, place.after_document(), tokens)

    def _texts_from(self, place: Place) -> Iterator[tuple[Place, str]]:
        while True:
            shards = self._shards_of(place.epoch)
            while place.shard < len(shards):
                for line, text in texts(shards[place.shard], place.document):
                    if self.num_documents and place.read == self.num_documents:
                        return
                    if self._is_mine(line):
                        place = place._replace(document=line)
                        yield place, text
                        place = place.after_document()
                place = place._replace(shard=place.shard + 1, document=0)
            if not self.is_training:
                return
            if not place.read:
                raise UserError(f'{shards[0].parent} holds no document for this host')
            place = Place(epoch=place.epoch + 1)

    def _shards_of(self, epoch: int) -> list[Path]:
        """This host's shards, in the order of an epoch."""
        files = self.files()
        if not self.is_training:
            return files
        if not self._shares_shards():
            files = files[self.infeed_host_index :: self.num_hosts]
        order = Permutation(len(files), self.input_random_seed, epoch)(np.arange(len(files)))
        return [files[i] for i in order]

    def _is_mine(self, line: int) -> bool:
        return not self._shares_shards() or line % self.num_hosts == self.infeed_host_index

    def _shares_shards(self) -> bool:
        """Whether hosts read the same shards, but lines of their own."""
        return self.is_training and len(self.files()) < self.num_hosts

    def _batch_of(self, rows: list[list[np.ndarray]]) -> Batch:
        return batch_of_segments(rows, self.element_spec(), self._vocabulary().bytes_per_id)
