import functools
import glob
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from trainer.inputs.base import Batch, Input
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio.seqio_input import SeqIOInput
from trainer.inputs.text.json_shards import JsonShardsInput
from trainer.inputs.tokens.document_input import DocumentInput
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.runtime.data_paths import data_path, find
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

_ENVIRONMENT = ('C4_DATA_DIR', 'TFDS_DATA_DIR')


class C4Input(DocumentInput):
    """Colossal Clean Crawled Corpus (Raffel et al. 2020), English.

    The content of `data_dir` selects the reader:

    - a prepared TFDS directory (`c4/en/<version>`), read by SeqIO: shuffled, and packed without
      cutting an example in two;
    - the published shards (`c4-train.00000-of-01024.json.gz` …, also in `en/` or `c4/en/`), or some
      of them, read in Python, without TensorFlow: see `JsonShardsInput`.

    Documents longer than a row are cut into rows, not cut off. Unpacked evaluation yields the
    same rows with both readers.

    Attributes:
        split: 'train' or 'validation'.
        data_dir: the directory of C4; '' searches $C4_DATA_DIR, $TFDS_DATA_DIR and
            ~/tensorflow_datasets. Published shards may be in a bucket (`gs://…`, `s3://…`).
        version: of the TFDS directory. Today's TFDS can read 3.0.1, but only build 3.1.0.
        num_documents: evaluates only on this many documents; 0 for all 364,868.
    """

    split: Literal['train', 'validation']
    data_dir: str = ''
    version: str = '3.0.1'
    num_documents: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._reader: Input | None = None

    def check(self) -> None:
        super().check()
        if self.num_documents and self.is_training:
            raise ValueError('num_documents is only for evaluation; training reads all documents')

    def reader(self) -> Input:
        """The input that reads the data; raises UserError if C4 was not found."""
        if self._reader is None:
            self._reader = self._find_reader()
        return self._reader

    @property
    def positions_are_global(self) -> bool:
        return self.reader().positions_are_global

    def prepare(self) -> None:
        self._vocabulary()
        self.reader().prepare()

    def fingerprint(self) -> str:
        return self.reader().fingerprint()

    def get_next(self) -> Batch:
        return self.reader().get_next()

    def reset(self) -> None:
        self.reader().reset()

    def get_position(self) -> dict[str, Any]:
        return self.reader().get_position()

    def set_position(self, position: dict[str, Any]) -> None:
        self.reader().set_position(position)

    def _find_reader(self) -> Input:
        places = self._places()
        for place in places:
            for prepared in (place / 'c4/en' / self.version, place):
                if _is_prepared(prepared):
                    return self._prepared_reader(prepared)
            for folder in (place, place / 'en', place / 'c4/en'):
                name = glob.escape(str(folder)) if isinstance(folder, Path) else folder
                if shards := find(f'{name}/c4-{self.split}.*.json.gz'):
                    return self._shards_reader(shards)
        raise UserError(self._not_found(places))

    def _places(self) -> list[JobPath]:
        if self.data_dir:
            return [data_path(self.data_dir)]
        named = [data_path(os.environ[name]) for name in _ENVIRONMENT if os.environ.get(name)]
        return [*named, data_path('~/tensorflow_datasets')]

    def _not_found(self, places: list[JobPath]) -> str:
        looked = ', '.join(map(str, places))
        if not self.data_dir:
            unset = [f'${name}' for name in _ENVIRONMENT if not os.environ.get(name)]
            looked += f' ({" and ".join(unset)} not set)' if unset else ''
        versions = sorted({found.name for place in places for found in place.glob('c4/en/*.*.*')})
        other = f' There is version {" and ".join(versions)}.' if versions else ''
        set_all = ' '.join(f'{setting}=DIR' for setting in self.settings('data_dir'))
        return (
            f'C4 ({self.split}) not found. Looked in {looked} for a prepared TFDS directory, '
            f'c4/en/{self.version}, and for the published shards, c4-{self.split}.*.json.gz.'
            f'{other} Point at it with --set {set_all}, or with C4_DATA_DIR=DIR in the '
            f'environment; {self.settings("version")[0]} chooses the TFDS version.'
        )

    def _shards_reader(self, shards: list[JobPath]) -> Input:
        return JsonShardsInput(
            **self._shared(),
            paths=[str(shard) for shard in shards],
            sequence_length=self.sequence_length,
            vocabulary=self.vocabulary,
            num_documents=self.num_documents,
        )

    def _prepared_reader(self, directory: JobPath) -> Input:
        return SeqIOInput(
            **self._shared(),
            mixture_or_task=register_task(str(directory), self.vocabulary, self.num_documents),
            split=self.split,
            task_feature_lengths={'targets': self.sequence_length},
        )

    def _shared(self) -> dict[str, Any]:
        return {
            'batch_size': self.batch_size,
            'is_training': self.is_training,
            'num_infeed_hosts': self.num_infeed_hosts,
            'infeed_host_index': self.infeed_host_index,
            'packing': self.packing,
            'input_random_seed': self.input_random_seed,
        }


def _is_prepared(directory: JobPath) -> bool:
    found = find(directory / 'dataset_info.json')
    return bool(found) and json.loads(found[0].read_text())['name'] == 'c4'


@functools.cache
def register_task(directory: str, vocabulary: str = '', num_documents: int = 0) -> str:
    """Registers English C4, read from a prepared TFDS directory, as a SeqIO task.

    Args:
        directory: such as `/data/c4/en/3.0.1`.
        vocabulary: path of a SentencePiece model; '' for bytes.
        num_documents: takes only this many documents of each split; 0 for all.

    Returns:
        The name of the task.
    """
    _, tfds, seqio = libraries()
    settings = f'{directory} {vocabulary} {num_documents}'
    name = f'c4_en_{hashlib.sha256(settings.encode()).hexdigest()[:16]}'
    targets = seqio.Feature(vocabulary_at(vocabulary).for_seqio(), add_eos=True)
    splits = {
        # TFDS refuses to take the first ten of nine.
        split: f'{split}[:{min(num_documents, info.num_examples)}]' if num_documents else split
        for split, info in tfds.builder_from_directory(directory).info.splits.items()
        if info.num_examples
    }
    seqio.TaskRegistry.add(
        name,
        source=seqio.TfdsDataSource(tfds_data_dir=directory, splits=splits, read_only=True),
        preprocessors=[
            functools.partial(seqio.preprocessors.rekey, key_map={'targets': 'text'}),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
            _cut_into_rows,
        ],
        output_features={'targets': targets},
    )
    return name


def _cut_into_rows(dataset: Any, sequence_length: dict[str, int]) -> Any:
    tf = libraries().tf
    length = sequence_length['targets']

    def rows(document: dict[str, Any]) -> Any:
        starts = tf.range(0, tf.size(document['targets']), length)
        return {'targets': tf.RaggedTensor.from_row_starts(document['targets'], starts)}

    def dense(row: dict[str, Any]) -> Any:
        return {'targets': tf.convert_to_tensor(row['targets'])}

    return dataset.map(rows, num_parallel_calls=tf.data.AUTOTUNE).unbatch().map(dense)
