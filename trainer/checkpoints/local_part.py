"""The part of a local checkpoint that belongs to one process: its own shards of all arrays.

Orbax writes each array once, from its first replica, and one process completes the directory for
all. A local checkpoint must be whole on each host. A part therefore has every shard of the devices
of its process, and counts by itself.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from etils import epath

from trainer.checkpoints.checksums import leaves_by_name, name_of
from trainer.checkpoints.manifest import DamagedError, Manifest

_ARRAYS, _HEADER = 'arrays.bin', 'part.json'

_PARTIAL = '.partial'

Place: TypeAlias = tuple[tuple[int, int], ...]
"""The place of a shard in its array: (start, stop) along each axis."""


class Shard(NamedTuple):
    """A shard in the memory of the host.

    Attributes:
        name: the path of its array.
        place: where it is there.
        data: its values, [stop - start along each axis].
    """

    name: str
    place: Place
    data: np.ndarray


def copied(tree: Any) -> list[Shard]:
    """Copies the shards of this process to the host, equal ones once; waits for the devices."""
    found: dict[tuple[str, Place], jax.Array] = {}
    for name, leaf in leaves_by_name(tree).items():
        for shard in leaf.addressable_shards:
            found.setdefault((name, _place(shard.index, leaf.shape)), shard.data)
    for data in found.values():
        data.copy_to_host_async()
    # A view would change: the next step writes into the same buffer.
    return [Shard(*key, np.array(data, copy=True)) for key, data in found.items()]


def write(directory: Path, manifest: Manifest, shards: Sequence[Shard]) -> None:
    """Writes a part, which counts once it has its final name; raises OSError without a trace."""
    partial = directory.with_name(directory.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True, mode=0o700)
        places, offset = [], 0
        with open(partial / _ARRAYS, 'wb') as file:
            for name, place, data in shards:
                file.write(data.reshape(-1).view(np.uint8).data)
                places.append([name, place, offset])
                offset += data.nbytes
        header = {'manifest': manifest.to_json(), 'shards': places}
        (partial / _HEADER).write_text(json.dumps(header))
        shutil.rmtree(directory, ignore_errors=True)  # An earlier process wrote the step, too.
        os.rename(partial, directory)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def steps_in(directory: Path) -> list[int]:
    """The steps of the complete parts in a directory, in order."""
    if not directory.is_dir():
        return []
    return sorted(int(child.name) for child in directory.iterdir() if child.name.isdecimal())


def load(directory: Path, abstract: Any) -> tuple[Manifest, Any]:
    """Reads a part into arrays with the shapes, dtypes and shardings of an abstract state.

    Raises:
        DamagedError: it is incomplete, or has other shards than those of this process.
        UserError: another experiment or version wrote it.
        OSError, ValueError, LookupError: it is damaged.
    """
    header = json.loads((directory / _HEADER).read_text())
    manifest = Manifest.from_json(epath.Path(directory), header['manifest'])
    manifest.check_same(epath.Path(directory), abstract)
    shards = _read(directory / _ARRAYS, header['shards'], manifest)

    def loaded(path: Any, leaf: Any) -> jax.Array:
        name = name_of(path)
        if manifest.arrays[name][1] != str(leaf.dtype):
            raise DamagedError(f'{name} has another dtype, {manifest.arrays[name][1]}')

        def shard(index: Any) -> np.ndarray:
            return shards[name, _place(index, leaf.shape)]

        return jax.make_array_from_callback(leaf.shape, leaf.sharding, shard)

    return manifest, jax.tree_util.tree_map_with_path(loaded, abstract)


def _read(
    file: Path, places: Sequence[Any], manifest: Manifest
) -> Mapping[tuple[str, Place], np.ndarray]:
    found = {}
    for name, pairs, offset in places:
        place: Place = tuple((start, stop) for start, stop in pairs)
        shape, dtype = (
            [stop - start for start, stop in place],
            jax.numpy.dtype(manifest.arrays[name][1]),
        )
        data = np.fromfile(file, dtype, count=int(np.prod(shape, dtype=int)), offset=offset)
        found[name, place] = data.reshape(shape)
    return found


def _place(slices: Sequence[slice], shape: Sequence[int]) -> Place:
    limits = (each.indices(size) for each, size in zip(slices, shape, strict=True))
    return tuple((start, stop) for start, stop, _ in limits)
