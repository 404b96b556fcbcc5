"""Attributes of trials: small values by name, which programs set while a trial runs."""

import math
import numbers
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from trainer.symbolic.plain_numbers import plain

MAX_ATTRIBUTES = 64
"""Attributes of one trial."""

MAX_NAME = 100
"""Characters of a name."""

MAX_TEXT = 1000
"""Characters of a text."""

Value: TypeAlias = bool | int | float | str

_INT64 = 2**63

Attributes: TypeAlias = Annotated[
    Mapping[
        Annotated[str, Meta(min_length=1, max_length=MAX_NAME)],
        bool
        | Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)]
        | float
        | Annotated[str, Meta(max_length=MAX_TEXT)],
    ],
    Meta(max_length=MAX_ATTRIBUTES),
]
"""Values by name, within bounds that decoders hold."""


def validated(name: str, value: Any) -> Value:
    """Returns an attribute's value as a plain one; scalars of NumPy and JAX become numbers.

    Raises:
        ValueError: the name or the value is none that a study keeps.

    Example:
        >>> validated('dataset', 'v2')
        'v2'
        >>> validated('loss', float('nan'))
        Traceback (most recent call last):
        ...
        ValueError: the attribute loss is nan: it must be finite
    """
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME:
        raise ValueError(
            f'an attribute has a printable name of at most {MAX_NAME} characters, not {name!r:.120}'
        )
    value = plain(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        if not -_INT64 <= int(value) < _INT64:
            raise ValueError(f'the attribute {name} does not fit into 64 bits')
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise ValueError(f'the attribute {name} is {float(value)}: it must be finite')
        return float(value)
    if not isinstance(value, str):
        raise ValueError(
            f'the attribute {name} must be a number, a boolean or a text, not a '
            f'{type(value).__name__}'
        )
    return _text(name, value)


def _text(name: str, value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(
            f'the attribute {name} has {len(value):,} characters, and at most {MAX_TEXT:,} are '
            'kept: write a file into the directory of the trial'
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'the attribute {name} is no text: {error}') from error
    return str(value)
