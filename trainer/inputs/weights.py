"""Weights of examples. Nothing else reads them from batches.

A batch has its weights in the feature `weights`, [B] of examples or [B, T] of positions, and in
Pax's `eval_sample_weights` [B]. Where there are both, they are multiplied. Padding has weight 0.
A dotted feature, such as `a.label` of a `MultiInput`, has the weights of its part: `a.weights`.

The functions take arrays of numpy and of JAX.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from trainer.symbolic.errors import ShapeError

NAMES = ('weights', 'eval_sample_weights')
"""Names of weights, in the whole batch or after the name of a part."""

Arrays = Mapping[str, Any]


def weight_features(names: Iterable[str], *features: str) -> list[str]:
    """The features of a batch that hold the weights of some features, by default of all.

    Example:
        >>> names = ['a.label', 'a.weights', 'b.weights', 'eval_sample_weights']
        >>> weight_features(names, 'a.label')
        ['a.weights', 'eval_sample_weights']
    """
    found = sorted(name for name in names if name.rpartition('.')[2] in NAMES)
    return [name for name in found if not features or any(_weighs(name, f) for f in features)]


def weights_of(batch: Arrays, feature: str, *others: str) -> Any:
    """Weights of a feature, float32; None where all examples count alike.

    An example that is padding in one of the other features has weight 0.
    """
    names = weight_features(batch, feature)
    more = [name for name in weight_features(batch, feature, *others) if name not in names]
    arrays = [batch[name] for name in names] + [_mask(batch[name]) for name in more]
    return _product(arrays) if arrays else None


def weights_by_part(batch: Arrays) -> dict[str, Any]:
    """The weights of each part of a batch that has some, by its name; '' for the whole batch."""
    parts: dict[str, list[Any]] = {}
    for name in weight_features(batch):
        parts.setdefault(name.rpartition('.')[0], []).append(batch[name])
    return {part: _product(arrays) for part, arrays in parts.items()}


def example_mask(batch: Arrays) -> Any:
    """True for examples with a weight in a part of the batch, bool [B]; None without weights."""
    mask = None
    for weights in weights_by_part(batch).values():
        mask = _mask(weights) if mask is None else mask | _mask(weights)
    return mask


def broadcast(weights: Any, shape: tuple[int, ...]) -> Any:
    """Weights of an array with a value for each example or position; 1 for None.

    Raises:
        ShapeError: the axes of the weights are not the first axes of the shape.

    Example:
        >>> broadcast(np.array([1.0, 0.0], np.float32), (2, 3)).tolist()
        [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    if weights is None:
        return np.ones(shape, np.float32)
    if weights.shape == shape:
        return weights
    if weights.shape != shape[: weights.ndim]:
        raise ShapeError(
            f'weights of shape {weights.shape} do not fit values of shape {shape}: their axes must '
            'be its first axes'
        )
    return _product([weights, np.ones(shape, np.float32)])


def _weighs(name: str, feature: str) -> bool:
    part = name.rpartition('.')[0]
    return not part or feature.startswith(f'{part}.')


def _mask(weights: Any) -> Any:
    return (weights.reshape(len(weights), -1) != 0).any(axis=1)


def _product(arrays: list[Any]) -> Any:
    """The product of arrays, float32; short ones have the first axes of long ones."""
    ndim = max(array.ndim for array in arrays)
    product: Any = None
    for array in arrays:
        wide = array.astype(np.float32).reshape(*array.shape, *(1,) * (ndim - array.ndim))
        product = wide if product is None else product * wide
    return product
