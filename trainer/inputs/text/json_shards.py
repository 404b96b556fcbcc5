import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from trainer.inputs.base import Batch
from trainer.inputs.permutation import Permutation
from trainer.inputs.text.json_lines import summary, texts
from trainer.inputs.tokens.document_input import DocumentInput
from trainer.inputs.tokens.rows import Document, RowPacker
from trainer.runtime.data_paths import find
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError


class ShardPosition(NamedTuple):
    """The position of the next document.

    Attributes:
        epoch: number of complete epochs.
        shard: number of complete shards in this epoch.
        document: number of complete documents (lines) in this shard.
        read: number of complete documents in this epoch, over all shards.
    """

    epoch: int = 0
    shard: int = 0
    document: int = 0
    read: int = 0

    def after_document(self) -> 'ShardPosition':
        """The position of the next line."""
        return self._replace(document=self.document + 1, read=self.read + 1)


class JsonShardsInput(DocumentInput):
    """Documents out of `*.json.gz` files with one JSON object with a `text` per line.

    Shards are read one after another without TensorFlow; a restored position opens only its own
    shard. With `packing`, rows are filled with documents one after another, cut where a row ends.
    Without, each document is cut into its own rows.

    In training each host reads its own shards, in an order drawn for each epoch; with fewer shards
    than hosts, its own lines. Documents within a shard are not shuffled: C4's were shuffled before
    publication.

    Attributes:
        paths: files or patterns, such as `c4-train.*.json.gz` or `gs://bucket/c4-train.*.json.gz`.
        num_documents: in evaluation, reads only this many documents; 0 for all.
    """

    paths: list[str]
    num_documents: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._files: list[JobPath] = []
        self._fingerprint = ''
        self._go_to(ShardPosition(), 0)

    def check(self) -> None:
        super().check()
        if self.num_documents and self.is_training:
            raise ValueError('num_documents is only for evaluation; training reads all documents')

    def prepare(self) -> None:
        self._vocabulary()
        self.fingerprint()

    def fingerprint(self) -> str:
        if not self._fingerprint:
            names = [f'{self.num_documents} {self._vocabulary().fingerprint}']
            names += [summary(file) for file in self.files()]
            self._fingerprint = hashlib.sha256('\n'.join(names).encode()).hexdigest()
        return self._fingerprint

    def files(self) -> list[JobPath]:
        """The shards, in the order of their names; raises UserError if no file matches."""
        if not self._files:
            self._files = sorted({file for path in self.paths for file in find(path)})
        if not self._files:
            raise UserError(
                f'no shard found for {list(self.paths)}. Set '
                f'{" and ".join(self.settings("paths"))} to *.json.gz files or patterns.'
            )
        return self._files

    def get_next(self) -> Batch:
        return self._take_batch(self._rows)

    def reset(self) -> None:
        self._go_to(ShardPosition(), 0)

    def get_position(self) -> dict[str, Any]:
        place, offset = self._rows.place, self._rows.offset
        return {**place._asdict(), 'offset': offset, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        place = ShardPosition(*(int(position[name]) for name in ShardPosition._fields))
        self._go_to(place, int(position['offset']))

    def _go_to(self, place: ShardPosition, offset: int) -> None:
        documents = self._read_from(place)
        self._rows = RowPacker(documents, place, offset, self.sequence_length, self.packing)

    def _read_from(self, start: ShardPosition) -> Iterator[Document[ShardPosition]]:
        vocabulary = self._vocabulary()
        for place, text in self._texts_from(start):
            tokens = np.append(vocabulary.encode(text), np.int32(vocabulary.eos_id))
            yield Document(place, place.after_document(), tokens)

    def _texts_from(self, place: ShardPosition) -> Iterator[tuple[ShardPosition, str]]:
        while True:
            shards = self.shards_of(place.epoch)
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
            place = ShardPosition(epoch=place.epoch + 1)

    def shards_of(self, epoch: int) -> list[JobPath]:
        """Returns the files that this host reads in an epoch, in their order."""
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
        return self.is_training and len(self.files()) < self.num_hosts
