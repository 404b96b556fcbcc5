from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.inputs.grain.arrow_files import ARROW, PARQUET, data_files, rows
from trainer.inputs.text.json_lines import objects
from trainer.runtime.data_paths import local_copy
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

_EXAMPLE = '{"prompt": "1 + 1 =", "answer": " 2"}'


def records_of(paths: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of all files of paths, each with its place; raises UserError as the others."""
    for file in record_files(paths):
        yield from records(file)


def record_files(paths: Sequence[str]) -> list[JobPath]:
    """The files of paths, patterns, directories and saved data sets, each once, in their order.

    Raises:
        UserError: a path has no file.
    """
    found: dict[JobPath, None] = {}
    for path in paths:
        files = data_files(path, below=True)
        if not files:
            raise UserError(f'paths: no file found for {path!r} (current directory {Path.cwd()})')
        found |= dict.fromkeys(files)
    return list(found)


def records(file: JobPath) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file, each with its place, for messages.

    Args:
        file: `.parquet`; `.arrow`; or lines of JSON objects, plain or compressed by gzip.

    Raises:
        UserError: the file or a record is damaged.
    """
    if file.suffix not in (ARROW, PARQUET):
        for number, found in objects(file, example=_EXAMPLE):
            yield f'{file}, line {number + 1}', found
        return
    try:
        copy = local_copy(file)
    except OSError as error:
        raise UserError(f'{file} cannot be read: {error.strerror}') from error
    for number, row in enumerate(rows(file, copy), 1):
        # A table has all columns in each row.
        yield f'{file}, row {number}', {name: x for name, x in row.items() if x is not None}
