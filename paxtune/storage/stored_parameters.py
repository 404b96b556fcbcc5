"""Parameters of stored trials, in Vizier's protocol buffers."""

import sys
from collections.abc import Mapping
from typing import Any

from vizier._src.service import study_pb2


def write_parameters(proto: study_pb2.Trial, parameters: Mapping[str, str | float]) -> None:
    """Writes the parameters of a new trial."""
    for name, value in parameters.items():
        parameter = proto.parameters.add(parameter_id=name)
        if isinstance(value, str):
            parameter.value.string_value = value
        else:
            parameter.value.number_value = value


def read_parameters(proto: study_pb2.Trial) -> dict[str, str | float]:
    """Reads the parameters of a trial, by name."""
    return {sys.intern(each.parameter_id): _value(each.value) for each in proto.parameters}


def _value(value: Any) -> str | float:
    is_text = value.HasField('string_value')  # Perhaps an empty one, of a Vizier client.
    found: str | float = value.string_value if is_text else value.number_value
    return found
