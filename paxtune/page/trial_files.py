"""The files in the directory of a trial, which a search or its users wrote there.

Symbolic links are neither listed nor followed: nothing outside of the directory can be read.
"""

import collections
import contextlib
import dataclasses
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from paxtune.study.study_view import StudyView
from paxtune.study.trial_paths import trial_directory
from trainer.symbolic.errors import UserError

MAX_FILES = 300
"""Files that are listed. Checkpoints have thousands."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a trial.

    Attributes:
        name: its path below the directory of the trial, with `/` between its parts.
        size: in bytes.
    """

    name: str
    size: int


def files_of(study: StudyView, trial: int, most: int = MAX_FILES) -> list[File]:
    """Lists the files of a trial, those of the upper folders first: at most `most`.

    Raises:
        UserError: there is no such trial, or this machine does not have its directory.
    """
    found: list[File] = []
    folders = collections.deque([''])
    with _directory(study, trial) as top:
        while folders and len(found) < most:
            folder = folders.popleft()
            with contextlib.suppress(OSError), _opened(top, folder, os.O_DIRECTORY) as opened:
                for name, entry in _entries(opened):
                    path = f'{folder}/{name}' if folder else name
                    if stat.S_ISDIR(entry.st_mode):
                        folders.append(path)
                    elif stat.S_ISREG(entry.st_mode):
                        found.append(File(path, entry.st_size))
    return found[:most]


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    """Lists an open folder, by name; a file may vanish meanwhile."""
    for name in sorted(os.listdir(folder)):
        with contextlib.suppress(OSError):
            yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def open_file(study: StudyView, trial: int, name: str) -> BinaryIO:
    """Opens a file of a trial by its name.

    Raises:
        UserError: there is no such trial or file, or a link leads there.
    """
    with _directory(study, trial) as top:
        try:
            # A pipe would wait for its writer.
            with _opened(top, name, os.O_NONBLOCK) as file:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    return os.fdopen(os.dup(file), 'rb')
        except (OSError, ValueError):  # A name may hold a zero byte.
            pass
    raise UserError(f'trial {trial} has no file {name}')


@contextlib.contextmanager
def _directory(study: StudyView, trial: int) -> Iterator[int]:
    """Opens the directory of a trial while inside."""
    found = study.trial(trial)
    if study.directory is None:
        raise UserError('Only the workers of the study know where the files of its trials are.')
    if not isinstance(study.directory, Path):
        raise UserError(f'The files are in {trial_directory(study.directory, found)}.')
    below = Path(trial_directory(study.directory, found)).relative_to(study.directory)
    with contextlib.ExitStack() as closing:
        try:
            study_folder = os.open(study.directory, os.O_RDONLY | os.O_DIRECTORY)
            closing.callback(os.close, study_folder)
            top = closing.enter_context(_opened(study_folder, str(below), os.O_DIRECTORY))
        except OSError as error:
            raise UserError('The trial has no files here.') from error
        yield top


@contextlib.contextmanager
def _opened(top: int, name: str, flags: int) -> Iterator[int]:
    """Opens a path below an open folder while inside, part by part, without links.

    Raises:
        OSError: it is missing, or a link is on the way.
    """
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or '..' in parts:
        raise FileNotFoundError(name)
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.dup(top)
    try:
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            inner = os.open(part, flags if is_last else flags | os.O_DIRECTORY, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)
