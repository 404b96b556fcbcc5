"""Readers of documents with random access by number.

Pickled readers hold no open files, so that each worker process opens its own.
"""

import bisect
import functools
import hashlib
import importlib
import itertools
import json
import mmap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainer.inputs.grain.arrow_files import arrow, table
from trainer.runtime.data_paths import open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

_END_BYTES = 65_536
_ROW_GROUPS_KEPT = 16


class Documents(Protocol):
    """Texts by number, with a fingerprint: equal fingerprints, equal texts."""

    fingerprint: str

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> str: ...


class _InParts:
    """Documents in parts, such as files, with the number of documents before each part."""

    _before: list[int]

    def __len__(self) -> int:
        return self._before[-1]

    def _place(self, number: int) -> tuple[int, int]:
        """The part of a document, and the number of the document there."""
        part = bisect.bisect_right(self._before, number) - 1
        return part, number - self._before[part]


class Lines(_InParts):
    """The non-blank lines of text files. The files are memory-mapped."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Reads the files once, to index their lines."""
        self._files = list(files)
        starts, ends = [], []
        digest = hashlib.sha256()
        for file in self._files:
            begin, end = _lines_of(file, digest)
            starts.append(begin)
            ends.append(end)
        self._starts, self._ends = starts, ends
        self._before = [0, *itertools.accumulate(map(len, starts))]
        self.fingerprint = digest.hexdigest()
        self._maps = _Opened(_map)

    def __getitem__(self, number: int) -> str:
        file, line = self._place(number)
        text = self._maps[self._files[file]]
        return _decoded(
            text[self._starts[file][line] : self._ends[file][line]], self._files[file], number
        )


class ArrayRecords(_InParts):
    """The records of ArrayRecord files: texts, or JSON objects with a text."""

    def __init__(self, files: Sequence[Path], field: str) -> None:
        """Opens the files; `field` names the text in JSON objects, '' where records are texts.

        Raises:
            UserError: a file is no ArrayRecord file.
        """
        self._files, self._field = list(files), field
        self.fingerprint = _named_by_ends(self._files, f'records {field}')
        self._opened = _Opened(_records)
        self._before = [0]
        for file in self._files:
            self._before.append(self._before[-1] + len(self._opened[file]))

    def __getitem__(self, number: int) -> str:
        part, record_number = self._place(number)
        file = self._files[part]
        try:
            record = self._opened[file][record_number]
        except RuntimeError as error:
            raise UserError(f'{file} is damaged at record {number}: {error}') from error
        text = _decoded(record, file, number)
        return _field_of(text, self._field, file, number) if self._field else text


class ParquetColumn(_InParts):
    """The texts of a column of Parquet files. Whole row groups are read and cached."""

    def __init__(self, files: Sequence[JobPath], column: str) -> None:
        """Reads the files' metadata; raises UserError unless they are Parquet with that column."""
        self._column = column
        self._groups: list[tuple[JobPath, int]] = []
        self._before = [0]
        for file in files:
            for group, rows in enumerate(_row_groups(file, column)):
                self._groups.append((file, group))
                self._before.append(self._before[-1] + rows)
        self.fingerprint = _named_by_ends(files, f'column {column}')

    def __getitem__(self, number: int) -> str:
        part, row = self._place(number)
        file, group = self._groups[part]
        return _text_of(_row_group(file, group, self._column)[row], self._column, number, file)


class ArrowColumn(_InParts):
    """The texts of a column of Arrow files, which are memory-mapped."""

    def __init__(self, files: Sequence[Path], column: str) -> None:
        """Opens the files; raises UserError unless they are Arrow with that column."""
        self._files, self._column = list(files), column
        self.fingerprint = _named_by_ends(self._files, f'column {column}')
        self._tables = _Opened(table)
        self._before = [0]
        for file in self._files:
            _require_column(self._tables[file].column_names, column, file)
            self._before.append(self._before[-1] + len(self._tables[file]))

    def __getitem__(self, number: int) -> str:
        part, row = self._place(number)
        file = self._files[part]
        return _text_of(self._tables[file].column(self._column)[row], self._column, row, file)


class _Opened:
    """Open files of this process, opened at first use."""

    def __init__(self, opener: Callable[[Path], Any]) -> None:
        self._opener = opener
        self._start()

    def __getitem__(self, file: Path) -> Any:
        with self._lock:
            if file not in self._found:
                self._found[file] = self._opener(file)
            return self._found[file]

    def __getstate__(self) -> Callable[[Path], Any]:
        return self._opener

    def __setstate__(self, opener: Callable[[Path], Any]) -> None:
        self._opener = opener
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Path, Any] = {}


def _lines_of(file: Path, digest: Any) -> tuple[np.ndarray, np.ndarray]:
    starts, ends, at = [], [], 0
    with file.open('rb') as lines:
        for line in lines:
            digest.update(line)
            text = line.rstrip(b'\r\n')
            if text.strip():
                starts.append(at)
                ends.append(at + len(text))
            at += len(line)
    digest.update(b'end of file\n')
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _map(file: Path) -> mmap.mmap:
    with file.open('rb') as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _records(file: Path) -> Any:
    with extras.needed('grain', 'ArrayRecordFiles'):
        sources = importlib.import_module('grain').sources
        importlib.import_module('array_record')
    try:
        found = sources.ArrayRecordDataSource([str(file)])
        len(found)  # Looks into the file.
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f'{file} is no ArrayRecord file: {error}') from error
    return found


def _row_groups(file: JobPath, column: str) -> list[int]:
    pyarrow = arrow('ParquetFiles')
    try:
        with open_data(file) as opened:
            metadata = pyarrow.parquet.read_metadata(opened)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f'{file} is no Parquet file: {error}') from error
    _require_column(metadata.schema.to_arrow_schema().names, column, file)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@functools.lru_cache(maxsize=_ROW_GROUPS_KEPT)
def _row_group(file: JobPath, group: int, column: str) -> Any:
    pyarrow = arrow('ParquetFiles')
    try:
        with open_data(file) as stream, pyarrow.parquet.ParquetFile(stream) as opened:
            return opened.read_row_group(group, columns=[column]).column(0)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f'{file} is damaged in row group {group}: {error}') from error


def _require_column(names: Sequence[str], column: str, file: JobPath) -> None:
    if column not in names:
        raise UserError(f'{file} has no column {column!r}, it has {list(names)}')


def _text_of(value: Any, column: str, row: int, file: JobPath) -> str:
    text = value.as_py()
    if not isinstance(text, str):
        raise UserError(f'{file}: {column!r} of row {row} is no text: {text!r}')
    return text


def _named_by_ends(files: Sequence[JobPath], what: str) -> str:
    """Fingerprint of large files by their sizes, beginnings and ends."""
    digest = hashlib.sha256(what.encode())
    for file in files:
        with open_data(file) as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            first = stream.read(_END_BYTES)
            stream.seek(max(0, size - _END_BYTES))
            digest.update(b'%d\n' % size + first + stream.read())
    return digest.hexdigest()


def _decoded(text: bytes, file: Path, number: int) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UserError(f'{file}: document {number} is no UTF-8: {error}') from error


def _field_of(text: str, field: str, file: Path, number: int) -> str:
    try:
        found = json.loads(text)[field]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f'{file}: record {number} is no JSON object with {field!r}') from error
    if not isinstance(found, str):
        raise UserError(f'{file}: {field!r} of record {number} is no text')
    return found
