from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch, Input
from trainer.symbolic.errors import UserError

Spec = Mapping[str, jax.ShapeDtypeStruct]


def check_batch(batch: Batch, spec: Spec, data: Input) -> Batch:
    """Returns a padded batch of an input if it fits the spec of compiled steps.

    Raises:
        UserError: the batch has others, or integers that JAX would truncate. The message starts
            with the path of the input.
    """
    wrong = sorted(spec.keys() ^ batch.keys())
    wrong += [name for name in spec if name in batch and _of(batch[name]) != _of(spec[name])]
    where = data.sym_path or type(data).__name__
    if wrong:
        name = wrong[0]
        raise UserError(
            f'{where}: its batch has {name!r} as '
            f'{_described(batch.get(name))}, but element_spec() has {_described(spec.get(name))}'
        )
    if large := sorted(name for name, array in batch.items() if _is_truncated(array)):
        raise UserError(f'{where}: {large[0]!r} has integers that need more than 32 bits')
    return batch


def _is_truncated(array: Any) -> bool:
    if array.dtype not in (np.int64, np.uint64) or not array.size:
        return False
    kept = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
    return bool(array.min() < kept.min or array.max() > kept.max)


def _of(array: Any) -> tuple[Any, ...]:
    return tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype)


def _described(array: Any) -> str:
    if array is None:
        return 'nothing'
    shape, dtype = _of(array)
    return f'{dtype} {list(shape)}'
