"""Slices: groups of devices that a fast network connects."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.experimental.mesh_utils import create_hybrid_device_mesh


def count_slices(devices: Sequence[Any]) -> int | None:
    """Number of slices in JAX; None if it defines none."""
    found = {getattr(device, 'slice_index', 0) for device in devices}
    return len(found) if len(found) > 1 else None


def arranged(
    devices: Sequence[Any], ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int]
) -> np.ndarray:
    """Arranges the devices of several slices as an array, whose shape is the product of both.

    Along each axis, the devices of a slice are neighbours.
    """
    if count_slices(devices) is not None:
        return create_hybrid_device_mesh(ici_mesh_shape, dcn_mesh_shape, devices)
    ordered = np.empty(len(devices), object)
    ordered[:] = sorted(devices, key=lambda device: (device.process_index, device.id))
    axes = len(ici_mesh_shape)
    blocks = ordered.reshape(*dcn_mesh_shape, *ici_mesh_shape)
    paired = blocks.transpose([at for axis in range(axes) for at in (axis, axes + axis)])
    return paired.reshape(np.multiply(dcn_mesh_shape, ici_mesh_shape))
