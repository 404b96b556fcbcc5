"""Writes Hugging Face directories from checkpoints of runs."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trainer.checkpoints.reader import CheckpointReader
from trainer.convert.adapters import AdaptedReader, part_of
from trainer.convert.new_directory import new_directory
from trainer.layers.base import Layer
from trainer.pretrained.families import config_of
from trainer.pretrained.family import Family
from trainer.pretrained.mapping import Mapped, mapped
from trainer.pretrained.model_config import FILE, ModelConfig
from trainer.pretrained.tensor_files import write_tensors
from trainer.symbolic.errors import UserError
from trainer.warm_start.layered import layered

DTYPES: dict[str, Any] = {'float32': np.float32, 'bfloat16': jnp.dtype('bfloat16')}

_MAX_PARTS = 3  # Queries, keys and values.

_OF_TOKENIZERS = (
    'added_tokens.json', 'chat_template.jinja', 'generation_config.json', 'merges.txt',
    'preprocessor_config.json', 'special_tokens_map.json', 'tokenizer.json', 'tokenizer.model',
    'tokenizer_config.json', 'vocab.json', 'vocab.txt',
)  # fmt: skip


class _Source(NamedTuple):
    """The place of a part of a tensor in a checkpoint: array, layer of it, and expert or None."""

    array: str
    layer: tuple[int, ...]
    expert: int | None
    mapped: Mapped


def write_directory(
    model: Layer,
    reader: CheckpointReader | AdaptedReader,
    out: Path,
    dtype: str = 'float32',
    tokenizer: str | None = None,
) -> str:
    """Writes a checkpoint as a directory that `transformers` loads; returns the architecture.

    Averages of the parameters are written where the run keeps some, as evaluation uses them.

    Args:
        out: must not exist, or be empty. It appears once it is complete.
        tokenizer: a directory of Hugging Face whose tokenizer the new one gets.

    Raises:
        UserError: no architecture computes like the model, or the checkpoint cannot be read.
    """
    family, fields = config_of(model)
    sources = _sources(family, reader)
    kept = {} if tokenizer is None else ModelConfig.of(tokenizer).without_effect()
    names = {'architectures': [family.architecture], 'model_type': family.model_type}
    config = {**kept, **fields, **family.sizes(_shapes(reader)), **names, 'dtype': dtype}
    with new_directory(out) as partial:
        shapes = {name: parts[0].mapped.tensor_shape or () for name, parts in sources.items()}
        arrays = _Arrays(reader)
        write_tensors(partial, shapes, lambda name: _tensor(sources[name], arrays), DTYPES[dtype])
        (partial / FILE).write_text(json.dumps(config, indent=2) + '\n')
        for name in _OF_TOKENIZERS:
            if tokenizer is not None and Path(tokenizer, name).is_file():
                shutil.copy(Path(tokenizer, name), partial)
    return family.architecture


def _shapes(reader: CheckpointReader | AdaptedReader) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a model, or of their averages."""
    begin = f'{part_of(reader)}.'
    shapes = reader.shapes.items()
    return {name.removeprefix(begin): shape for name, shape in shapes if name.startswith(begin)}


def _sources(family: Family, reader: CheckpointReader | AdaptedReader) -> dict[str, list[_Source]]:
    """The places of the parts of each tensor."""
    part = part_of(reader)
    found: dict[str, list[_Source]] = {}
    for path, shape in _shapes(reader).items():
        array = f'{part}.{path}'
        each = layered({path: shape})[path]
        for layer, name in zip(np.ndindex(*each.lengths), each.names, strict=True):
            to = mapped(family.rules, name, each.shape)
            if to is None or to.tensor_shape is None:
                raise UserError(f'task.model: {family.architecture} has no tensor for {name}')
            for expert, tensor in enumerate(to.names):
                number = expert if to.is_of_experts else None
                found.setdefault(tensor, []).append(_Source(array, layer, number, to))
    return found


class _Arrays:
    """Loads arrays of a checkpoint, and keeps as many as a tensor may have parts."""

    def __init__(self, reader: CheckpointReader | AdaptedReader) -> None:
        self._reader = reader
        self._kept: dict[str, np.ndarray] = {}

    def load(self, name: str) -> np.ndarray:
        """An array; one of the last costs nothing."""
        if name not in self._kept:
            if len(self._kept) == _MAX_PARTS:
                del self._kept[next(iter(self._kept))]
            one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            self._kept[name] = np.asarray(self._reader.load({name: one})[name])
        return self._kept[name]


def _tensor(sources: Sequence[_Source], arrays: _Arrays) -> np.ndarray:
    shape = sources[0].mapped.tensor_shape
    assert shape is not None
    tensor = np.empty(shape, np.float32)
    for source in sources:
        array = arrays.load(source.array)[source.layer]
        array = array if source.expert is None else array[source.expert]
        source.mapped.view(tensor)[...] = array - source.mapped.offset
    return tensor
