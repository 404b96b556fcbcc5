import dataclasses
import itertools

import numpy as np
import pytest

from trainer.runtime.slices import arranged


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
