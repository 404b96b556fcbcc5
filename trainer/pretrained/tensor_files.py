"""Safetensors files of a directory: one file, or several with an index."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from trainer.runtime.data_paths import data_path, local_copy
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, in_short, shortened
from trainer.symbolic.extras import needed

_DTYPES: dict[str, Any] = {
    'F64': np.float64,
    'F32': np.float32,
    'F16': np.float16,
    'BF16': jnp.dtype('bfloat16'),
}
_MAX_SHARD_BYTES = 5 * 10**9


class Tensor(NamedTuple):
    """A tensor in a file.

    Attributes:
        offset: the first byte.
    """

    file: Path
    dtype: Any
    shape: tuple[int, ...]
    offset: int

    def mapped(self) -> np.ndarray:
        """The tensor, mapped into memory: slices read their part of the file."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.file, self.dtype, 'r', self.offset, self.shape)


def read_tensors(directory: str, name: str = 'model') -> dict[str, Tensor]:
    """Reads the headers of `model.safetensors`, or of the files of its index; no tensor.

    Raises:
        UserError: a file is missing or damaged, or the index names a file elsewhere.
    """
    place = data_path(directory)
    index = place / f'{name}.safetensors.index.json'
    if not index.exists():
        single = place / f'{name}.safetensors'
        if not single.exists():
            raise UserError(f'{place} has neither {single.name} nor {index.name}{_other(place)}')
        return dict(_header(single))
    tensors: dict[str, Tensor] = {}
    weight_map = _weight_map(index)
    for file in sorted(set(weight_map.values())):
        if not (place / file).exists():
            raise UserError(f'{place / file} is missing; {index.name} names it')
        found = dict(_header(place / file))
        for each in (each for each, there in weight_map.items() if there == file):
            if each not in found:
                raise UserError(f'{place / file} lacks {each}, which {index.name} promises')
            tensors[each] = found[each]
    return tensors


def _other(place: JobPath) -> str:
    pickles = [each.name for each in place.glob('*.bin')] if place.exists() else []
    if not pickles:
        return ': name a directory that transformers saved'
    return (
        f'. Its {pickles[0]} is a pickle, which may run code and is not read: load it with '
        'transformers, and save it with save_pretrained'
    )


def _weight_map(index: JobPath) -> dict[str, str]:
    values = read_json(index).get('weight_map')
    if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
        raise UserError(f'{index}: weight_map must map names of tensors to names of files')
    for file in values.values():
        if not 0 < len(file) < 256 or Path(file).name != file or file == '..' or '\\' in file:
            name = shortened(repr(file), 100)
            raise UserError(f'{index}: weight_map names {name}, which is no file of the directory')
    return values


def read_json(file: JobPath) -> dict[str, Any]:
    """Reads a JSON object; raises UserError."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f'{file} cannot be read: {in_short(error)}') from error
    if not isinstance(found, dict):
        raise UserError(f'{file}: expected a JSON object, found {type(found).__name__}')
    return found


def _header(path: JobPath) -> Iterator[tuple[str, Tensor]]:
    with needed('huggingface', 'Pretrained'):
        from safetensors import SafetensorError, safe_open
    try:
        file = local_copy(path)
        with safe_open(file, framework='np'):  # Checks sizes, names and places of all tensors.
            pass
        with file.open('rb') as opened:
            size = int.from_bytes(opened.read(8), 'little')
            header = json.loads(opened.read(size))
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f'{path} is damaged, or no safetensors file: {in_short(error)}') from error
    header.pop('__metadata__', None)
    for name, each in header.items():
        if each['dtype'] not in _DTYPES:
            raise UserError(
                f'{path}: {name} has the dtype {each["dtype"]}; {", ".join(_DTYPES)} are known'
            )
        begin, _ = each['data_offsets']
        yield name, Tensor(file, _DTYPES[each['dtype']], tuple(each['shape']), 8 + size + begin)


def write_tensors(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    make: Callable[[str], np.ndarray],
    dtype: Any,
    max_shard_bytes: int = _MAX_SHARD_BYTES,
) -> None:
    """Writes tensors, one file after another, so that only one shard is in memory.

    Args:
        make: the name of a tensor -> the tensor.
    """
    with needed('huggingface', 'trainer.convert'):
        from safetensors.numpy import save_file
    shards: list[list[str]] = [[]]
    sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, shape in shapes.items()}
    for name in shapes:
        if shards[-1] and sum(sizes[each] for each in (*shards[-1], name)) > max_shard_bytes:
            shards.append([])
        shards[-1].append(name)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f'model-{number + 1:05}-of-{len(shards):05}.safetensors'
        file = file if len(shards) > 1 else 'model.safetensors'
        arrays = {name: np.ascontiguousarray(make(name), dtype) for name in names}
        save_file(arrays, directory / file, metadata={'format': 'pt'})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {'metadata': {'total_size': sum(sizes.values())}, 'weight_map': weight_map}
        (directory / 'model.safetensors.index.json').write_text(json.dumps(index, indent=2))
