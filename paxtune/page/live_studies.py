"""The studies below a directory: their list, and those that are open."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from paxtune.page.live import MIN_SECONDS, LiveStudy
from paxtune.page.results import Computed, Results
from paxtune.page.widgets import encodable
from paxtune.reports import study_list
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.similar_studies import databases
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from dash import Dash

    AppOf: TypeAlias = Callable[[LiveStudy, str, str], Dash]

MAX_OPEN = 12
"""Studies that stay open; a comparison may have two thirds of them."""

_MAX_READING = 1.0  # Seconds, in which a list of many studies answers.
_WALK_SPACING = 5.0  # Between two walks of the directory, in times of one.
_PLAIN = frozenset(b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-')


def key_of(path: str) -> str:
    """Returns the part of an address that names a study, of its path below the directory.

    Example:
        >>> key_of('lm/first'), key_of('a b')
        ('lm:first', 'a~20b')
    """
    made = ''.join(chr(byte) if byte in _PLAIN else f'~{byte:02X}' for byte in os.fsencode(path))
    return made.replace('~2F', ':') if path != '.' else '~'


@dataclasses.dataclass(frozen=True)
class Opened:
    """A study that is open, and its application."""

    live: LiveStudy
    app: 'Dash'


@dataclasses.dataclass
class _Slot:
    """The place of an open study, and the number of those who use it."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    opened: Opened | None = None
    users: int = 0

    def close(self) -> None:
        """Closes the study."""
        if self.opened is not None:
            self.opened.live.close()


class LiveStudies:
    """The studies in a directory and below, listed again and again.

    Attributes:
        root: the directory.
        name: the heading of the list.
        base_path: the path of the list in a browser.
    """

    def __init__(
        self,
        root: str,
        base_path: str,
        app_of: 'AppOf',
        flags: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares to read; opens nothing.

        Args:
            root: the directory.
            base_path: the path of the list in a browser.
            app_of: makes the application of a study: see `study_app`.
            flags: of all commands on a study.
            clock: in seconds.
        """
        self.root, self.base_path = root, base_path
        self.name = encodable(f'Studies in {Path(root).name or Path(root).absolute().name}')
        self._app_of, self._flags, self._clock = app_of, flags, clock
        self._results, self._read = Results(clock), Results(clock, sys.maxsize)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._walking = threading.Lock()
        self._slots: collections.OrderedDict[str, _Slot] = collections.OrderedDict()
        self._due = self._read_at = -math.inf
        self._found, self._rows = dict[str, Path](), dict[str, dict[str, Any]]()

    def close(self) -> None:
        """Closes all studies."""
        with self._lock:
            for each in self._slots.values():
                each.close()
            self._slots.clear()

    @property
    def num_open(self) -> int:
        """The number of studies that are open."""
        return len(self._slots)

    def rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Returns the rows of `studies list` by the keys of the studies, at most a second old.

        After a second, studies that were not read yet have a row without values.
        """
        with self._reading:
            if (began := self._clock()) - self._read_at >= MIN_SECONDS:
                self._read_at, before = began, self._rows
                found = sorted(self._directories().items(), key=lambda each: each[0] in before)
                self._rows = {}
                for key, directory in found:
                    if self._clock() - began < _MAX_READING:
                        self._rows[key] = self._row(key, directory)
                    else:
                        self._rows[key] = before.get(key) or study_list.unread(directory)
            return self._rows

    def _directories(self) -> Mapping[str, Path]:
        """The directories of the studies, by key."""
        with self._walking:
            if (began := self._clock()) >= self._due:
                found = [each.parent for each in databases(Path(self.root))]
                self._found = {key_of(os.path.relpath(each, self.root)): each for each in found}
                # A large tree of directories, or a slow one, is walked less often.
                self._due = began + max(MIN_SECONDS, _WALK_SPACING * (self._clock() - began))
            return self._found

    def version(self) -> str:
        """Returns the version for browsers, which changes with the list."""
        content = repr(sorted(self.rows().items()))
        return f'{hashlib.sha256(content.encode()).hexdigest()}.{self._results.renewals()}'

    def computation(self, name: Any, compute: Callable[[], Any]) -> Computed:
        """Returns a result that is computed from the studies, as `LiveStudy.computation`."""
        return self._results.computed(name, self.version(), compute)

    def name_of(self, key: str) -> str:
        """Returns the name of a study in the list: its path below the directory."""
        directory = self._directories().get(key, Path(self.root))
        return encodable(os.path.relpath(directory, self.root))

    @contextlib.contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """Keeps a study open while entered; raises UserError for an unknown or damaged one."""
        # Only directories that were found are opened: no name in an address is a path.
        directory = self._directories().get(key)
        if directory is None:
            raise UserError(f'there is no study {key} in {self.root} and below')
        with self._using(key) as slot:
            with slot.lock:
                slot.opened = slot.opened or self._made(key, str(directory))
            yield slot.opened

    def _row(self, key: str, directory: Path) -> dict[str, Any]:
        """Reads a study where it has changed: a large one seldom, unless it is open anyway."""
        location = DirectoryLocation(str(directory))
        if key in self._slots:
            with self._using(key) as slot, contextlib.suppress(UserError):
                if slot.opened is not None:
                    return study_list.row_of(location, slot.opened.live.snapshot())
        version = str(study_list.stamp(directory))
        read = functools.partial(study_list.row_of, location)
        found: dict[str, Any] = self._read.computed(key, version, read).value
        return found

    @contextlib.contextmanager
    def _using(self, key: str) -> Iterator[_Slot]:
        """Keeps the slot of a study while entered; closes studies without a request."""
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            slot.users += 1
            unused = [name for name, each in self._slots.items() if not each.users]
            for name in unused[: max(0, len(self._slots) - MAX_OPEN)]:
                self._slots.pop(name).close()
        try:
            yield slot
        finally:
            with self._lock:
                slot.users -= 1

    def _made(self, key: str, directory: str) -> Opened:
        location = [directory, *self._flags]
        try:
            live = LiveStudy(DirectoryLocation(directory), location, self._clock)
        except UserError:
            raise
        except Exception as error:  # The file may be anything, as in `studies list`.
            raise UserError(f'{directory}: {error}') from error
        path = f'{self.base_path}study/{key}/'
        return Opened(live, self._app_of(live, path, self.base_path))
