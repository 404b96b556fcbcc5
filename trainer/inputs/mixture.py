"""Training data mixed from several inputs, by weights."""

import hashlib
import json
import math
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, Input, placed_clone
from trainer.inputs.examples import Examples
from trainer.inputs.strides import Strides
from trainer.symbolic.errors import UserError


class MixtureInput(Input):
    """Training batches whose examples come from several inputs, in the shares that weights give.

    Which input the k-th example of a host comes from is a function of the seed, of k and of the
    weights; see `Strides`. The examples of each input come in its own order, whatever the weights:
    with other weights, they come sooner or later. Weights may be searched over; what they are is
    no part of the data's fingerprint.

    It is for training alone. To evaluate, make each input an evaluation set of its own: a loss
    over a mixture would say less than theirs.

    Attributes:
        inputs: what is mixed, by name. Their batches must be alike but for `batch_size`, which
            says how many examples are read at a time and may be any; so must their vocabularies.
            They read the host's share of their data that the mixture is told to read.
        weights: the share of each, by the same names. They need not add up to 1; an input of
            weight zero is not read.
        input_random_seed: draws the order in which the inputs take turns.

    Example:
        >>> from trainer.inputs import StdlibInput
        >>> code = StdlibInput(batch_size=8, sequence_length=4, split='train', is_training=True)
        >>> data = MixtureInput(
        ...     batch_size=2,
        ...     is_training=True,
        ...     inputs={'code': code, 'again': code.clone()},
        ...     weights={'code': 0.9, 'again': 0.3},
        ... )
        >>> data.shares
        {'again': 0.25, 'code': 0.75}
    """

    inputs: dict[str, Input]
    weights: dict[str, float]
    input_random_seed: int = 0

    def _on_bound(self) -> None:
        super()._on_bound()
        self._sources: dict[str, Examples] = {}
        self._spec: dict[str, jax.ShapeDtypeStruct] = {}
        self._go_to(0)

    def check(self) -> None:
        super().check()
        if not self.is_training:
            raise ValueError(
                'is_training must be true: a mixture is for training; make each of its inputs an '
                'evaluation set of its own'
            )
        if set(self.inputs) != set(self.weights):
            raise ValueError(
                f'weights must have the names of inputs, {sorted(self.inputs)}: '
                f'{sorted(self.weights)}'
            )
        for name, weight in self.weights.items():
            if not 0 <= weight < math.inf:
                raise ValueError(f'weights.{name} must be at least 0 and finite: {weight}')
        if not any(self.weights.values()):
            raise ValueError('weights must not all be zero')
        for name, data in self.inputs.items():
            if not data.is_training:
                raise ValueError(f'inputs.{name}.is_training must be true')
            if data.num_infeed_hosts:
                raise ValueError(
                    f'inputs.{name}.num_infeed_hosts must be left 0: the mixture tells its inputs '
                    'which share to read'
                )

    @property
    def shares(self) -> dict[str, float]:
        """The weights, scaled so that they add up to 1, by sorted names."""
        total = math.fsum(self.weights.values())
        return {name: self.weights[name] / total for name in sorted(self.weights)}

    @property
    def vocab_size(self) -> int:
        """Number of token ids: that of each input."""
        first: Any = next(iter(self.inputs.values()))
        return first.vocab_size

    def vocabulary_name(self) -> str:
        return next(iter(self.inputs.values())).vocabulary_name()

    def prepare(self) -> None:
        for name, source in self._by_name().items():
            try:
                source.data.prepare()
            except UserError as error:
                raise UserError(f'inputs.{name}: {error}') from error
        self.element_spec()
        (first, data), *others = self.inputs.items()
        for name, other in others:
            if _vocabulary(other) != _vocabulary(data):
                raise UserError(
                    f'inputs.{name}: its vocabulary ({_vocabulary(other)}) is not that of '
                    f'inputs.{first} ({_vocabulary(data)}), and their ids would be mixed up'
                )

    def fingerprint(self) -> str:
        """Names the data of all inputs, those of weight zero included."""
        names = {name: source.data.fingerprint() for name, source in self._by_name().items()}
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        if not self._spec:
            self._spec = self._common_spec()
        return dict(self._spec)

    def get_next(self) -> Batch:
        batch = {name: np.empty(s.shape, s.dtype) for name, s in self.element_spec().items()}
        chosen = self._turns().next(self.batch_size)
        for i, source in enumerate(self._by_name().values()):
            (places,) = np.nonzero(chosen == i)
            rows = source.take(places.size) if places.size else {}
            for name in rows:
                batch[name][places] = rows[name]
        self._read += self.batch_size
        return batch

    def text_of(self, ids: np.ndarray, key: str) -> str:
        return next(iter(self.inputs.values())).text_of(ids, key)

    def reset(self) -> None:
        for source in self._by_name().values():
            source.reset()
        self._go_to(0)

    def get_position(self) -> dict[str, Any]:
        return {
            'examples': self._read,
            'inputs': {name: source.get_position() for name, source in self._by_name().items()},
            'fingerprint': self.fingerprint(),
        }

    def set_position(self, position: dict[str, Any]) -> None:
        self.validate_position(position)
        for name, source in self._by_name().items():
            source.set_position(position['inputs'][name])
        self._go_to(int(position['examples']))

    def close(self) -> None:
        for source in self._by_name().values():
            source.data.close()

    def _go_to(self, examples: int) -> None:
        self._read = examples
        self._strides: Strides | None = None

    def _turns(self) -> Strides:
        if self._strides is None:
            shares = list(self.shares.values())
            self._strides = Strides(shares, self.input_random_seed, self._read)
        return self._strides

    def _by_name(self) -> dict[str, Examples]:
        """The examples of each input, by sorted names."""
        if not self._sources:
            for name in sorted(self.inputs):
                share = placed_clone(self.inputs[name], self.num_hosts, self.infeed_host_index)
                self._sources[name] = Examples(share)
        return self._sources

    def _common_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The batches of the mixture, once those of all inputs are known to be alike."""
        specs = {name: data.element_spec() for name, data in self.inputs.items()}
        first, spec = next(iter(specs.items()))
        for name, other in specs.items():
            for feature in sorted({*spec, *other}):
                theirs, ours = (_example(s.get(feature)) for s in (other, spec))
                if theirs != ours:
                    raise UserError(
                        f'inputs.{name}: its examples are not like those of inputs.{first}: '
                        f'{feature} is {theirs}, not {ours}'
                    )
        return {
            name: jax.ShapeDtypeStruct((self.batch_size, *s.shape[1:]), s.dtype)
            for name, s in spec.items()
        }


def _example(spec: jax.ShapeDtypeStruct | None) -> str:
    return 'missing' if spec is None else f'{spec.dtype}{list(spec.shape[1:])}'


def _vocabulary(data: Input) -> str:
    size = getattr(data, 'vocab_size', None)
    return f'{size} ids, {data.vocabulary_name()}' if size is not None else 'no ids'
