"""Compressed files with one JSON object per line."""

import gzip
import json
import zlib
from collections.abc import Iterator

from trainer.runtime.data_paths import open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError


def texts(file: JobPath, first: int = 0) -> Iterator[tuple[int, str]]:
    """The `text` of each line from number `first` (counted from 0) on, with its number.

    Blank lines count, and have none.

    Raises:
        UserError: the file or a line is damaged; the message counts lines from 1.
    """
    number = -1
    try:
        with open_data(file) as compressed, gzip.open(compressed, 'rb') as lines:
            for number, line in enumerate(lines):
                if number >= first and line.strip():
                    yield number, _text_of(line)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f'{file} is damaged after line {number + 1}: {error}. Download the file again.'
        ) from error
    except ValueError as error:
        raise UserError(
            f'{file}, line {number + 1}: {error}. Each line needs one, such as {{"text": "abc"}}'
        ) from error


def _text_of(line: bytes) -> str:
    try:
        document = json.loads(line)
    except ValueError as error:  # Not JSON, or not UTF-8.
        raise ValueError(f'no JSON ({error})') from error
    if not isinstance(document, dict) or not isinstance(document.get('text'), str):
        raise ValueError('not a JSON object with a "text"')
    return document['text']


def summary(file: JobPath) -> str:
    """Name, size and checksum of a gzip file, from its last bytes.

    A gzip file ends with the CRC-32 and the size of its content. So even a large file is identified
    by its content without reading all of it.
    """
    with open_data(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        return f'{file.name} {size} {stream.read().hex()}'
