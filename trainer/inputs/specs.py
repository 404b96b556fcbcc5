from collections.abc import Mapping
from typing import Any

import jax

from trainer.inputs.base import Batch, Input
from trainer.symbolic.errors import UserError

Spec = Mapping[str, jax.ShapeDtypeStruct]


def check_batch(batch: Batch, spec: Spec, data: Input) -> Batch:
    """Returns a padded batch of an input if it fits the spec, that of compiled steps.

    Raises:
        UserError: the batch has others. The message starts with the path of the input.
    """
    wrong = sorted(spec.keys() ^ batch.keys())
    wrong += [name for name in spec if name in batch and _of(batch[name]) != _of(spec[name])]
    if not wrong:
        return batch
    name = wrong[0]
    raise UserError(
        f'{data.sym_path or type(data).__name__}: its batch has {name!r} as '
        f'{_described(batch.get(name))}, but element_spec() has {_described(spec.get(name))}'
    )


def _of(array: Any) -> tuple[Any, ...]:
    return tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype)


def _described(array: Any) -> str:
    if array is None:
        return 'nothing'
    shape, dtype = _of(array)
    return f'{dtype} {list(shape)}'
