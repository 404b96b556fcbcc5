"""Reads a directory of Hugging Face as if it were a checkpoint of the run."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from trainer.checkpoints.manifest import Progress
from trainer.layers.base import PARAMS
from trainer.pretrained.families import described, family_of, require_like
from trainer.pretrained.mapping import Mapped, mapped
from trainer.pretrained.model_config import ModelConfig
from trainer.pretrained.peft import MODEL, adapter_rules, require_same
from trainer.pretrained.tensor_files import Tensor, read_tensors
from trainer.symbolic.errors import UserError, in_short, prefixed
from trainer.task import Task
from trainer.warm_start.layered import Layered, layered
from trainer.warm_start_rules import Pretrained, TensorRule

_MAX_FAULTS = 20


class _Array(NamedTuple):
    """An array of the run: its dtype, its layers, and the tensors of each; None for no tensor."""

    dtype: Any
    layered: Layered
    layers: list[Mapped | None]


class PretrainedReader:
    """Reads headers of files, and tensors on `load`.

    It has the arrays of the run, under their names and in their dtypes. So each becomes an array of
    the state without a copy.

    Attributes:
        shapes: of the arrays that the directory has.
        dtypes: of the same.
        progress: empty, as of a fresh run.
    """

    def __init__(self, start: Pretrained, leaves: Mapping[str, Any]) -> None:
        """Maps the tensors to arrays of a run.

        Args:
            leaves: the arrays of the state of the run, by name; shapes and dtypes suffice.

        Raises:
            UserError: the directory cannot be read, or its tensors do not fit the run.
        """
        self._start = start
        self._rules, self._unused, present_name = _rules(start)
        tensors = read_tensors(start.directory)
        self._tensors = {present_name(name): tensor for name, tensor in tensors.items()}
        if start.adapter is not None:
            self._rules = [*self._rules, *adapter_rules(self._rules)]
            self._tensors |= read_tensors(start.adapter, MODEL)
        self._arrays = {
            name: found
            for name, leaf in leaves.items()
            if name.startswith(f'{PARAMS}.') and (found := self._array(name, leaf)) is not None
        }
        if faults := list(self._faults()):
            more = [f'  and {len(faults) - _MAX_FAULTS} more'] if len(faults) > _MAX_FAULTS else []
            lines = [f'  {each}' for each in faults[:_MAX_FAULTS]] + more
            raise UserError(
                '\n'.join(
                    [
                        f'{start.directory} does not fit task.model. `python -m trainer.convert '
                        '--from=DIR` writes a model that fits; `ignore` and `unused` name arrays '
                        'and tensors to leave out:',
                        *lines,
                    ]
                )
            )
        self.progress = Progress()
        self.shapes = {name: tuple(leaves[name].shape) for name in self._arrays}
        self.dtypes = {name: str(leaves[name].dtype) for name in self._arrays}

    def _array(self, name: str, leaf: Any) -> _Array | None:
        each = layered({name: tuple(leaf.shape)})[name]
        names = [layer.removeprefix(f'{PARAMS}.') for layer in each.names]
        layers = [
            None if _matches(self._start.ignore, layer) else mapped(self._rules, layer, each.shape)
            for layer in names
        ]
        return _Array(leaf.dtype, each, layers) if any(layers) else None

    def _faults(self) -> Iterator[str]:
        used: set[str] = set()
        for array in self._arrays.values():
            for layer, found in zip(array.layered.names, array.layers, strict=True):
                here = layer.removeprefix(f'{PARAMS}.')
                if found is None:
                    if not _matches(self._start.ignore, here):
                        yield f'{here}: no rule matches it, but other layers of its scanned run'
                    continue
                used |= {*found.names}
                yield from self._faults_of(f'{here} {array.layered.shape}', found)
        for name, tensor in self._tensors.items():
            if name not in used and not _matches(self._unused, name):
                yield f'{name} {tensor.shape}: no array of task.model uses it'

    def _faults_of(self, here: str, found: Mapped) -> Iterator[str]:
        for name in found.names:
            tensor = self._tensors.get(name)
            if tensor is None:
                yield f'{here}: {name} is missing'
            elif tensor.shape != found.tensor_shape:
                needed = found.tensor_shape or f'another operation than {found.operation!r}'
                yield f'{here}: {name} has the shape {tensor.shape}, where it needs {needed}'

    def load(self, shardings: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Loads arrays by name, with given shardings; each host reads its slices alone.

        Raises:
            UserError: a file has gone, or cannot be read.
        """

        def loaded(name: str, sharding: Any) -> jax.Array:
            slices = functools.partial(_slice_of, self._arrays[name], self._tensors)
            return jax.make_array_from_callback(self.shapes[name], sharding, slices)

        try:
            return {name: loaded(name, sharding) for name, sharding in shardings.items()}
        except (OSError, ValueError) as error:
            raise UserError(f'{self._start.directory} has changed: {in_short(error)}') from error


def fitting_reader(
    start: Pretrained, leaves: Mapping[str, Any], task: Task, where: str
) -> PretrainedReader:
    """Opens a directory, and checks that its model and adapters are those of the run.

    Args:
        leaves: as for `PretrainedReader`.
        where: path of `start` in the experiment.

    Raises:
        UserError: they are not.
    """
    if start.adapter is not None:
        adapters = getattr(task, 'adapters', None)
        require_same(start.adapter, adapters, f'{where}.adapter', start.directory)
    with prefixed(where):
        reader = PretrainedReader(start, leaves)
        if start.has_all_weights and not start.allow_changes:
            require_like(task.model, start.directory)
    return reader


def _slice_of(
    array: _Array, tensors: Mapping[str, Tensor], index: tuple[slice, ...] | None
) -> np.ndarray:
    """A slice of an array, read from the files; a callback of `jax.make_array_from_callback`."""
    assert index is not None  # JAX has one for every sharding.
    lengths = array.layered.lengths
    bounds = zip(index, lengths + array.layered.shape, strict=True)
    out = np.zeros([len(range(*part.indices(size))) for part, size in bounds], array.dtype)
    numbers = np.arange(len(array.layers)).reshape(lengths)[index[: len(lengths)]]
    rest = index[len(lengths) :]
    for at in np.ndindex(*out.shape[: len(lengths)]):
        found = array.layers[int(numbers[at])]
        if found is not None and found.is_of_experts:
            for i, name in enumerate(found.names[rest[0]]):
                _fill(out[at][i], found, tensors[name], rest[1:])
        elif found is not None:
            _fill(out[at], found, tensors[found.names[0]], rest)
    return out


def _fill(out: np.ndarray, found: Mapped, tensor: Tensor, index: tuple[slice, ...]) -> None:
    part = found.view(tensor.mapped())[index]
    out[...] = part.astype(np.float32) + found.offset if found.offset else part


def _rules(start: Pretrained) -> tuple[Sequence[TensorRule], list[str], Callable[[str], str]]:
    if start.rules is not None:
        return start.rules, list(start.unused), str
    config = ModelConfig.of(start.directory)
    family = family_of(config)
    tied = getattr(described(family, config), 'head', '') is None
    copies = [r'lm_head\.weight'] if tied else []
    return family.rules, [*start.unused, *family.unused, *copies], family.present_name


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
