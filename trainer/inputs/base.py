import contextlib
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
import pyglove as pg

from trainer.inputs.interpretation import Interpretation
from trainer.inputs.weights import weight_features
from trainer.symbolic import recipes
from trainer.symbolic.component import components, require_not_negative, require_positive
from trainer.symbolic.errors import UserError

Batch = dict[str, np.ndarray]
"""Arrays by feature name; the first axis is the examples of one host's batch."""


NO_WEIGHTS = (
    'its batches have padding but no weights, so padding would count as examples. Add a feature '
    '`weights` [B] to them: float32, 1 for each example and 0 for padding'
)


Spec = dict[str, jax.ShapeDtypeStruct]


_REQUIRED = ('get_next', 'fingerprint', 'reset', 'get_position', 'set_position')
"""Methods that each input has of its own."""


class EndOfData(Exception):
    """Raised by `Input.get_next` at the end of an evaluation set."""


class Input(Interpretation):
    """A source of batches with a position that can be saved and restored.

    The contract is that of Pax's `BaseInput`. A training input repeats forever, and its batches are
    a pure function of its fields and its position. An evaluation input yields each example exactly
    once, then raises `EndOfData`. Its last batches are padded with examples of weight zero, so that
    all hosts end after the same number of batches. `trainer.inputs.weights` names the features of
    weights; batches with padding must have one.

    Attributes:
        batch_size: examples in one host's batch.
        is_training: repeats (and may shuffle) the data; otherwise reads them once, in order.
        num_infeed_hosts: hosts that share the data; 0 lets the trainer fill in the number of
            processes.
        infeed_host_index: the share of this host. Shares never overlap.
        reset_for_eval: each evaluation starts at the first batch; otherwise at the end of the last
            evaluation. `trainer.inputs.evaluation` lists the valid combinations.
        eval_loop_num_batches: batches of an evaluation; None for the whole set.
        repeat: an evaluation continues with the first batch after the last; None for the value that
            `reset_for_eval` needs. Training data always repeat.
        batch_padding_size: examples of zeros that `get_next_padded` adds to each batch, so that it
            divides evenly over the devices.
    """

    batch_size: int
    is_training: bool = False
    num_infeed_hosts: int = 0
    infeed_host_index: int = 0
    reset_for_eval: bool = True
    eval_loop_num_batches: int | None = None
    repeat: bool | None = None
    batch_padding_size: int = 0

    usual = {'batch_size': recipes.BATCH_SIZE}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own, spec = vars(cls), 'element_spec'
        parent: Any = super(cls, cls)
        has_no_spec = parent.element_spec is Input.element_spec
        # A class that changes the batches of another may change their features.
        if spec not in own and any(
            name in own and (has_no_spec or getattr(parent, name, None) is not Input.get_next)
            for name in ('get_next', 'train_batch', 'eval_batch')
        ):
            setattr(cls, spec, _of_first_batch(cls.element_spec))

    def _on_bound(self) -> None:
        super()._on_bound()
        self._is_first = False  # True for a copy that only reads the first batch.
        self._spec: Spec | None = None

    def check(self) -> None:
        require_positive(self, 'batch_size')
        require_not_negative(self, 'batch_padding_size')
        if not 0 <= self.infeed_host_index < self.num_hosts:
            raise ValueError(
                f'infeed_host_index must lie in [0, {self.num_hosts}): {self.infeed_host_index}'
            )

    @property
    def num_hosts(self) -> int:
        """Hosts that share the data; one if `num_infeed_hosts` is not set."""
        return max(self.num_infeed_hosts, 1)

    @property
    def positions_are_global(self) -> bool:
        """True if positions refer to the whole data, from which each host takes its share.

        Then a run can continue with another number of hosts. Otherwise a position refers to the
        share of its host.
        """
        return False

    @property
    def has_padding(self) -> bool:
        """True if batches are known to hold examples of padding."""
        return self.batch_padding_size > 0

    def settings(self, field: str) -> list[str]:
        """The paths of a field of this input, and of other inputs of its class.

        For messages: users usually change training and evaluation data together.
        """
        siblings = [other for other in components(self.sym_root) if type(other) is type(self)]
        if len(siblings) > 1 or self.sym_path:
            return [str(pg.KeyPath(field, sibling.sym_path)) for sibling in siblings]
        return [f'train_input.{field}' if self.is_training else f'eval_inputs.<name>.{field}']

    def prepare(self) -> None:
        """Checks that the data exist, before a run writes files.

        Raises:
            UserError: they are missing; the message names the searched paths and the field to set.
        """

    def fingerprint(self) -> str:
        """Names the data itself: equal fingerprints, equal examples. Written to trial records."""
        raise NotImplementedError(type(self).__name__)

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of one host's batch.

        A subclass that overrides only the method that makes batches, such as `get_next`, need not
        override this: the first batch is read instead.
        """
        raise NotImplementedError(type(self).__name__)

    def get_next(self) -> Batch:
        """The next batch of this host.

        Raises:
            EndOfData: the end of an evaluation input; `reset` starts it again.
        """
        raise NotImplementedError(type(self).__name__)

    def padded_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the batches of `get_next_padded`."""
        return {
            name: jax.ShapeDtypeStruct(
                (s.shape[0] + self.batch_padding_size, *s.shape[1:]), s.dtype
            )
            for name, s in self.element_spec().items()
        }

    def get_next_padded(self) -> Batch:
        """The next batch, followed by `batch_padding_size` examples of zeros.

        Raises:
            EndOfData: as `get_next`.
        """
        batch = self.get_next()
        return pad_batch(batch, self.batch_padding_size, self)

    def reset(self) -> None:
        """Goes back to the first batch. Training, and a rolling evaluation without end, need none.

        Raises:
            UserError: the input has no method of its own.
        """
        raise UserError(
            f'{self.sym_path or type(self).__name__}: {type(self).__name__} ends, and has no reset '
            'that starts it again: write it, or repeat the data'
        )

    def get_position(self) -> dict[str, Any]:
        """The position of the next batch, as small JSON data for checkpoints."""
        raise NotImplementedError(type(self).__name__)

    def set_position(self, position: dict[str, Any]) -> None:
        """Continues exactly at a result of `get_position`.

        Raises:
            UserError: the position belongs to other data.
        """
        raise NotImplementedError(type(self).__name__)

    def close(self) -> None:
        """Stops prefetching threads and processes. The next read starts them again."""

    def validate_position(self, position: dict[str, Any]) -> None:
        """Raises UserError unless the position belongs to the current data."""
        then, now = position['fingerprint'], self.fingerprint()
        if then != now:
            raise UserError(
                f'the data changed: the checkpoint was written with data {then}, but this is data '
                f'{now}. Restore the old data, or start a new run in another --job_log_dir.'
            )


