"""C4, English: from a prepared TFDS directory, or from its published shards."""

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from trainer.inputs.base import Batch, Input
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio.seqio_input import SeqIOInput
from trainer.inputs.text.json_shards import JsonShardsInput
from trainer.inputs.tokens.language import language_spec
from trainer.inputs.tokens.vocabulary import Vocabulary, vocabulary_at
from trainer.symbolic.errors import UserError

_ENVIRONMENT = ('C4_DATA_DIR', 'TFDS_DATA_DIR')


class C4Input(Input):
    """Colossal Clean Crawled Corpus (Raffel et al. 2020), English.

    What lies in `data_dir` decides how it is read:

    - a prepared TFDS directory (`c4/en/<version>`), by SeqIO: shuffled, and packed without
      cutting an example in two;
    - the published shards (`c4-train.00000-of-01024.json.gz` …, also in `en/` or `c4/en/`), in
      Python, without TensorFlow: see `JsonShardsInput`. Some of the shards will do.

    Documents longer than a row are cut into rows, not cut off. Unpacked evaluation yields the
    same rows either way.

    Attributes:
        split: 'train' or 'validation'.
        sequence_length: tokens in a row.
        data_dir: where C4 is; '' to look in $C4_DATA_DIR, $TFDS_DATA_DIR and
            ~/tensorflow_datasets.
        version: of the TFDS directory. Today's TFDS can read 3.0.1, but only build 3.1.0.
        vocabulary: path of a SentencePiece model; '' for bytes.
        packing: several documents to a row.
        input_random_seed: draws the order of training data.
        num_documents: evaluate on the first so many documents only; 0 for all 364,868.
    """

    split: Literal['train', 'validation']
    sequence_length: int
    data_dir: str = ''
    version: str = '3.0.1'
    vocabulary: str = ''
    packing: bool = False
    input_random_seed: int = 0
    num_documents: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._reader: Input | None = None

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

    def reader(self) -> Input:
        """The input that reads what is there.

        Raises:
            UserError: C4 is nowhere to be found.
        """
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

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return language_spec(self.batch_size, self.sequence_length, packed=self.packing)

    def get_next(self) -> Batch:
        return self.reader().get_next()

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return self._vocabulary().decode(ids)

    def reset(self) -> None:
        self.reader().reset()

    def get_position(self) -> dict[str, Any]:
        return self.reader().get_position()

    def set_position(self, position: dict[str, Any]) -> None:
        self.reader().set_position(position)

    def _vocabulary(self) -> Vocabulary:
        return vocabulary_at(self.vocabulary)

    def _find_reader(self) -> Input:
        places = self._places()
        for place in places:
            for prepared in (place / 'c4/en' / self.version, place):
                if _is_prepared(prepared):
                    return self._prepared_reader(prepared)
            for folder in (place, place / 'en', place / 'c4/en'):
                if shards := sorted(folder.glob(f'c4-{self.split}.*.json.gz')):
                    return self._shards_reader(shards)
        raise UserError(self._not_found(places))

    def _places(self) -> list[Path]:
        if self.data_dir:
            return [Path(self.data_dir).expanduser()]
        named = [Path(os.environ[name]) for name in _ENVIRONMENT if os.environ.get(name)]
        return [*named, Path('~/tensorflow_datasets').expanduser()]

    def _not_found(self, places: list[Path]) -> str:
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

    def _shards_reader(self, shards: list[Path]) -> Input:
        return JsonShardsInput(
            **self._shared(),
            paths=[str(shard) for shard in shards],
            sequence_length=self.sequence_length,
            vocabulary=self.vocabulary,
            num_documents=self.num_documents,
        )

    def _prepared_reader(self, directory: Path) -> Input:
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


def _is_prepared(directory: Path) -> bool:
    """Whether a directory holds C4 as TFDS prepares it, and not some other data set."""
    info = directory / 'dataset_info.json'
    return info.is_file() and json.loads(info.read_text())['name'] == 'c4'


@functools.cache
def register_task(directory: str, vocabulary: str = '', num_documents: int = 0) -> str:
    """Registers English C4, read from a prepared TFDS directory, as a SeqIO task.

    Args:
        directory: such as `/data/c4/en/3.0.1`.
        vocabulary: path of a SentencePiece model; '' for bytes.
        num_documents: take only the first so many documents of each split; 0 for all.

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
    """Cuts each document into examples of at most `sequence_length` tokens."""
    tf = libraries().tf
    length = sequence_length['targets']

    def rows(document: dict[str, Any]) -> Any:
        starts = tf.range(0, tf.size(document['targets']), length)
        return {'targets': tf.RaggedTensor.from_row_starts(document['targets'], starts)}

    def dense(row: dict[str, Any]) -> Any:
        return {'targets': tf.convert_to_tensor(row['targets'])}

    return dataset.map(rows, num_parallel_calls=tf.data.AUTOTUNE).unbatch().map(dense)
