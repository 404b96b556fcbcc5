import hashlib
import json
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, EndOfData, Input, host_share, require_weights
from trainer.inputs.weights import weight_features
from trainer.symbolic.errors import UserError, prefixed


class MultiInput(Input):
    """Joins the batches of several inputs; `a.ids` is the feature `ids` of the input `a`.

    `a.weights` are the weights of the features of `a`. A task with features of several inputs
    counts an example that is padding in none of them.

    As Pax's MultiInput. `MixtureInput` draws the examples of a batch from several inputs instead.
    The inputs of an evaluation must end together.

    Attributes:
        inputs: the inputs by name, with the `batch_size` and `is_training` of this one. This input
            sets the share of the data that they read.
        default_input: its vocabulary turns ids into text for features without an input's name.
    """

    inputs: dict[str, Input]
    default_input: str = ''

    usual = {'batch_size': None}  # All inputs must have the same.

    def _on_bound(self) -> None:
        super()._on_bound()
        self._sources: dict[str, Input] = {}

    def check(self) -> None:
        super().check()
        if not self.inputs:
            raise ValueError('inputs must name at least one input')
        if self.default_input and self.default_input not in self.inputs:
            raise ValueError(
                f'default_input must be one of {sorted(self.inputs)}: {self.default_input!r}'
            )
        for name, data in self.inputs.items():
            if '.' in name:
                raise ValueError(f"inputs: a name must not contain '.': {name!r}")
            for field in ('batch_size', 'is_training'):
                theirs, ours = data.sym_getattr(field), self.sym_getattr(field)
                if theirs != ours:
                    raise ValueError(f'inputs.{name}.{field} must be {ours}, as here: {theirs}')
            for field in ('num_infeed_hosts', 'batch_padding_size'):
                if data.sym_getattr(field):
                    raise ValueError(f'inputs.{name}.{field} must be 0: set it here')

    @property
    def positions_are_global(self) -> bool:
        return all(data.positions_are_global for data in self.inputs.values())

    @property
    def has_padding(self) -> bool:
        return super().has_padding or any(each.has_padding for each in self.sources().values())

    def sources(self) -> dict[str, Input]:
        """The inputs with this host's share, by sorted names."""
        if not self._sources:
            for name in sorted(self.inputs):
                share = host_share(self.inputs[name], self.num_hosts, self.infeed_host_index)
                self._sources[name] = share
        return self._sources

    def prepare(self) -> None:
        for name, data in self.sources().items():
            with prefixed(f'inputs.{name}'):
                data.prepare()
                require_weights(data, weight_features(data.element_spec()))

    def fingerprint(self) -> str:
        names = {name: data.fingerprint() for name, data in self.sources().items()}
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def vocabulary_name(self) -> str:
        return self._default().vocabulary_name()

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        return _joined({name: data.element_spec() for name, data in self.sources().items()})

    def get_next(self) -> Batch:
        batches: dict[str, Batch] = {}
        ended = []
        for name, data in self.sources().items():
            try:
                batches[name] = data.get_next()
            except EndOfData:
                ended.append(name)
        if batches and ended:
            raise UserError(f'inputs.{ended[0]} ends before inputs.{next(iter(batches))}')
        if ended:
            raise EndOfData
        return _joined(batches)

    @property
    def start_id(self) -> int:
        return self._default().start_id

    def text_of(self, ids: np.ndarray, key: str) -> str:
        name, _, feature = key.rpartition('.')
        return self.sources().get(name, self._default()).text_of(ids, feature)

    def reset(self) -> None:
        for data in self.sources().values():
            data.reset()

    def close(self) -> None:
        for data in self._sources.values():
            data.close()

    def get_position(self) -> dict[str, Any]:
        inputs = {name: data.get_position() for name, data in self.sources().items()}
        return {'inputs': inputs, 'fingerprint': self.fingerprint()}

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        for name, data in self.sources().items():
            data.set_position(position['inputs'][name])

    def _default(self) -> Input:
        return self.sources()[self.default_input or min(self.inputs)]


def _joined(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        f'{name}.{feature}': value
        for name, features in parts.items()
        for feature, value in features.items()
    }