def _of_first_batch(inherited: Callable[[Any], Spec]) -> Callable[[Any], Spec]:
    @functools.wraps(inherited)
    def element_spec(data: Input) -> Spec:
        if data._is_first:
            return inherited(data)
        if data._spec is None:
            first = host_share(data, data.num_infeed_hosts, data.infeed_host_index)
            first._is_first = True
            with contextlib.closing(first):
                try:
                    batch = first.get_next()
                except EndOfData:
                    raise UserError(
                        f'{data.sym_path or type(data).__name__}: no examples'
                    ) from None
            data._spec = {
                name: jax.ShapeDtypeStruct(rows.shape, jax.dtypes.canonicalize_dtype(rows.dtype))
                for name, rows in batch.items()
            }
        return data._spec

    return element_spec


def require_weights(data: Input, weights: Collection[str]) -> None:
    """Checks the features with weights of an input with padding.

    Raises:
        UserError: there are none, so padding would count in metrics and gradients.
    """
    if not weights and data.has_padding:
        raise UserError(NO_WEIGHTS)


def require_methods(data: Input, path: str) -> None:
    """Raises UserError unless an input, and each input in it, has all methods that a run calls."""
    for each in components(data):
        if not isinstance(each, Input):
            continue
        kind = type(each)
        missing = [name for name in _REQUIRED if getattr(kind, name) is getattr(Input, name)]
        starts_once = data.is_training or not data.reset_for_eval
        if missing and not (missing == ['reset'] and starts_once):
            where = str(each.sym_path) or path
            raise UserError(
                f'{where}: {kind.__name__} has no {", ".join(missing)}: write '
                f'{"it" if len(missing) == 1 else "them"} (docs/extending/data.md has an example), '
                'or derive the class from ArraysInput or IndexedInput, which have all of them'
            )


def pad_batch(batch: Batch, count: int, data: Input | None = None) -> Batch:
    """Adds `count` examples of zeros to a batch, of `data` for messages.

    Raises:
        UserError: the batch has no weights.
    """
    if not count:
        return batch
    if not weight_features(batch):
        where = '' if data is None else f'{data.sym_path or type(data).__name__}: '
        raise UserError(f'{where}{NO_WEIGHTS}')
    return {
        name: np.pad(rows, [(0, count)] + [(0, 0)] * (rows.ndim - 1))
        for name, rows in batch.items()
    }


def host_share(data: Input, num_hosts: int, host: int) -> Input:
    """Copies an input so that it reads the share of a host.

    The copy has the path of the original, so that its messages name the right fields.
    """
    hosts = {'num_infeed_hosts': num_hosts, 'infeed_host_index': host}
    clone: Input = data.clone(deep=True, override=hosts)
    clone.sym_setparent(data.sym_parent)
    clone.sym_setpath(data.sym_path)
    return clone
