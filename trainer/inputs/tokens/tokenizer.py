import functools
import hashlib
import importlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.inputs.tokens.base import Vocabulary
from trainer.runtime.data_paths import data_path, open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

FILE = 'tokenizer.json'
_SETTINGS = ('tokenizer_config.json', 'special_tokens_map.json')
_MODEL_SETTINGS = ('generation_config.json', 'config.json')
_BYTE = re.compile('<0x[0-9A-F]{2}>')


def is_tokenizer(path: str) -> bool:
    """True for a directory, and for a JSON file."""
    place = data_path(path)
    return place.suffix == '.json' or place.is_dir()


class TokenizerVocabulary(Vocabulary):
    """A `tokenizer.json` of the library `tokenizers`, as Hugging Face directories have it.

    Files beside it name the special tokens: `tokenizer_config.json`, `special_tokens_map.json`,
    `generation_config.json` and `config.json`, the first that knows a token. Without a token for
    the beginning, the end of one document is the beginning of the next.

    Text that looks like a special token becomes that token, as in `transformers`. Bytes are those
    of the tokens: exact for byte-level BPE; without spaces for WordPiece; one for an unknown token.
    """

    def __init__(self, path: str) -> None:
        """Loads a directory or a file; raises ValueError if it is no tokenizer, or lacks an end."""
        place = data_path(path)
        file = place if place.suffix == '.json' else place / FILE
        with open_data(file) as opened:
            content = opened.read()
        self._tokenizer = _tokenizer(content)
        self._settings = [(name, _json(file.parent / name)) for name in _SETTINGS]
        self._model_settings = [(name, _json(file.parent / name)) for name in _MODEL_SETTINGS]
        tokens = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(tokens.values(), default=-1) + 1
        self.special_tokens = dict(self._special_tokens())
        self.chat_template = _chat_template(file.parent, dict(self._settings))
        ends = self._ids('eos') or self._ids('sep')
        if not ends:
            raise ValueError(
                'no file names the token that ends a text: add "eos_token" to '
                f'{file.parent / _SETTINGS[0]}'
            )
        begins = self._ids('bos') or self._ids('cls')
        self.eos_id, self._eos_ids = ends[0], ends
        self.bos_id = begins[0] if begins else self.eos_id
        self.pad_id = (self._ids('pad') or ends)[0]
        self._prefix = self._ids_before_text()
        self.bytes_per_id = _bytes_per_id(json.loads(content), self._tokenizer, self.vocab_size)
        ids = f'{self.bos_id} {self.eos_id} {self._prefix}'
        self.fingerprint = hashlib.sha256(content + ids.encode()).hexdigest()

    @property
    def eos_ids(self) -> list[int]:
        return list(self._eos_ids)

    @property
    def prefix(self) -> list[int]:
        return list(self._prefix)

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._encoding(text).ids, np.int32)

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        encoding = self._encoding(''.join(parts))
        starts = [begin for begin, _ in encoding.offsets]
        ends = list(itertools.accumulate(map(len, parts)))
        if not starts or {*ends[:-1]} - {0, ends[-1]} <= {*starts}:
            at = np.searchsorted(np.maximum.accumulate([0, *starts])[1:], ends[:-1])
            return np.split(np.array(encoding.ids, np.int32), at)
        return super().encode_parts(parts)  # A token would stand in two parts.

    def decode(self, ids: np.ndarray) -> str:
        known = ids[(ids >= 0) & (ids < self.vocab_size)]
        return str(self._tokenizer.decode(known.tolist(), skip_special_tokens=True))

    def for_seqio(self) -> Any:
        raise UserError(
            f'a {FILE} is no vocabulary of SeqIO, whose id 0 is padding: read the texts with '
            'another input, such as JsonShardsInput or GrainInput'
        )

    def _encoding(self, text: str) -> Any:
        # JSON can contain half of a surrogate pair, which UTF-8 cannot: it becomes '?'.
        text = text.encode('utf-8', errors='replace').decode()
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _special_tokens(self) -> Iterator[tuple[str, str]]:
        for _, settings in reversed(self._settings):
            for name, value in settings.items():
                token = value.get('content') if isinstance(value, dict) else value
                if name.endswith('_token') and isinstance(token, str):
                    yield name, token

    def _ids(self, kind: str) -> list[int]:
        """The ids of a special token, the usual one first; [] where no file names it."""
        found = []
        if (token := self.special_tokens.get(f'{kind}_token')) is not None:
            found.append(self._tokenizer.token_to_id(token))
            if found[0] is None:
                raise ValueError(f'its {kind}_token {token!r} is no token of {FILE}')
        for name, settings in self._model_settings:
            ids = settings.get(f'{kind}_token_id')
            for each in ids if isinstance(ids, list) else [] if ids is None else [ids]:
                if type(each) is not int or not 0 <= each < self.vocab_size:
                    raise ValueError(
                        f'{kind}_token_id of {name} is {each!r}, but {FILE} has {self.vocab_size} '
                        'ids'
                    )
                found.append(each)
        return list(dict.fromkeys(found))

    def _ids_before_text(self) -> list[int]:
        adds = dict(self._settings)[_SETTINGS[0]].get('add_bos_token')
        if isinstance(adds, bool):
            return [self.bos_id] * adds
        encoding = self._tokenizer.encode('a')
        return encoding.ids[: encoding.special_tokens_mask.index(0)]


