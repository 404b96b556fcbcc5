import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainer.runtime.directory import partial_id
from trainer.symbolic.errors import UserError, is_disk_full


def require_new(out: Path) -> None:
    """Raises UserError if a path exists, and is no empty directory."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f'--out: {out} exists, and is no empty directory')


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Context manager of a directory to write, which becomes `out` once it is complete.

    Raises:
        UserError: `out` exists, and is no empty directory; or it cannot be written.
    """
    require_new(out)
    partial = out.with_name(f'.{out.name}.{partial_id()}.partial')
    with writing('--out', out):
        partial.mkdir(parents=True)
    try:
        yield partial
        with writing('--out', out):
            _share(partial)
            if out.exists():
                out.rmdir()
            os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _share(directory: Path) -> None:
    # safetensors lets the owner alone read its files. Others may read them where they may read the
    # directory.
    for file in directory.iterdir():
        file.chmod(directory.stat().st_mode & 0o666)


@contextlib.contextmanager
def writing(flag: str, path: Path) -> Iterator[None]:
    """Context manager that raises UserError where the path of a flag cannot be written."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):  # The command says so.
            raise
        raise UserError(f'{flag}: {path} cannot be written ({error.strerror})') from error
