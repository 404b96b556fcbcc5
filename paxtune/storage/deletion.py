"""Deletion of directories, renamed first: an interrupted deletion leaves no half-deleted study."""

import re
import shutil
from pathlib import Path

from trainer.symbolic.errors import UserError

_OURS = re.compile(
    r'lock|workers\.lock|logs|(trials|replaced_trials_\d+)(/\.?\d{4,}.*)?|best-\d+'
    r'|study\.(db|json|uuid)([-.].*)?|\.study\..*\.partial'
)


def foreign_files(directory: Path) -> list[Path]:
    """Lists the files in the directory of a study, or of its trials, that no search wrote."""

    def is_ours(path: Path) -> bool:
        name = path.relative_to(directory).as_posix()
        return not path.is_symlink() and _OURS.fullmatch(name) is not None

    paths = [*directory.iterdir(), *directory.glob('*trials*/*')]
    return sorted(path for path in paths if not is_ours(path))


def delete(directory: Path) -> bool:
    """Deletes a directory, and the rest of an interrupted deletion; returns False without either.

    Follows no links. Raises UserError if the deletion fails.
    """
    renamed = directory.with_name(f'.{directory.name}.deleted')
    found = [path for path in (renamed, directory) if path.exists()]
    try:
        for path in found:
            shutil.rmtree(path.rename(renamed))
    except OSError as error:
        raise UserError(f'{path}: cannot be deleted: {error.strerror or error}') from error
    return bool(found)
