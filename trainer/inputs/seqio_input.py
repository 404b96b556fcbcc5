"""Language model batches from any SeqIO task or mixture."""

import contextlib
import functools
import hashlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from trainer.component import key
from trainer.errors import UserError
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.iterator import DatasetIterator
from trainer.inputs.language import language_spec
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio_vocabulary import bytes_per_id, name_of
from trainer.inputs.vocabulary import PAD_ID, ByteVocabulary
from trainer.names import PACKAGES, nearest

_FEATURES = {
    'ids': 'decoder_input_tokens',
    'labels': 'decoder_target_tokens',
    'weights': 'decoder_loss_weights',
}
_PACKED_FEATURES = {'segment_ids': 'decoder_segment_ids', 'segment_pos': 'decoder_positions'}
"""Our features, and what SeqIO's feature converters call them."""

_importable: set[str] = set()


def allow_task_module(name: str) -> None:
    """Lets `SeqIOInput.module` name a module of yours, which is then imported when data is read.

    An experiment may come out of a file, and no file may choose what code runs here. So a module
    outside of this project is imported only if your own code said so, by this or by importing it.
    """
    _importable.add(name)


class SeqIOInput(Input):
    """Batches of a SeqIO task or mixture, converted for a decoder.

    A task with `targets` makes a language model's batches; one with `inputs` too makes batches of
    both in one row, in which the targets alone have weight. Labels of id 0 are padding.

    Training data is shared between hosts by file where there are files enough, else by example,
    and shuffled by SeqIO: files and a buffer of examples. In evaluation every host reads all of
    every task, once and in order, and takes its rows of each global batch; so what is evaluated
    does not depend on the number of hosts, and they end together.

    Attributes:
        mixture_or_task: name in SeqIO's registries.
        split: such as 'train' or 'validation'.
        task_feature_lengths: tokens of each feature, such as {'targets': 512}. Longer examples
            are cut off.
        module: the module that registers the task: part of this project, imported already, or
            named to `allow_task_module`.
        packing: several examples to a row, with `segment_ids` and `segment_pos`.
        shuffle: in training, shuffle. Evaluation never does.
        input_random_seed: draws the order, the mixing, and what random preprocessors do.
    """

    mixture_or_task: str
    split: str
    task_feature_lengths: dict[str, int]
    module: str = ''
    packing: bool = False
    shuffle: bool = True
    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._iterator: DatasetIterator | None = None
        self._bytes_per_id: np.ndarray | None = None
        self._fingerprint = ''

    def check(self) -> None:
        super().check()
        if set(self.task_feature_lengths) not in ({'targets'}, {'inputs', 'targets'}):
            raise ValueError(
                "task_feature_lengths must be of 'targets', or of 'inputs' and 'targets': "
                f'{sorted(self.task_feature_lengths)}'
            )
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise ValueError(f'task_feature_lengths[{name!r}] must be at least 1: {length}')

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self._seqio_vocabulary().vocab_size)

    def vocabulary_name(self) -> str:
        name = name_of(self._seqio_vocabulary())
        ours = ByteVocabulary()
        return ours.fingerprint if name == name_of(ours.for_seqio()) else name

    def prepare(self) -> None:
        splits, features = self._provider().splits, self._provider().output_features
        if self.split not in splits:
            raise UserError(
                f'{self.mixture_or_task} has no split {self.split!r}, it has {sorted(splits)}'
            )
        if missing := set(self.task_feature_lengths) - set(features):
            raise UserError(
                f'{self.mixture_or_task} has no feature {sorted(missing)[0]!r}, which '
                f'task_feature_lengths names; it has {sorted(features)}'
            )
        self._position()

    def fingerprint(self) -> str:
        """Names the tasks, their vocabulary, and their files by name and size."""
        if not self._fingerprint:
            lines = [self.split, name_of(self._seqio_vocabulary())]
            for task in self._tasks():
                lines += [task.name, *map(_name_and_size, task.source.list_shards(self.split))]
            self._fingerprint = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
        return self._fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        length = sum(self.task_feature_lengths.values())
        known = bytes_per_id(self._seqio_vocabulary()) is not None
        return language_spec(self.batch_size, length, packed=self.packing, label_bytes=known)

    def get_next(self) -> Batch:
        iterator = self._position()
        try:
            features = next(iterator)
        except StopIteration:
            if not self.is_training:
                raise EndOfData from None
            raise UserError(f'{self.mixture_or_task}: no example for this host') from None
        rows = {name: self._my_rows(features[seqio]) for name, seqio in self._features().items()}
        batch = {
            **rows,
            # SeqIO leaves the last label of a document standing in front of the padding.
            'ids': rows['ids'] * (rows['labels'] != PAD_ID),
            'weights': rows['weights'].astype(np.float32),
        }
        if self._bytes_per_id is not None:
            batch['label_bytes'] = self._bytes_per_id[batch['labels']] * batch['weights']
        return batch

    def reset(self) -> None:
        if self._iterator is not None:
            self._iterator.reset()

    def get_position(self) -> dict[str, Any]:
        return self._position().get_position() | {'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.refuse_other_data(position)
        self._position().set_position(position)

    def _position(self) -> DatasetIterator:
        if self._iterator is None:
            self._bytes_per_id = bytes_per_id(self._seqio_vocabulary())
            # Building takes part of a second, and an evaluation set is read again and again.
            make = self._dataset if self.is_training else functools.cache(self._dataset)
            try:
                self._iterator = DatasetIterator(make, key(self))
            except ValueError as error:  # SeqIO's way to say that task and settings do not fit.
                raise UserError(f'{self.mixture_or_task}: {error}') from error
        return self._iterator

    def _features(self) -> dict[str, str]:
        return _FEATURES | _PACKED_FEATURES if self.packing else _FEATURES

    def _my_rows(self, rows: np.ndarray) -> np.ndarray:
        """This host's rows of a batch, filled up with zeros, which have weight zero."""
        if self.is_training:
            return rows
        first = self.infeed_host_index * self.batch_size
        rows = rows[first : first + self.batch_size]
        return np.pad(rows, ((0, self.batch_size - len(rows)), (0, 0)))

    def _dataset(self) -> Any:
        tf = libraries().tf
        with _without_caches():
            examples = self._training_examples() if self.is_training else self._all_examples()
        lengths = dict(self.task_feature_lengths)
        examples = examples.map(lambda example: {name: example[name] for name in lengths})
        dataset = self._converter()(examples, lengths)
        if self.is_training:
            dataset = dataset.batch(self.batch_size, drop_remainder=True)
        else:
            dataset = dataset.batch(self.batch_size * self.num_hosts)
        options = tf.data.Options()
        options.deterministic = True
        # Measured: no slower without, and an iterator goes at once, not in half a second.
        options.autotune.enabled = False
        return dataset.prefetch(2).with_options(options)

    def _training_examples(self) -> Any:
        seqio = libraries().seqio
        return self._provider().get_dataset(
            dict(self.task_feature_lengths),
            split=self.split,
            shuffle=self.shuffle,
            seed=self.input_random_seed,
            shard_info=seqio.ShardInfo(self.infeed_host_index, self.num_hosts),
            num_epochs=None,
            try_in_mem_cache=False,
        )

    def _all_examples(self) -> Any:
        # A mixture would stop as soon as the first of its tasks ends.
        datasets = [
            task.get_dataset(
                dict(self.task_feature_lengths),
                split=self.split,
                shuffle=False,
                seed=self.input_random_seed,
                try_in_mem_cache=False,
            )
            for task in self._tasks()
        ]
        return functools.reduce(lambda before, after: before.concatenate(after), datasets)

    def _converter(self) -> Any:
        seqio = libraries().seqio
        with_inputs = 'inputs' in self.task_feature_lengths
        kind = seqio.PrefixLMFeatureConverter if with_inputs else seqio.LMFeatureConverter
        # Tasks cut examples to length themselves; to check it takes a third of the time to start.
        return kind(pack=self.packing, apply_length_check=False)

    def _provider(self) -> Any:
        """The task or mixture."""
        seqio = libraries().seqio
        self._import_module()
        try:
            return seqio.get_mixture_or_task(self.mixture_or_task)
        except ValueError:
            names = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
            setting = ' and '.join(self.settings('module'))
            raise UserError(
                f'no SeqIO task or mixture is called {self.mixture_or_task!r}. '
                f'{nearest(self.mixture_or_task, names)} {setting} names the module that '
                'registers it.'
            ) from None

    def _tasks(self) -> list[Any]:
        tasks = libraries().seqio.get_subtasks(self._provider())
        return [task for task in tasks if self.split in task.splits]

    def _seqio_vocabulary(self) -> Any:
        return self._provider().output_features['targets'].vocabulary

    def _import_module(self) -> None:
        name = self.module
        if not name or name in sys.modules:
            return
        if name not in _importable and name.partition('.')[0] not in PACKAGES:
            raise UserError(
                f'module {name!r} is not imported, because an experiment may come out of a file. '
                f'Import it where your experiment is defined, or call there '
                f'trainer.inputs.allow_task_module({name!r}).'
            )
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UserError(f'module {name!r} cannot be imported: {error}') from error


@contextlib.contextmanager
def _without_caches() -> Iterator[None]:
    # TFDS keeps small data sets in memory, and then in every saved position.
    tfds, utils = libraries().tfds, libraries().seqio.utils
    before = getattr(utils, '_TFDS_DATA_READ_CONFIG_OVERRIDE', None)
    utils.set_tfds_read_config_override(before or tfds.ReadConfig(try_autocache=False))
    try:
        yield
    finally:
        utils.set_tfds_read_config_override(before)


def _name_and_size(path: str) -> str:
    """A file by name and size, wherever it lies; what is not a file, by its name."""
    gfile = libraries().tf.io.gfile
    size = gfile.stat(path).length if gfile.exists(path) else ''
    return f'{path.rpartition("/")[2]} {size}'
