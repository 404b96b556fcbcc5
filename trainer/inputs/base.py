"""What the trainer expects of any source of batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pyglove as pg

from trainer.symbolic.component import Component, components
from trainer.symbolic.errors import UserError

Batch = dict[str, np.ndarray]
"""Arrays by feature name; the first axis of each is the examples of one host's batch."""


class EndOfData(Exception):
    """Raised by `Input.get_next` when an evaluation set has been read once."""


class Input(Component):
    """A source of batches with a position that can be saved and restored.

    The contract is that of Pax's `BaseInput`. A training input repeats for ever and its batches
    are a pure function of its fields and its position. An evaluation input yields each example
    exactly once, then raises `EndOfData`; the last batches are filled up with examples of weight
    zero, so that all hosts end after equally many batches.

    Attributes:
        batch_size: examples in one host's batch.
        is_training: repeat (and, where asked, shuffle) rather than read once in order.
        num_infeed_hosts: hosts that share the data; 0 lets the trainer fill in the number of
            processes.
        infeed_host_index: which share this host reads. Shares never overlap.
        reset_for_eval: each evaluation begins with the first batch, rather than where the last
            one ended. See `trainer.inputs.evaluation` for what goes together.
        eval_loop_num_batches: batches of an evaluation; None for the whole set.
        repeat: whether an evaluation that comes to the end of the set goes on at its beginning;
            None for whatever `reset_for_eval` needs. Training data repeat in any case.
        batch_padding_size: examples of zeros that `get_next_padded` puts after each batch, so
            that it divides evenly over the devices.
    """

    batch_size: int
    is_training: bool = False
    num_infeed_hosts: int = 0
    infeed_host_index: int = 0
    reset_for_eval: bool = True
    eval_loop_num_batches: int | None = None
    repeat: bool | None = None
    batch_padding_size: int = 0

    def check(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f'batch_size must be at least 1: {self.batch_size}')
        if self.batch_padding_size < 0:
            raise ValueError(f'batch_padding_size must not be negative: {self.batch_padding_size}')
        hosts = max(self.num_infeed_hosts, 1)
        if not 0 <= self.infeed_host_index < hosts:
            raise ValueError(
                f'infeed_host_index must lie in [0, {hosts}): {self.infeed_host_index}'
            )

    @property
    def num_hosts(self) -> int:
        """Hosts that share the data; one where nobody has filled it in."""
        return max(self.num_infeed_hosts, 1)

    @property
    def positions_are_global(self) -> bool:
        """Whether a position is one of the whole data, from which each host takes its share.

        Then hosts go on where other hosts were, be they more or fewer. Otherwise a position is one
        in the share of its host.
        """
        return False

    def settings(self, field: str) -> list[str]:
        """The paths, in the experiment, of a field of this input and of others of its class.

        For messages: who moves the training data moves the evaluation data with it.
        """
        siblings = [other for other in components(self.sym_root) if type(other) is type(self)]
        if len(siblings) > 1 or self.sym_path:
            return [str(pg.KeyPath(field, sibling.sym_path)) for sibling in siblings]
        return [f'train_input.{field}' if self.is_training else f'eval_inputs.<name>.{field}']

    def prepare(self) -> None:
        """Checks that the data is there, before anything is written.

        Raises:
            UserError: it is not; the message says where it was looked for and what to set.
        """

    def fingerprint(self) -> str:
        """Names the data itself: equal fingerprints, equal examples. Written to trial records."""
        raise NotImplementedError(type(self).__name__)

    def vocabulary_name(self) -> str:
        """Names the vocabulary of token ids: equal names, equal ids. '' where there are none."""
        return ''

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of one host's batch, without reading data."""
        raise NotImplementedError(type(self).__name__)

    def get_next(self) -> Batch:
        """The next batch of this host.

        Raises:
            EndOfData: an evaluation input has been read once; `reset` starts it anew.
        """
        raise NotImplementedError(type(self).__name__)

    def padded_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of what `get_next_padded` returns."""
        return {
            name: jax.ShapeDtypeStruct(
                (s.shape[0] + self.batch_padding_size, *s.shape[1:]), s.dtype
            )
            for name, s in self.element_spec().items()
        }

    def get_next_padded(self) -> Batch:
        """The next batch, with `batch_padding_size` examples of zeros after it.

        Raises:
            EndOfData: as `get_next`.
        """
        batch, more = self.get_next(), self.batch_padding_size
        if not more:
            return batch
        return {
            name: np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1))
            for name, array in batch.items()
        }

    def ids_to_strings(
        self, ids: np.ndarray, lengths: np.ndarray | None = None, key: str = 'labels'
    ) -> list[str]:
        """Token ids as text; as numbers where the input has no vocabulary.

        Args:
            ids: int32 [B, T].
            lengths: how many ids of each row count, int32 [B]; None for all.
            key: the feature that they are of, where features have vocabularies of their own.
        """
        rows = ids if lengths is None else [row[:n] for row, n in zip(ids, lengths, strict=True)]
        return [self.text_of(row, key) for row in rows]

    def text_of(self, ids: np.ndarray, key: str) -> str:
        """The text of one row of ids; for subclasses that have a vocabulary."""
        return ' '.join(map(str, ids.tolist()))

    @property
    def wants_scores(self) -> bool:
        """Whether `score_metrics` has any."""
        return False

    def score_metrics(self, scores: Mapping[int, float]) -> dict[str, float]:
        """Metrics that the data define, of how likely the targets are.

        Args:
            scores: the logarithm of the probability of each example's target, by `example_ids`;
                that of padding, 0, does not count. {} where `wants_scores` is false.
        """
        return {}

    def predict_metrics(self, outputs: Mapping[int, Sequence[int]]) -> dict[str, float]:
        """Metrics that the data define, of what a model writes in place of the targets.

        Args:
            outputs: token ids, by the number of the example.
        """
        return {}

    def reset(self) -> None:
        """Goes back to the first batch."""
        raise NotImplementedError(type(self).__name__)

    def get_position(self) -> dict[str, Any]:
        """Where `get_next` continues, as JSON data. Small: it is written with each checkpoint."""
        raise NotImplementedError(type(self).__name__)

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues exactly where `get_position` was taken.

        Raises:
            UserError: the position was taken in other data.
        """
        raise NotImplementedError(type(self).__name__)

    def close(self) -> None:
        """Ends threads and processes that read ahead. To read on starts them anew."""

    def validate_position(self, position: dict[str, Any]) -> None:
        """Raises UserError unless the position was taken in the data that is there now."""
        then, now = position['fingerprint'], self.fingerprint()
        if then != now:
            raise UserError(
                f'the data changed: the checkpoint was written with data {then}, and this is data '
                f'{now}. Put the former data back, or start anew in another --job_log_dir.'
            )


def placed_clone(data: Input, num_hosts: int, host: int) -> Input:
    """A copy that reads the share of a host, and stands where the original does.

    So its messages name the right fields.
    """
    hosts = {'num_infeed_hosts': num_hosts, 'infeed_host_index': host}
    clone: Input = data.clone(deep=True, override=hosts)
    clone.sym_setparent(data.sym_parent)
    clone.sym_setpath(data.sym_path)
    return clone
