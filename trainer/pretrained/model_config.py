"""Fields of a `config.json`. A field that no code reads is refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainer.pretrained.tensor_files import read_json
from trainer.runtime.data_paths import data_path
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, nearest

T = TypeVar('T')

FILE = 'config.json'

_WITHOUT_EFFECT = {
    'architectures', 'auto_map', 'bos_token_id', 'dtype', 'eos_token_id', 'initializer_range',
    'is_encoder_decoder', 'is_llama_config', 'max_position_embeddings', 'model_type',
    'output_attentions', 'output_hidden_states', 'pad_token_id', 'problem_type', 'return_dict',
    'torch_dtype', 'transformers.js_config', 'transformers_version', 'unk_token_id', 'use_cache',
}  # fmt: skip
"""Fields that change no number of a model's result. Rotary positions have no last one."""

_MAX_SIZE, _MAX_LAYERS = 2**31 - 1, 1000


class ModelConfig:
    """Reads fields of a `config.json`, and knows which are left.

    Attributes:
        file: for messages.
        directory: of the file; None where fields have none.
    """

    def __init__(self, values: Mapping[str, Any], file: JobPath | None = None) -> None:
        self.file = file or Path(FILE)
        self.directory = None if file is None else file.parent
        self._values = dict(values)
        self._read: set[str] = set()

    @classmethod
    def of(cls, directory: str) -> 'ModelConfig':
        """Reads the file of a directory; raises UserError."""
        file = data_path(directory) / FILE
        if not file.exists():
            raise UserError(f'{directory} has no {FILE}: name a directory that transformers saved')
        return cls(read_json(file), file)

    def without_effect(self) -> dict[str, Any]:
        """Fields of the tokenizer and the like, which change no number of a result."""
        names = _WITHOUT_EFFECT - {'architectures', 'auto_map', 'dtype', 'model_type'}
        return {name: value for name, value in self._values.items() if name in names}

    @property
    def architecture(self) -> str:
        """The first of `architectures`."""
        found = self._values.get('architectures')
        if not isinstance(found, list) or not found:
            raise UserError(f'{self.file}: architectures must name the class of the model')
        return str(found[0])

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value of a field.

        Args:
            default: where the field is missing or null; None requires it.
        """
        self._read.add(name)
        found = self._values.get(name)
        found = default if found is None else found
        if kind is float and type(found) is int:
            found = float(found)
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise UserError(f'{self.file}: {name} must be of type {kind.__name__}, not {found!r}')
        if kind is int:
            self._require_size(name, found)
        return found

    def _require_size(self, name: str, found: Any) -> None:
        # Each layer has objects in memory, before any tensor is read.
        most = _MAX_LAYERS if name.endswith(('_layers', '_layer')) else _MAX_SIZE
        least = 0 if name.endswith('_id') else 1
        if not least <= found <= most:
            raise UserError(f'{self.file}: {name} must be from {least} to {most:,}, not {found!r}')

    def optional(self, name: str, kind: type[T]) -> T | None:
        """The value of a field; None where it is missing or null."""
        self._read.add(name)
        return None if self._values.get(name) is None else self.get(name, kind)

    def require(self, name: str, *values: Any) -> None:
        """Refuses a field with another value than these; a missing one is no fault."""
        self._read.add(name)
        if name in self._values and self._values[name] not in values:
            legal = ' or '.join(map(repr, values))
            raise UserError(
                f'{self.file}: {name} is {self._values[name]!r}, which is not supported: only '
                f'{legal} is'
            )

    def ignore(self, *names: str) -> None:
        """Accepts any value of fields without an effect on this architecture."""
        self._read |= {*names}

    def finish(self) -> None:
        """Refuses fields that were not read: their effect would be missing in silence."""
        names = self._values.keys() - self._read - _WITHOUT_EFFECT
        left = sorted(name for name in names if not name.startswith('_'))
        if left:
            rendered = ', '.join(f'{name}={self._values[name]!r}' for name in left)
            raise UserError(
                f'{self.file}: {rendered}: {self.architecture} is not known to have '
                f'{"this field" if len(left) == 1 else "these fields"}, so its effect is unknown'
            )

    def choice(self, name: str, values: Sequence[str], default: str) -> str:
        """The value of a field that is one of some names."""
        found = self.get(name, str, default)
        if found not in values:
            hint = nearest(found, values)
            raise UserError(
                f'{self.file}: {name} is {found!r}, which is not supported. {hint} There are '
                f'{", ".join(values)}'
            )
        return found
