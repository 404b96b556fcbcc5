"""Operations between tensors of a directory and arrays of layers, as views of memory.

A view of a file reads only the slices that a device needs. The same view of a new tensor takes the
way back.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainer.warm_start_rules import Operation

Shape = tuple[int, ...]


class _Way(NamedTuple):
    """An operation.

    Attributes:
        shape: the shape of the tensor, from that of the array.
        view: the tensor -> a view whose shape is that of the array, up to `reshape`.
        offset: added to each number of the tensor.
    """

    shape: Callable[[Shape], Shape]
    view: Callable[[np.ndarray], np.ndarray] = lambda tensor: tensor
    offset: float = 0.0


_WAYS: dict[Operation, _Way] = {
    'same': _Way(lambda shape: shape),
    'minus_one': _Way(lambda shape: shape, offset=-1.0),
    'transpose': _Way(lambda shape: shape[::-1], np.transpose),
    'to_heads': _Way(lambda shape: (shape[1] * shape[2], shape[0]), np.transpose),
    'from_heads': _Way(lambda shape: (shape[2], shape[0] * shape[1]), np.transpose),
    'split_heads': _Way(lambda shape: (*shape[:-2], shape[-2] * shape[-1])),
    'split_inputs': _Way(lambda shape: (shape[0] * shape[1], shape[2])),
    'patches': _Way(
        lambda shape: (*shape[:1:-1], *shape[:2]), lambda tensor: np.transpose(tensor, (2, 3, 1, 0))
    ),
    'row': _Way(lambda shape: (1,) * (3 - len(shape)) + shape),
}
_NUM_AXES: dict[Operation, tuple[int, ...]] = {
    'transpose': (2,),
    'to_heads': (3,),
    'from_heads': (3,),
    'split_heads': (2, 3),
    'split_inputs': (3,),
    'patches': (4,),
    'row': (1, 2),
}


def tensor_shape(operation: Operation, shape: Shape) -> Shape | None:
    """The shape of the tensor of an array; None if no array of this shape has one.

    Example:
        >>> tensor_shape('to_heads', (576, 9, 64))
        (576, 576)
    """
    if len(shape) not in _NUM_AXES.get(operation, (len(shape),)):
        return None
    return _WAYS[operation].shape(shape)


def as_array(operation: Operation, tensor: np.ndarray, shape: Shape) -> np.ndarray:
    """A view of a tensor in the shape of the array. `offset` is not added."""
    return np.reshape(_WAYS[operation].view(tensor), shape, copy=False)


def offset(operation: Operation) -> float:
    """Added to each number of a tensor for the array."""
    return _WAYS[operation].offset
