"""Meshes of devices, and the one table that says how arrays are laid out on them."""

import math
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from trainer.component import Component
from trainer.errors import UserError

AXES = ('data', 'fsdp', 'tensor')

RULES: dict[str, str | tuple[str, ...] | None] = {
    # Parameters.
    'embed': 'fsdp',
    'mlp': 'tensor',
    'heads': 'tensor',
    'kv': None,
    'vocab': 'tensor',
    'norm': None,
    'layers': None,
    'classes': None,
    # Activations.
    'batch': ('data', 'fsdp'),
    'length': None,
    'features': None,
    'height': None,
    'width': None,
    'channels': None,
}
"""Logical axis name to mesh axes. Parameters shard over `fsdp` and `tensor`, batches over both
data-parallel axes, and the gathered features of an activation over none."""


class Mesh(Component):
    """Devices arranged by how work is divided between them.

    Attributes:
        data: replicas of the parameters; each works on its own part of the batch.
        fsdp: like `data`, but parameters and optimizer state are divided too (ZeRO-3).
        tensor: devices that share each matrix multiplication (Megatron).

    One of them may be -1: as many as there are devices left.

    Example:
        >>> Mesh(data=2, fsdp=-1).shape(8)
        (2, 4, 1)
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def check(self) -> None:
        sizes = self.sizes
        if sizes.count(-1) > 1:
            raise ValueError(f'at most one of data, fsdp and tensor may be -1: {sizes}')
        for name, size in zip(AXES, sizes, strict=True):
            if size != -1 and size < 1:
                raise ValueError(f'{name} must be at least 1, or -1 for the rest: {size}')

    @property
    def sizes(self) -> list[int]:
        """The sizes of the axes, one of which may be -1."""
        return [self.data, self.fsdp, self.tensor]

    def shape(self, num_devices: int) -> tuple[int, ...]:
        """Sizes of the axes (data, fsdp, tensor) on so many devices.

        Raises:
            ValueError: that many devices cannot be arranged so.
        """
        sizes = self.sizes
        fixed = math.prod(size for size in sizes if size != -1)
        asked = f'mesh data={self.data} fsdp={self.fsdp} tensor={self.tensor}'
        if -1 in sizes:
            if num_devices % fixed:
                raise ValueError(f'{asked} does not divide {num_devices} devices')
            return tuple(num_devices // fixed if size == -1 else size for size in sizes)
        if fixed != num_devices:
            raise ValueError(f'{asked} needs {fixed} devices, there are {num_devices}')
        return tuple(sizes)

    def make(self, devices: Any = None) -> jax.sharding.Mesh:
        """The mesh of JAX, over `devices` or all of this job's."""
        devices = jax.devices() if devices is None else devices
        return jax.make_mesh(
            self.shape(len(devices)), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices
        )


def infeed_share(mesh: jax.sharding.Mesh) -> tuple[int, int]:
    """Into how many shares the processes divide each batch, and which of them this one feeds.

    Processes whose devices work on the same examples (a tensor-parallel group that spans them)
    feed the same share.

    Raises:
        ValueError: some processes have examples in common, and others of their own.
    """
    at = NamedSharding(mesh, partition_spec(('batch',)))
    parts = mesh.shape['data'] * mesh.shape['fsdp']
    of_process: dict[int, set[int]] = {}
    devices: Any = at.devices_indices_map((parts,))
    for device, (part,) in devices.items():
        of_process.setdefault(device.process_index, set()).add(part.start or 0)
    shares = sorted({tuple(sorted(each)) for each in of_process.values()})
    if sum(map(len, shares)) != parts or len({len(share) for share in shares}) > 1:
        raise ValueError(
            f'the {len(of_process)} processes cannot divide the examples of a batch evenly over '
            f'the {parts} devices of the axes data and fsdp: make data * fsdp a multiple of the '
            'processes, or the processes a multiple of it'
        )
    own = of_process[jax.process_index()]
    return len(shares), shares.index(tuple(sorted(own)))


def partition_spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """The mesh axes of an array with the given logical axes.

    Raises:
        ValueError: an axis is not in `RULES`.

    Example:
        >>> tuple(partition_spec(('embed', 'mlp')))
        ('fsdp', 'tensor')
    """
    unknown = [axis for axis in axes if axis is not None and axis not in RULES]
    if unknown:
        raise ValueError(f'unknown logical axes {unknown}; there are {sorted(RULES)}')
    return PartitionSpec(*(None if axis is None else RULES[axis] for axis in axes))


def sharding(
    mesh: jax.sharding.Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...], what: str
) -> NamedSharding:
    """How an array of `shape` with the given logical axes lies on `mesh`.

    Raises:
        UserError: a dimension cannot be divided evenly; `what` names the array in the message.
    """
    spec = partition_spec(axes)
    for axis, size, names in zip(axes, shape, spec, strict=True):
        names = (names,) if isinstance(names, str) else names or ()
        parts = math.prod(mesh.shape[name] for name in names)
        if size % parts:
            raise UserError(
                f'{what}: axis {axis!r} of size {size} does not divide evenly over the {parts} '
                f'devices of mesh axes {names}'
            )
    return NamedSharding(mesh, spec)
