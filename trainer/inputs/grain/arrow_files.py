"""Files of Arrow and Parquet, and data sets that Hugging Face's `datasets` saved."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.runtime.data_paths import data_path, find, open_data
from trainer.runtime.directory import JobPath
from trainer.symbolic import extras
from trainer.symbolic.errors import UserError

PARQUET, ARROW = '.parquet', '.arrow'
_STATE, _SPLITS = 'state.json', 'dataset_dict.json'


def arrow(user: str) -> Any:
    """The module `pyarrow`, with `pyarrow.ipc` and `pyarrow.parquet`; `user` is for the message."""
    with extras.needed('grain', user):
        for name in ('ipc', 'parquet'):
            importlib.import_module(f'pyarrow.{name}')
        return importlib.import_module('pyarrow')


def data_files(path: str, below: bool = False) -> list[JobPath]:
    """The files of a path or pattern, or those of the directory of a saved data set, in its order.

    Args:
        path: on a disk or in a bucket.
        below: another directory stands for all files below it.

    Raises:
        UserError: there is none, or the directory holds several splits.
    """
    folder = data_path(path)
    try:
        with open_data(folder / _STATE) as opened:
            names = [each['filename'] for each in json.load(opened)['_data_files']]
        return [found for name in names for found in _one(folder / Path(name).name)]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f'{folder / _STATE} names no files of a data set: {error!r}') from error
    except OSError:  # No saved data set.
        pass
    if splits := find(folder / _SPLITS):
        with open_data(splits[0]) as opened:
            names = json.load(opened).get('splits', [])
        raise UserError(
            f'{path} holds splits: choose {" or ".join(str(folder / n) for n in names)}'
        )
    return find(path, below)


def table(file: Path) -> Any:
    """An Arrow file as a table, mapped into memory; raises UserError if it is damaged."""
    pyarrow = arrow('an Arrow file')
    try:
        mapped = pyarrow.memory_map(str(file))
        is_file = mapped.read(6) == b'ARROW1'
        mapped.seek(0)
        open_ = pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream
        return open_(mapped).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f'{file} is no Arrow file: {error}') from error


def rows(file: JobPath, copy: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet or an Arrow file; `copy` is the local one."""
    pyarrow = arrow('a Parquet file')
    if file.suffix == ARROW:
        batches = iter(table(copy).to_batches())
    else:
        try:
            batches = pyarrow.parquet.ParquetFile(copy).iter_batches()
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f'{file} is no Parquet file: {error}') from error
    try:
        for batch in batches:
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f'{file} is damaged: {error}') from error


def _one(file: JobPath) -> list[JobPath]:
    found = find(file)
    if not found:
        raise UserError(f'{file} is missing, which {_STATE} names')
    return found
