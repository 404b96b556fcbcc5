import hashlib
import json
import math
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, Input, host_share
from trainer.inputs.examples import Examples
from trainer.inputs.strides import Strides, check_weights
from trainer.symbolic.errors import UserError, prefixed


class MixtureInput(Input):
    """Training batches with examples of several inputs, in shares given by weights.

    The input of the k-th example of a host is a function of the seed, of k and of the weights; see
    `Strides`. The examples of each input come in its own order; weights change only when they come.
    Weights may be searched over; the fingerprint of the data does not contain them.

    It is only for training. For evaluation, make each input its own evaluation set.

    Attributes:
        inputs: the inputs by name. Their vocabularies and their batches must be equal, except for
            `batch_size`, the number of examples read at a time. The mixture sets the share of the
            data that they read.
        weights: the share of each, by the same names. They need not add up to 1; an input of
            weight zero is not read.
        input_random_seed: draws the phases of the inputs.

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
        self._strides: Strides | None = None
        self._go_to(0)

    def check(self) -> None:
        super().check()
        if not self.is_training:
            raise ValueError(
                'is_training must be true: a mixture is only for training; make each of its inputs '
                'an evaluation set'
            )
        check_weights(self.weights, 'inputs', self.inputs)
        for name, data in self.inputs.items():
            if not data.is_training:
                raise ValueError(f'inputs.{name}.is_training must be true')
            if data.num_infeed_hosts:
                raise ValueError(
                    f'inputs.{name}.num_infeed_hosts must be 0: the mixture sets the share of each '
                    'input'
                )
            if data.batch_padding_size:
                raise ValueError(f'inputs.{name}.batch_padding_size must be 0: set it here')

    @property
    def shares(self) -> dict[str, float]:
        """The weights, scaled so that they add up to 1, by sorted names."""
        total = math.fsum(self.weights.values())
        return {name: self.weights[name] / total for name in sorted(self.weights)}

    @property
    def vocab_size(self) -> int:
        """Number of token ids, equal for all inputs."""
        first: Any = next(iter(self.inputs.values()))
        return first.vocab_size

    def vocabulary_name(self) -> str:
        return next(iter(self.inputs.values())).vocabulary_name()

    def prepare(self) -> None:
        for name, source in self._by_name().items():
            with prefixed(f'inputs.{name}'):
                source.data.prepare()
        self.element_spec()
        (first, data), *others = self.inputs.items()
        for name, other in others:
            if _vocabulary(other) != _vocabulary(data):
                raise UserError(
                    f'inputs.{name}: its vocabulary ({_vocabulary(other)}) differs from that of '
                    f'inputs.{first} ({_vocabulary(data)})'
                )

    def fingerprint(self) -> str:
        """Names the data of all inputs, also of weight zero."""
        names = {name: source.data.fingerprint() for name, source in self._by_name().items()}
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        if not self._spec:
            self._spec = self._common_spec()
        return dict(self._spec)

    def get_next(self) -> Batch:
        batch = {name: np.empty(s.shape, s.dtype) for name, s in self.element_spec().items()}
        if self._strides is None:
            shares = list(self.shares.values())
            self._strides = Strides(shares, self.input_random_seed, self._read)
        chosen = self._strides.next(self.batch_size)
        for i, source in enumerate(self._by_name().values()):
            (places,) = np.nonzero(chosen == i)
            rows = source.take(places.size) if places.size else {}
            for name in rows:
                batch[name][places] = rows[name]
        self._read += self.batch_size
        return batch

    @property
    def start_id(self) -> int:
        return next(iter(self.inputs.values())).start_id

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
        self._strides = None

    def _by_name(self) -> dict[str, Examples]:
        if not self._sources:
            for name in sorted(self.inputs):
                share = host_share(self.inputs[name], self.num_hosts, self.infeed_host_index)
                self._sources[name] = Examples(share)
        return self._sources

    def _common_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        specs = {name: data.element_spec() for name, data in self.inputs.items()}
        first, spec = next(iter(specs.items()))
        for name, other in specs.items():
            for feature in sorted({*spec, *other}):
                theirs, ours = (_example(s.get(feature)) for s in (other, spec))
                if theirs != ours:
                    raise UserError(
                        f'inputs.{name}: its examples differ from those of inputs.{first}: '
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
