"""Files with one JSON object per line, plain or compressed by gzip."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import IO, Any

from trainer.runtime.data_paths import open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

_GZIP = b'\x1f\x8b'
_TEXT = '{"text": "abc"}'


def texts(file: JobPath, first: int = 0) -> Iterator[tuple[int, str]]:
    """The `text` of each line from number `first` (counted from 0) on, with its number.

    Blank lines count, and have none.

    Raises:
        UserError: the file or a line is damaged; the message counts lines from 1.
    """
    for number, found in objects(file, first, example=_TEXT, must_be_zipped=True):
        if not isinstance(found.get('text'), str):
            raise _wrong(file, number, 'not a JSON object with a "text"', _TEXT)
        yield number, found['text']


def objects(
    file: JobPath, first: int = 0, *, example: str, must_be_zipped: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The object of each line from number `first` (counted from 0) on, with its number.

    Args:
        file: plain, or compressed by gzip.
        first: the number of the first line.
        example: an object, for messages.
        must_be_zipped: refuses a plain file.

    Raises:
        UserError: the file or a line is damaged; the message counts lines from 1.
    """
    number = -1
    try:
        with open_data(file) as stream, _lines(stream, must_be_zipped) as lines:
            for number, line in enumerate(lines):
                if number >= first and line.strip():
                    yield number, _object_of(line)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f'{file} is damaged after line {number + 1}: {error}. Download the file again.'
        ) from error
    except ValueError as error:
        raise _wrong(file, number, str(error), example) from error


def _lines(stream: IO[bytes], must_be_zipped: bool) -> Any:
    is_zipped = must_be_zipped or stream.read(2) == _GZIP
    stream.seek(0)
    return gzip.open(stream, 'rb') if is_zipped else stream


def _object_of(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    # Not JSON, not UTF-8, or too deep.
    except (ValueError, RecursionError) as error:
        raise ValueError(f'no JSON ({error})') from error
    if not isinstance(found, dict):
        raise ValueError('not a JSON object')
    return found


def _wrong(file: JobPath, number: int, reason: str, example: str) -> UserError:
    return UserError(f'{file}, line {number + 1}: {reason}. Each line needs one, such as {example}')


def summary(file: JobPath) -> str:
    """Name, size and checksum of a gzip file, from its last bytes.

    A gzip file ends with the CRC-32 and the size of its content. So even a large file is identified
    by its content without reading all of it.
    """
    with open_data(file) as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        return f'{file.name} {size} {stream.read().hex()}'
