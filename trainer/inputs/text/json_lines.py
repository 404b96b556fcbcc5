"""Files with one JSON object per line, compressed or plain."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

from trainer.runtime.data_paths import find, open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError


def texts(file: JobPath, first: int = 0) -> Iterator[tuple[int, str]]:
    """The `text` of each line of a compressed file, from number `first` (from 0) on.

    Blank lines count, and have none.

    Raises:
        UserError: the file or a line is damaged; the message counts lines from 1.
    """
    for number, document in _lines(file, first, is_compressed=True):
        try:
            yield number, _text_of(document)
        except ValueError as error:
            raise UserError(
                f'{file}, line {number + 1}: {error}. Each line needs one, such as '
                '{"text": "abc"}'
            ) from error


def records(paths: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the lines of files, each with its file and line for messages.

    Args:
        paths: files, directories or patterns, on a disk or in a bucket; those that end in `.gz`
            are compressed.

    Raises:
        UserError: there is no such file, or a file or a line is damaged.
    """
    for path in paths:
        files = find(path, below=True)
        if not files:
            raise UserError(f'no file found for {path!r}: set it to a file, directory or pattern')
        for file in files:
            for number, line in _lines(file, 0, file.suffix == '.gz'):
                where = f'{file}, line {number + 1}'
                try:
                    record = _object_of(line)
                except ValueError as error:
                    raise UserError(f'{where}: {error}') from error
                yield where, record


def _lines(file: JobPath, first: int, is_compressed: bool) -> Iterator[tuple[int, bytes]]:
    number = -1
    try:
        with open_data(file) as stored, _expanded(stored, is_compressed) as lines:
            for number, line in enumerate(lines):
                if number >= first and line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f'{file} is damaged after line {number + 1}: {error}. Download the file again.'
        ) from error


def _expanded(stored: IO[bytes], is_compressed: bool) -> AbstractContextManager[Iterable[bytes]]:
    return gzip.open(stored, 'rb') if is_compressed else nullcontext(stored)


def _text_of(line: bytes) -> str:
    document = _parsed(line)
    if not isinstance(document, dict) or not isinstance(document.get('text'), str):
        raise ValueError('not a JSON object with a "text"')
    return document['text']


def _object_of(line: bytes) -> dict[str, Any]:
    if not isinstance(document := _parsed(line), dict):
        raise ValueError(f'not a JSON object: {line[:50]!r}')
    return document


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:  # Not JSON, or not UTF-8.
        raise ValueError(f'no JSON ({error})') from error


def summary(file: JobPath) -> str:
    """Name, size and checksum of a gzip file, from its last bytes.

    A gzip file ends with the CRC-32 and the size of its content. So even a large file is identified
    by its content without reading all of it.
    """
    with open_data(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        return f'{file.name} {size} {stream.read().hex()}'
