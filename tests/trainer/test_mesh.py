import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from trainer.mesh import AXES, Mesh, activation_sharding, arranged, partition_spec, sharding
from trainer.symbolic.errors import UserError


@pytest.mark.pax('… axes: replica')
def test_the_rest_goes_to_the_open_axis() -> None:
    assert Mesh().shape(8) == (8, 1, 1, 1)
    assert Mesh(data=1, fsdp=-1, tensor=2).shape(8) == (1, 4, 1, 2)
    assert Mesh(data=1, sequence=-1).shape(8) == (1, 1, 8, 1)


@pytest.mark.pax('ici_mesh_shape')
def test_axes_are_within_a_slice_and_between_slices() -> None:
    # The multislice configuration of Pax: ICI [1, 64, 1], DCN [2, 1, 1].
    mesh = Mesh(data=1, fsdp=64, dcn_data=2)
    assert (mesh.ici_mesh_shape, mesh.dcn_mesh_shape) == ([1, 64, 1, 1], [2, 1, 1, 1])
    assert mesh.min_devices() == 128
    assert mesh.shapes(128) == ((1, 64, 1, 1), (2, 1, 1, 1))
    assert mesh.shape(128, num_slices=2) == (2, 64, 1, 1)
    assert Mesh(fsdp=4, dcn_fsdp=2).shape(16) == (2, 8, 1, 1)


def test_slices_go_to_the_open_axis() -> None:
    assert Mesh(data=1, fsdp=-1).shape(8, num_slices=2) == (2, 4, 1, 1)
    assert Mesh(data=1, fsdp=4, dcn_data=1, dcn_fsdp=-1).shape(8, num_slices=2) == (1, 8, 1, 1)
    assert Mesh(data=1, fsdp=2, dcn_fsdp=2).shape(8, num_slices=4) == (2, 4, 1, 1)


@pytest.mark.parametrize(
    ('mesh', 'num_slices', 'message'),
    [
        (Mesh(tensor=3), 1, 'does not divide 8 devices'),
        (Mesh(data=2, fsdp=2), 1, 'needs 4 devices, there are 8'),
        (Mesh(data=2), 2, 'needs 2 devices in a slice, there are 4'),
        (Mesh(dcn_data=2), 1, 'dcn_data=2 .* needs 2 slices, there are 1'),
        (Mesh(dcn_fsdp=2), 3, 'does not divide 3 slices'),
        (Mesh(), 3, '8 devices are not 3 slices'),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: Mesh, num_slices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mesh.shape(8, num_slices)


@pytest.mark.parametrize(
    'sizes',
    [
        {'data': -1, 'fsdp': -1},
        {'data': 0},
        {'tensor': -2},
        {'dcn_data': -1, 'dcn_tensor': -1},
        {'dcn_sequence': 0},
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match='-1'):
        Mesh(**sizes)


@dataclasses.dataclass(frozen=True)
class Device:
    """As much of a device as arranging them needs."""

    id: int
    process_index: int
    device_kind: str = 'made up'
    platform: str = 'made up'


@dataclasses.dataclass(frozen=True)
class SliceDevice(Device):
    slice_index: int = 0


@pytest.mark.parametrize(
    ('ici', 'dcn'), [((1, 4, 1, 1), (2, 1, 1, 1)), ((2, 1, 1, 2), (1, 2, 1, 1))]
)
def test_devices_of_a_slice_are_neighbours(ici: tuple[int, ...], dcn: tuple[int, ...]) -> None:
    plain = [Device(i, process_index=i // 4) for i in range(8)]
    of_one = [SliceDevice(i, process_index=i // 4) for i in range(8)]
    known = [SliceDevice(i, process_index=0, slice_index=i // 4) for i in range(8)]
    found = arranged(plain[::-1], ici, dcn)
    for index in itertools.product(*map(range, found.shape)):
        at = [i // within for i, within in zip(index, ici, strict=True)]
        assert found[index].process_index == np.ravel_multi_index(at, dcn)
    of_jax = arranged(known, ici, dcn)
    ids = np.vectorize(lambda device: device.id)
    np.testing.assert_array_equal(ids(found), ids(of_jax))
    np.testing.assert_array_equal(ids(found), ids(arranged(of_one, ici, dcn)))


def test_unknown_logical_axes_are_refused() -> None:
    with pytest.raises(ValueError, match='unknown logical axes'):
        partition_spec(('embed', 'embeded'))


@pytest.mark.pax('… uneven shards')
def test_uneven_dimensions_are_refused_with_their_name() -> None:
    with pytest.raises(
        UserError, match=r"parameter x: axis 'mlp' of size 6 .* mesh.tensor; choose"
    ):
        sharding(_abstract(1, 1, 1, 4), ('embed', 'mlp'), (8, 6), 'parameter x')
    with pytest.raises(UserError, match=r'6 devices of mesh.data × mesh.fsdp'):
        sharding(_abstract(2, 3, 1, 1), ('batch',), (8,), 'x')


def test_positions_that_do_not_divide_evenly_are_whole() -> None:
    axes = ('batch', 'length', 'features')
    for length, wanted in ((6, 'sequence'), (1, None)):
        at = activation_sharding(_abstract(2, 1, 2, 1), axes, (4, length, 8), 'x')
        assert at.spec[1] == wanted
    with pytest.raises(UserError, match="axis 'batch' of size 3"):
        activation_sharding(_abstract(2, 1, 2, 1), axes, (3, 1, 8), 'x')


def _abstract(*shape: int) -> Any:
    return jax.sharding.AbstractMesh(shape, AXES)
