"""Meshes of devices, and the rules by which arrays are divided over them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.runtime.slices import arranged, count_slices
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError, nearest

Rules = Mapping[str, tuple[str, ...]]
"""Mesh axes that divide each logical axis; none where it is whole on every device."""

_AXES = ('stage', 'data', 'fsdp', 'expert', 'sequence', 'tensor')
"""Named axes of a mesh, from the least to the most communication between devices."""

_OPTIONAL_AXES = ('stage', 'expert')
"""Axes that a mesh has only where an experiment sets their size."""

RULES: Rules = {
    # Parameters.
    'embed': ('fsdp',),
    'mlp': ('tensor',),
    'heads': ('tensor',),
    'kv': (),
    'latent': (),
    'vocab': ('tensor',),
    'norm': (),
    'experts': ('expert',),
    'layers': ('stage',),
    'classes': (),
    # Activations.
    'batch': ('data', 'fsdp', 'expert'),
    'length': ('sequence',),
    'features': (),
    'height': (),
    'width': (),
    'channels': (),
}
"""Parameters shard over `fsdp` and `tensor`, examples over all data-parallel axes, their positions
over `sequence`, and the features of an activation over none."""


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
            attention pass from device to device; everything else stays where it is.
        tensor: devices that share each matrix multiplication (Megatron).
        dcn_data: `data` between slices.
        dcn_fsdp: `fsdp` between slices.
        dcn_sequence: `sequence` between slices.
        dcn_tensor: `tensor` between slices.
        expert: like `data`, but the experts of a layer are divided, too.
        stage: devices that store a part of the layers of each scanned stack. A stack with a
            `pipeline` runs there, too; without one, all of them run every layer.
        dcn_expert: `expert` between slices.
        dcn_stage: `stage` between slices.
        axes: sizes of further axes, by names that `rules` use.
        dcn_axes: the same between slices; 1 without an entry.
        rules: mesh axes by logical axis, which add to the built-in ones or replace them: one name,
            several, or None for an axis that is whole on every device.

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
    expert: int = 1
    stage: int = 1
    dcn_expert: int = 1
    dcn_stage: int = 1
    axes: dict[str, int] = {}
    dcn_axes: dict[str, int] = {}
    rules: dict[str, str | list[str] | None] = {}

    def check(self) -> None:
        if taken := [name for name in self.axes if name in _AXES]:
            raise ValueError(f'axes.{taken[0]}: set the field {taken[0]} of the mesh in its place')
        if bad := [name for name in self.axes if not name.isidentifier()]:
            raise ValueError(f'axes: {bad[0]!r} is no name of an axis; use letters, digits and _')
        if unknown := [name for name in self.dcn_axes if name not in self.axes]:
            raise ValueError(f'dcn_axes.{unknown[0]}: axes has no {unknown[0]!r}')
        for prefix, sizes in (('', self.ici_mesh_shape), ('dcn_', self.dcn_mesh_shape)):
            names = [self._field(prefix, axis) for axis in self.axis_names]
            if sizes.count(-1) > 1:
                raise ValueError(f'at most one of {", ".join(names)} may be -1: {sizes}')
            for name, size in zip(names, sizes, strict=True):
                if size != -1 and size < 1:
                    raise ValueError(f'{name} must be at least 1, or -1 for the rest: {size}')
        known = (*_AXES, *self.axes)
        for logical, axes in _as_rules(self.rules).items():
            for axis in axes:
                if axis not in known:
                    raise ValueError(
                        f'rules.{logical}: the mesh has no axis {axis!r}, only {", ".join(known)}. '
                        f'{nearest(axis, known)} A further axis has its size in axes.'
                    )
            if len(set(axes)) < len(axes):
                raise ValueError(f'rules.{logical}: an axis is there twice: {", ".join(axes)}')
        rules = {**RULES, **_as_rules(self.rules)}
        if both := {*rules['batch']} & {*rules['length']}:
            what = f"rules: the axis {min(both)!r} would divide both 'batch' and 'length'"
            raise ValueError(f"{what}: take it out of one, as in {{'length': None}}")

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The axes of the mesh, from the least to the most communication between devices."""
        within, between = self._sizes(''), self._sizes('dcn_')
        unused = {name for name in _OPTIONAL_AXES if (within[name], between[name]) == (1, 1)}
        return (*(name for name in _AXES if name not in unused), *self.axes)

    @property
    def ici_mesh_shape(self) -> list[int]:
        """Sizes of the axes within a slice, one of which may be -1."""
        sizes = self._sizes('')
        return [sizes[name] for name in self.axis_names]

    @property
    def dcn_mesh_shape(self) -> list[int]:
        """Numbers of slices along each axis, one of which may be -1."""
        sizes = self._sizes('dcn_')
        return [sizes[name] for name in self.axis_names]

    def _sizes(self, prefix: str) -> dict[str, int]:
        own = {name: 1 for name in self.axes} | dict(self.sym_getattr(f'{prefix}axes'))
        return {name: self.sym_getattr(prefix + name) for name in _AXES} | own

    def _field(self, prefix: str, axis: str) -> str:
        return prefix + axis if axis in _AXES else f'{prefix}axes.{axis}'

    def min_devices(self) -> int:
        """Number of devices that the sizes require, with 1 for -1."""
        return math.prod(size for size in self.ici_mesh_shape + self.dcn_mesh_shape if size != -1)

    def shape(self, num_devices: int, num_slices: int | None = None) -> tuple[int, ...]:
        """Sizes of the axes, in the order of `axis_names`, on a number of devices.

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
        dcn = self._filled('dcn_', self.dcn_mesh_shape, num_slices, 'slices')
        if num_devices % num_slices:
            raise ValueError(f'{num_devices} devices are not {num_slices} slices of equal size')
        what = 'devices' if num_slices == 1 else 'devices in a slice'
        return self._filled('', self.ici_mesh_shape, num_devices // num_slices, what), dcn

    def _filled(self, prefix: str, sizes: list[int], number: int, what: str) -> tuple[int, ...]:
        fixed = math.prod(size for size in sizes if size != -1)
        named = zip(self.axis_names, sizes, strict=True)
        text = ' '.join(f'{self._field(prefix, axis)}={size}' for axis, size in named)
        if -1 in sizes:
            if number % fixed:
                raise ValueError(f'{text} does not divide {number} {what}')
            return tuple(number // fixed if size == -1 else size for size in sizes)
        if fixed != number:
            raise ValueError(f'{text} needs {fixed} {what}, there are {number}')
        return tuple(sizes)

    def make(self, devices: Any = None) -> 'Arrangement':
        """Arranges `devices`, or all devices of the job."""
        devices = list(jax.devices() if devices is None else devices)
        names = self.axis_names
        types = (AxisType.Auto,) * len(names)
        ici, dcn = self.shapes(len(devices), count_slices(devices))
        if math.prod(dcn) == 1:
            made = jax.make_mesh(ici, names, axis_types=types, devices=devices)
        else:
            made = jax.sharding.Mesh(arranged(devices, ici, dcn), names, axis_types=types)
        return Arrangement(made, {**RULES, **_as_rules(self.rules)})

    def abstract(self, num_devices: int | None = None) -> 'Arrangement':
        """Arranges devices that need not exist; by default as few as the mesh allows."""
        names = self.axis_names
        shape = self.shape(num_devices or self.min_devices())
        types = (AxisType.Auto,) * len(names)
        return Arrangement(
            AbstractMesh(shape, names, axis_types=types), {**RULES, **_as_rules(self.rules)}
        )


def _as_rules(given: Mapping[str, Any]) -> Rules:
    return {
        logical: (axes,) if isinstance(axes, str) else tuple(axes or ())
        for logical, axes in given.items()
    }


class Arrangement:
    """Devices in named axes, and the rules by which arrays are divided over them.

    Two arrangements are equal if they divide every array alike.

    Attributes:
        mesh: the mesh of JAX; an abstract one has no devices.
        shape: number of devices along each axis.
    """

    def __init__(self, mesh: jax.sharding.Mesh | AbstractMesh, rules: Rules = RULES) -> None:
        self.mesh: Any = mesh
        self.shape: dict[str, int] = dict(mesh.shape)
        # A rule may name an axis that this mesh leaves out, as its size is 1.
        self._rules = {
            logical: tuple(axis for axis in axes if axis in self.shape)
            for logical, axes in rules.items()
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrangement) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> Any:
        return self.mesh, tuple(sorted(self._rules.items()))

    @property
    def is_abstract(self) -> bool:
        """True if there are no devices: arrays have shapes alone."""
        return isinstance(self.mesh, AbstractMesh) and not self.mesh.manual_axes

    def inside_shard_map(self) -> 'Arrangement':
        """The same inside of `jax.shard_map`, whose mesh axes divide no array there."""
        mesh = jax.sharding.get_abstract_mesh()
        rules = {
            logical: tuple(axis for axis in axes if axis not in mesh.manual_axes)
            for logical, axes in self._rules.items()
        }
        return Arrangement(mesh, rules)

    def spec(self, *axes: str | None) -> PartitionSpec:
        """Maps the logical axes of an array to mesh axes.

        Raises:
            ValueError: an axis has no rule.

        Example:
            >>> tuple(Mesh(data=1).abstract().spec('embed', 'mlp'))
            ('fsdp', 'tensor')
        """
        for axis in axes:
            if axis is not None and axis not in self._rules:
                raise ValueError(
                    f'there is no rule for the logical axis {axis!r}, such as '
                    f'mesh.rules={{{axis!r}: None}}. {nearest(axis, self._rules)} '
                    f'There are {", ".join(sorted(self._rules))}'
                )
        names = [() if axis is None else self._rules[axis] for axis in axes]
        return PartitionSpec(*(each[0] if len(each) == 1 else each or None for each in names))

    def feature_spec(self, num_axes: int) -> PartitionSpec:
        """The mesh axes of a feature of a batch.

        A feature with two axes is [B, T]: both examples and positions are sharded. Other features,
        such as images [B, H, W, C] or weights [B], are sharded by example.

        Example:
            >>> there = Mesh(data=1).abstract()
            >>> tuple(there.feature_spec(2)), tuple(there.feature_spec(4))
            ((('data', 'fsdp'), 'sequence'), (('data', 'fsdp'),))
        """
        return self.spec('batch', 'length') if num_axes == 2 else self.spec('batch')

    def placed(self, spec: PartitionSpec) -> NamedSharding:
        """The sharding of an array with these mesh axes."""
        return NamedSharding(self.mesh, spec)

    def parts(self, axis: str) -> tuple[int, tuple[str, ...]]:
        """Number of parts of a logical axis, and the mesh axes that divide it."""
        names = self._rules[axis]
        return math.prod(self.shape[name] for name in names), names

    def sharding(
        self, axes: Sequence[str | None], shape: tuple[int, ...], what: str
    ) -> NamedSharding:
        """The sharding of an array of `shape` with the given logical axes.

        Raises:
            UserError: an axis has no rule, a dimension does not divide evenly, or a mesh axis
                would divide two of them; `what` names the array in the message.
        """
        if len(axes) != len(shape):
            raise UserError(f'{what}: {len(axes)} logical axes for {len(shape)} dimensions')
        try:
            spec = self.spec(*axes)
        except ValueError as error:
            raise UserError(f'{what}: {error}') from error
        seen: dict[str, str | None] = {}
        for axis, size in zip(axes, shape, strict=True):
            parts, names = (1, ()) if axis is None else self.parts(axis)
            if size % parts:
                of_mesh = ' × '.join(f'mesh.{name}' for name in names)
                raise UserError(
                    f'{what}: axis {axis!r} of size {size} does not divide evenly over the {parts} '
                    f'devices of {of_mesh}; choose a multiple of {parts}, another {of_mesh}, or '
                    f'mesh.rules={{{axis!r}: None}}, with which each of them has it whole'
                )
            for name in names:
                if name in seen:
                    raise UserError(
                        f'{what}: the mesh axis {name!r} would divide both {seen[name]!r} and '
                        f'{axis!r}: change mesh.rules'
                    )
                seen[name] = axis
        return self.placed(spec)

    def activation_sharding(
        self, axes: Sequence[str | None], shape: tuple[int, ...], what: str
    ) -> NamedSharding:
        """Like `sharding`, but replicates positions that do not divide evenly.

        These are few: the position of a decoding step, or one that a model adds to its input.
        """
        parts, _ = self.parts('length')
        kept = zip(axes, shape, strict=True)
        whole = [None if axis == 'length' and size % parts else axis for axis, size in kept]
        return self.sharding(whole, shape, what)

    def data_shard(self) -> tuple[int, int]:
        """Returns (number of shards of each batch, index of the shard that this process feeds).

        Processes whose devices work on the same examples (a tensor-parallel group that spans them)
        feed the same shard.

        Raises:
            ValueError: processes share some examples, but not all.
        """
        parts, names = self.parts('batch')
        of_process: dict[int, set[int]] = {}
        devices: Any = self.placed(self.spec('batch')).devices_indices_map((parts,))
        for device, (part,) in devices.items():
            of_process.setdefault(device.process_index, set()).add(part.start or 0)
        shards = sorted({tuple(sorted(each)) for each in of_process.values()})
        if sum(map(len, shards)) != parts or len({len(shard) for shard in shards}) > 1:
            raise ValueError(
                f'the {len(of_process)} processes cannot divide the examples of a batch evenly '
                f'over the {parts} devices of the axes {" and ".join(names)}: make '
                f'{" * ".join(names)} a multiple of the processes, or the processes a multiple '
                'of it'
            )
        own = of_process[jax.process_index()]
        return len(shards), shards.index(tuple(sorted(own)))
