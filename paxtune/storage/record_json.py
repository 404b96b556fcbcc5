"""Records as JSON. Nothing that is read is executed."""

from typing import Any

import msgspec

from paxtune.study.record_checks import DamagedRecordError
from trainer.symbolic.plain_numbers import plain


def encode_json(value: Any) -> str:
    """Renders a record as JSON."""
    return msgspec.json.encode(value, enc_hook=_as_plain).decode()


def _as_plain(value: Any) -> Any:
    if (made := plain(value)) is value:
        raise TypeError(f'a record holds no {type(value).__name__}')
    return made


def decode_json(kind: type[Any], text: str) -> Any:
    """Reads a record of a class; raises DamagedRecordError if the text is something else."""
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise DamagedRecordError(str(error)) from error
