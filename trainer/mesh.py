"""Meshes of devices, and the single table of the sharding rules."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

AXES = ('data', 'fsdp', 'sequence', 'tensor')
"""Axes of a mesh, from the least to the most communication between devices."""

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
    'length': 'sequence',
    'features': None,
    'height': None,
    'width': None,
    'channels': None,
}
"""Mesh axes by logical axis. Parameters shard over `fsdp` and `tensor`, examples over both
data-parallel axes, their positions over `sequence`, and the features of an activation over none."""


class Mesh(Component):
    """Arrangement of devices by the kinds of parallelism.

    Devices form slices. A fast network (ICI; NVLink) connects the devices of a slice, the network
    of the data center (DCN) connects slices. Each axis has a size within a slice and, as `dcn_…`,
    a number of slices; their product is the size of the axis. In Pax these are `ici_mesh_shape`
    and `dcn_mesh_shape`.

    JAX defines the slices (`slice_index`): slices of TPUs, hosts or NVLink domains of GPUs. If it
    defines none, as on CPUs, the devices are divided into equal parts in the order of their
    processes, as many as `dcn_…` require. With that many processes, each process is a slice.

    Attributes:
        data: replicas of the parameters; each works on its own part of the batch. With all other
            axes 1 this is plain data parallelism.
        fsdp: like `data`, but parameters and optimizer state are sharded, too (ZeRO-3).
        sequence: devices that share each example, a part of its positions each. Keys and values of
            attention are gathered; everything else stays on its device.
        tensor: devices that share each matrix multiplication (Megatron).
        dcn_data: `data` between slices.
        dcn_fsdp: `fsdp` between slices.
        dcn_sequence: `sequence` between slices.
        dcn_tensor: `tensor` between slices.

    One size within a slice may be -1, for the remaining devices in it. One size between slices may
    be -1, for the remaining slices.

    Example:
        >>> Mesh(data=2, fsdp=-1).shape(8)
        (2, 4, 1, 1)
        >>> Mesh(data=1, fsdp=64, dcn_data=2).shape(128)
        (2, 64, 1, 1)
    """

    data: int = -1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1
    dcn_data: int = -1
    dcn_fsdp: int = 1
    dcn_sequence: int = 1
    dcn_tensor: int = 1

    def check(self) -> None:
        for prefix, sizes in (('', self.ici_mesh_shape), ('dcn_', self.dcn_mesh_shape)):
            names = [prefix + axis for axis in AXES]
            if sizes.count(-1) > 1:
                raise ValueError(f'at most one of {", ".join(names)} may be -1: {sizes}')
            for name, size in zip(names, sizes, strict=True):
                if size != -1 and size < 1:
                    raise ValueError(f'{name} must be at least 1, or -1 for the rest: {size}')

    @property
    def ici_mesh_shape(self) -> list[int]:
        """Sizes of the axes within a slice, one of which may be -1."""
        return [self.data, self.fsdp, self.sequence, self.tensor]

    @property
    def dcn_mesh_shape(self) -> list[int]:
        """Numbers of slices along each axis, one of which may be -1."""
        return [self.dcn_data, self.dcn_fsdp, self.dcn_sequence, self.dcn_tensor]

    def min_devices(self) -> int:
        """Number of devices that the sizes require, with 1 for -1."""
        return math.prod(size for size in self.ici_mesh_shape + self.dcn_mesh_shape if size != -1)

    def shape(self, num_devices: int, num_slices: int | None = None) -> tuple[int, ...]:
        """Sizes of the axes (data, fsdp, sequence, tensor) on a number of devices.

        Args:
            num_devices: number of all devices.
            num_slices: number of their slices; None for the number that the mesh requires.

        Raises:
            ValueError: the devices do not fit the mesh.
        """
        ici, dcn = self.shapes(num_devices, num_slices)
        return tuple(within * between for within, between in zip(ici, dcn, strict=True))

    def shapes(
        self, num_devices: int, num_slices: int | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes of the axes within a slice, and between slices; like `shape`."""
        if num_slices is None:
            num_slices = math.prod(size for size in self.dcn_mesh_shape if size != -1)
        dcn = _filled('dcn_', self.dcn_mesh_shape, num_slices, 'slices')
        if num_devices % num_slices:
            raise ValueError(f'{num_devices} devices are not {num_slices} slices of equal size')
        what = 'devices' if num_slices == 1 else 'devices in a slice'
        return _filled('', self.ici_mesh_shape, num_devices // num_slices, what), dcn

    def make(self, devices: Any = None) -> jax.sharding.Mesh:
        """Makes the JAX mesh, over `devices` or all devices of the job."""
        devices = list(jax.devices() if devices is None else devices)
        types = (AxisType.Auto,) * len(AXES)
        ici, dcn = self.shapes(len(devices), _num_slices(devices))
        if math.prod(dcn) == 1:
            return jax.make_mesh(ici, AXES, axis_types=types, devices=devices)
        return jax.sharding.Mesh(arranged(devices, ici, dcn), AXES, axis_types=types)


def _filled(prefix: str, sizes: list[int], number: int, what: str) -> tuple[int, ...]:
    fixed = math.prod(size for size in sizes if size != -1)
    text = ' '.join(f'{prefix}{axis}={size}' for axis, size in zip(AXES, sizes, strict=True))
    if -1 in sizes:
        if number % fixed:
            raise ValueError(f'{text} does not divide {number} {what}')
        return tuple(number // fixed if size == -1 else size for size in sizes)
    if fixed != number:
        raise ValueError(f'{text} needs {fixed} {what}, there are {number}')
    return tuple(sizes)


def _num_slices(devices: Sequence[Any]) -> int | None:
    """Number of slices in JAX; None if it defines none."""
    found = {getattr(device, 'slice_index', 0) for device in devices}
    return len(found) if len(found) > 1 else None


def arranged(
    devices: Sequence[Any], ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int]
) -> np.ndarray:
    """Arranges the devices of several slices as an array, whose shape is the product of both.

    Along each axis, the devices of a slice are neighbours.
    """
    if _num_slices(devices) is not None:
        return create_hybrid_device_mesh(ici_mesh_shape, dcn_mesh_shape, devices)
    ordered = np.empty(len(devices), object)
    ordered[:] = sorted(devices, key=lambda device: (device.process_index, device.id))
    axes = len(ici_mesh_shape)
    blocks = ordered.reshape(*dcn_mesh_shape, *ici_mesh_shape)
    paired = blocks.transpose([at for axis in range(axes) for at in (axis, axes + axis)])
    return paired.reshape(np.multiply(dcn_mesh_shape, ici_mesh_shape))


def data_shard(mesh: jax.sharding.Mesh) -> tuple[int, int]:
    """Returns (number of shards of each batch, index of the shard that this process feeds).

    Processes whose devices work on the same examples (a tensor-parallel group that spans them)
    feed the same shard.

    Raises:
        ValueError: processes share some examples, but not all.
    """
    at = NamedSharding(mesh, partition_spec(('batch',)))
    parts = mesh.shape['data'] * mesh.shape['fsdp']
    of_process: dict[int, set[int]] = {}
    devices: Any = at.devices_indices_map((parts,))
    for device, (part,) in devices.items():
        of_process.setdefault(device.process_index, set()).add(part.start or 0)
    shards = sorted({tuple(sorted(each)) for each in of_process.values()})
    if sum(map(len, shards)) != parts or len({len(shard) for shard in shards}) > 1:
        raise ValueError(
            f'the {len(of_process)} processes cannot divide the examples of a batch evenly over '
            f'the {parts} devices of the axes data and fsdp: make data * fsdp a multiple of the '
            'processes, or the processes a multiple of it'
        )
    own = of_process[jax.process_index()]
    return len(shards), shards.index(tuple(sorted(own)))


def partition_spec(axes: tuple[str | None, ...]) -> PartitionSpec:
    """Maps the logical axes of an array to mesh axes.

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


def feature_spec(num_axes: int) -> PartitionSpec:
    """The mesh axes of a feature of a batch.

    A feature with two axes is [B, T]: both examples and positions are sharded. Other features, such
    as images [B, H, W, C] or weights [B], are sharded by example.

    Example:
        >>> tuple(feature_spec(2)), tuple(feature_spec(4))
        ((('data', 'fsdp'), 'sequence'), (('data', 'fsdp'),))
    """
    return partition_spec(('batch', 'length') if num_axes == 2 else ('batch',))


def sharding(
    mesh: jax.sharding.Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...], what: str
) -> NamedSharding:
    """The sharding on `mesh` of an array of `shape` with the given logical axes.

    Raises:
        UserError: a dimension does not divide evenly; `what` names the array in the message.
    """
    spec = partition_spec(axes)
    for axis, size, names in zip(axes, shape, spec, strict=True):
        names = (names,) if isinstance(names, str) else names or ()
        parts = math.prod(mesh.shape[name] for name in names)
        if size % parts:
            of_mesh = ' × '.join(f'mesh.{name}' for name in names)
            raise UserError(
                f'{what}: axis {axis!r} of size {size} does not divide evenly over the {parts} '
                f'devices of {of_mesh}; choose a multiple of {parts}, or another {of_mesh}'
            )
    return NamedSharding(mesh, spec)


def activation_sharding(
    mesh: jax.sharding.Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...], what: str
) -> NamedSharding:
    """Like `sharding`, but replicates positions that do not divide evenly.

    These are few: the position of a decoding step, or one that a model adds to its input.
    """
    parts = mesh.shape['sequence']
    kept = zip(axes, shape, strict=True)
    axes = tuple(None if axis == 'length' and size % parts else axis for axis, size in kept)
    return sharding(mesh, axes, shape, what)