def _tokenizer(content: bytes) -> Any:
    with extras.needed('huggingface', f'vocabulary of {FILE}'):
        tokenizers = importlib.import_module('tokenizers')
    try:
        found = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # The library raises plain exceptions.
        raise ValueError(f'it is no {FILE} of the library tokenizers ({error})') from error
    # Rows have their own lengths.
    found.no_truncation()
    found.no_padding()
    return found


def _json(file: JobPath) -> dict[str, Any]:
    """The object of a JSON file; {} without the file."""
    try:
        with open_data(file) as opened:
            found = json.load(opened)
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{file} is no JSON ({error})') from error
    if not isinstance(found, dict):
        raise ValueError(f'{file} is no JSON object')
    return found


def _chat_template(folder: JobPath, settings: Mapping[str, Mapping[str, Any]]) -> str:
    file = folder / 'chat_template.jinja'
    try:
        with open_data(file) as opened:
            return opened.read().decode()
    except FileNotFoundError:
        found = settings[_SETTINGS[0]].get('chat_template', '')
    except UnicodeDecodeError as error:
        raise ValueError(f'{file} is no text ({error})') from error
    if isinstance(found, list):  # Several by name.
        named = [each for each in found if isinstance(each, dict)]
        found = {str(each.get('name')): each.get('template') for each in named}.get('default')
    return found if isinstance(found, str) else ''


def _bytes_per_id(description: Mapping[str, Any], tokenizer: Any, size: int) -> np.ndarray:
    kinds = {*_kinds(description.get('decoder')), *_kinds(description.get('pre_tokenizer'))}
    of = functools.partial(_bytes_of, kinds=kinds)
    sizes = np.zeros(size, np.float32)
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        sizes[number] = of(token)
    for number, added in tokenizer.get_added_tokens_decoder().items():
        sizes[number] = 0 if added.special else len(added.content.encode())
    unknown = description['model'].get('unk_token')
    if unknown is not None and (number := tokenizer.token_to_id(unknown)) is not None:
        sizes[number] = 1
    return sizes


def _bytes_of(token: str, kinds: set[str]) -> int:
    if 'ByteLevel' in kinds:
        return len(token)  # Each byte is one character.
    if 'WordPiece' in kinds:
        return len(token.removeprefix('##').encode())
    return 1 if _BYTE.fullmatch(token) else len(token.replace('▁', ' ').encode())


def _kinds(part: Any) -> Iterator[str]:
    """The types of a part of a tokenizer, and of the parts of a sequence."""
    for each in part if isinstance(part, list) else [part]:
        if isinstance(each, dict):
            yield str(each.get('type'))
            for value in each.values():
                if isinstance(value, list):
                    yield from _kinds(value)
