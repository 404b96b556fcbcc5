import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, EndOfData
from trainer.inputs.libraries import libraries
from trainer.inputs.seqio import tasks as seqio_tasks
from trainer.inputs.seqio.features import FeatureConverter, LanguageModelFeatures
from trainer.inputs.seqio.iterator import DatasetIterator
from trainer.inputs.seqio.metrics import Prediction, TaskMetrics
from trainer.inputs.seqio.seqio_vocabulary import bytes_per_id, name_of, text
from trainer.inputs.seqio.source import SeqIOSource
from trainer.inputs.tokens.vocabulary import vocabulary_at
from trainer.symbolic.component import key, require_positive
from trainer.symbolic.errors import UserError


class SeqIOInput(SeqIOSource):
    """Batches of a SeqIO task or mixture, for a decoder, or for an encoder and a decoder.

    `feature_converter` defines the features. Labels of id 0 are padding.

    Training data are divided between hosts by file if there are enough files, else by example.
    SeqIO shuffles files and a buffer of examples. In evaluation every host reads all tasks, once
    and in order, and takes its rows of each global batch. So the evaluated examples do not depend
    on the number of hosts, and the hosts end together.

    Attributes:
        feature_converter: converts features of the task to features of the model.
        packing: puts several examples into a row, with `segment_ids` and `segment_pos`.
        shuffle: None shuffles in training. Evaluation never shuffles.
        input_random_seed: seed of shuffling, mixing and random preprocessors.
        trim_output_features: cuts examples to `task_feature_lengths`; otherwise a longer example is
            an error.
        use_cached: reads the cache that `seqio_cache_tasks` has written.
        overridden_vocab: path of a SentencePiece model that decodes ids, instead of the vocabulary
            of the task; '' for that.
        eval_num_examples: evaluates on this many examples; None for all.
        eval_auto_pad: pads the last batch with examples of weight zero; otherwise an incomplete
            batch is left out.
        example_ids: in unpacked evaluation, adds `example_ids` int32 [B], the number of the example
            in the set, from 1; 0 for padding. They enable the task's own `metric_fns`: on texts for
            `decode_inputs`, on the log-likelihood of the targets for `eval_inputs`.
    """

    feature_converter: FeatureConverter = LanguageModelFeatures()
    packing: bool = False
    shuffle: bool | None = None
    input_random_seed: int = 0
    trim_output_features: bool = True
    use_cached: bool = False
    overridden_vocab: str = ''
    eval_num_examples: int | None = None
    eval_auto_pad: bool = True
    example_ids: bool = False

    def _on_bound(self) -> None:
        super()._on_bound()
        self._iterator: DatasetIterator | None = None
        self._bytes_per_id: np.ndarray | None = None
        self._fingerprint = ''

    def check(self) -> None:
        super().check()
        known = self.feature_converter.required()
        if set(self.task_feature_lengths) not in known:
            choices = ', or of '.join(' and '.join(map(repr, sorted(names))) for names in known)
            raise ValueError(
                f'task_feature_lengths must be of {choices}: {sorted(self.task_feature_lengths)}'
            )
        for name, length in self.task_feature_lengths.items():
            if length < 1:
                raise ValueError(f'task_feature_lengths[{name!r}] must be at least 1: {length}')
        if self.is_training and (self.eval_num_examples is not None or self.example_ids):
            raise ValueError('eval_num_examples and example_ids are only for evaluation')
        require_positive(self, 'eval_num_examples')
        if self.example_ids and self.packing:
            raise ValueError('example_ids cannot name the examples of packed rows')
        if self.shuffle and not self.is_training:
            raise ValueError('shuffle is only for training; evaluation reads in order')

    def prepare(self) -> None:
        splits, features = self._provider().splits, self._provider().output_features
        if self.split not in splits:
            raise UserError(
                f'{self.mixture_or_task} has no split {self.split!r}; it has {sorted(splits)}'
            )
        if missing := set(self.task_feature_lengths) - set(features):
            raise UserError(
                f'{self.mixture_or_task} has no feature {sorted(missing)[0]!r}, which '
                f'task_feature_lengths names; it has {sorted(features)}'
            )
        for task in self._tasks() if self.use_cached else []:
            if not task.supports_caching:  # SeqIO would ignore `use_cached`.
                raise UserError(f'use_cached: {task.name} has no CacheDatasetPlaceholder')
        if self.overridden_vocab:
            vocabulary_at(self.overridden_vocab).for_seqio()
        self._position()

    def fingerprint(self) -> str:
        """Names the tasks, their vocabulary, and their files by name and size."""
        if not self._fingerprint:
            lines = [self.split, name_of(self._seqio_vocabulary())]
            lines += [str(self.eval_num_examples)] * (self.eval_num_examples is not None)
            for task in self._tasks():
                lines += [task.name, *seqio_tasks.shards_of(task, self.split)]
            self._fingerprint = hashlib.sha256('\n'.join(lines).encode()).hexdigest()
        return self._fingerprint

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        known = bytes_per_id(self._seqio_vocabulary()) is not None
        spec = self.feature_converter.element_spec(
            self.batch_size, self.task_feature_lengths, self.packing, known
        )
        if self.example_ids:
            spec['example_ids'] = jax.ShapeDtypeStruct((self.batch_size,), np.int32)
        return spec

    def get_next(self) -> Batch:
        iterator = self._position()
        try:
            features = next(iterator)
        except StopIteration:
            if not self.is_training:
                raise EndOfData from None
            raise UserError(f'{self.mixture_or_task}: no example for this host') from None
        except libraries().tf.errors.InvalidArgumentError as error:
            raise UserError(f'{self.mixture_or_task}: {error.message}') from error
        batch = self.feature_converter.finished(
            {name: self._my_rows(features[seqio]) for name, seqio in self._features().items()}
        )
        if self._bytes_per_id is not None:
            batch['label_bytes'] = self._bytes_per_id[batch['labels']] * batch['weights']
        if self.example_ids:
            rows = len(next(iter(features.values())))
            first = (iterator.num_read - 1) * self.batch_size * self.num_hosts
            batch['example_ids'] = self._my_rows(first + 1 + np.arange(rows, dtype=np.int32))
        return batch

    def text_of(self, ids: np.ndarray, key: str) -> str:
        feature = 'inputs' if key.startswith('encoder_') else 'targets'
        return text(self._text_vocabulary(feature), ids)

    @property
    def wants_scores(self) -> bool:
        return self.example_ids and self._metrics().has('score')

    def score_metrics(self, scores: Mapping[int, float]) -> dict[str, float]:
        return self._metrics().score(scores) if self.wants_scores else {}

    def predict_metrics(self, outputs: Mapping[int, Prediction]) -> dict[str, float]:
        if not self.example_ids or not self._metrics().has('predict'):
            return {}
        return self._metrics().predict(outputs, self._text_vocabulary())

    def reset(self) -> None:
        if self._iterator is not None:
            self._iterator.reset()

    def get_position(self) -> dict[str, Any]:
        return self._position().get_position() | {'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        self._position().set_position(position)

    def _position(self) -> DatasetIterator:
        if self._iterator is None:
            self._bytes_per_id = bytes_per_id(self._seqio_vocabulary())
            # Building takes part of a second, and an evaluation set is read many times.
            make = self._dataset if self.is_training else functools.cache(self._dataset)
            try:
                self._iterator = DatasetIterator(make, key(self))
            # SeqIO's errors for invalid settings of a task, or a missing cache.
            except (ValueError, AssertionError) as error:
                raise UserError(f'{self.mixture_or_task}: {error}') from error
        return self._iterator

    def _text_vocabulary(self, feature: str = 'targets') -> Any:
        if self.overridden_vocab:
            return vocabulary_at(self.overridden_vocab).for_seqio()
        return self._provider().output_features[feature].vocabulary

    def _metrics(self) -> TaskMetrics:
        return TaskMetrics(
            self.mixture_or_task,
            self._tasks(),
            self._numpy_examples_of,
            self.eval_num_examples,
            is_partial=self.eval_loop_num_batches is not None,
        )

    def _numpy_examples_of(self, task: Any) -> Any:
        with seqio_tasks.without_caches():
            return libraries().tfds.as_numpy(self._examples_of(task))

    def _examples_of(self, task: Any) -> Any:
        """A TensorFlow dataset of a task in the order of evaluation, with all of its features."""
        return self._examples(task, shuffle=False)

    def _examples(self, task_or_mixture: Any, **settings: Any) -> Any:
        return task_or_mixture.get_dataset(
            dict(self.task_feature_lengths),
            split=self.split,
            seed=self.input_random_seed,
            trim_output_features=self.trim_output_features,
            use_cached=self.use_cached,
            try_in_mem_cache=False,
            **settings,
        )

    def _features(self) -> dict[str, str]:
        return self.feature_converter.features(self.task_feature_lengths, self.packing)

    def _my_rows(self, rows: np.ndarray) -> np.ndarray:
        """This host's rows of a batch, padded with zeros, which have weight zero."""
        if self.is_training:
            return rows
        first = self.infeed_host_index * self.batch_size
        rows = rows[first : first + self.batch_size]
        missing = self.batch_size - len(rows)
        return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))

    def _dataset(self) -> Any:
        tf = libraries().tf
        with seqio_tasks.without_caches():
            examples = self._training_examples() if self.is_training else self._all_examples()
        lengths = dict(self.task_feature_lengths)
        # Tasks cut examples to length themselves; a check takes a third of the start-up time.
        check = not self.trim_output_features
        dataset = self.feature_converter.seqio(lengths, self.packing, check)(examples, lengths)
        if self.is_training:
            dataset = dataset.batch(self.batch_size, drop_remainder=True)
        else:
            step = self.batch_size * self.num_hosts
            dataset = dataset.batch(step, drop_remainder=not self.eval_auto_pad)
        options = tf.data.Options()
        options.deterministic = True
        # Measured: no slower without, and an iterator is freed at once, not in half a second.
        options.autotune.enabled = False
        return dataset.prefetch(2).with_options(options)

    def _training_examples(self) -> Any:
        examples = self._examples(
            self._provider(),
            shuffle=self.shuffle is not False,
            shard_info=libraries().seqio.ShardInfo(self.infeed_host_index, self.num_hosts),
            num_epochs=None,
        )
        return examples.map(self._features_alone)

    def _all_examples(self) -> Any:
        # A mixture would stop at the end of its first task. Other features of the examples may
        # differ between tasks.
        datasets = [self._examples_of(task).map(self._features_alone) for task in self._tasks()]
        joined = functools.reduce(lambda before, after: before.concatenate(after), datasets)
        return joined if self.eval_num_examples is None else joined.take(self.eval_num_examples)

    def _features_alone(self, example: dict[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in self.task_feature_lengths}
