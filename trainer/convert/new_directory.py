import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainer.runtime.directory import partial_id
from trainer.symbolic.errors import UserError


def require_new(out: Path) -> None:
    """Raises UserError if a path exists, and is no empty directory."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f'--out: {out} exists, and is no empty directory')


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Context manager of a directory to write, which becomes `out` once it is complete.

    Raises:
        UserError: `out` exists, and is no empty directory.
    """
    require_new(out)
    partial = out.with_name(f'.{out.name}.{partial_id()}.partial')
    partial.mkdir(parents=True)
    try:
        yield partial
        if out.exists():
            out.rmdir()
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
