"""A study as it goes on: a screen in a terminal and in a notebook, lines elsewhere."""

import contextlib
import contextvars
import dataclasses
import datetime
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from paxtune.reports.displays import Display, display_for, standard_console
from paxtune.reports.live_screen import screen, state_remarks, summary_line
from paxtune.reports.study_snapshot import SnapshotReader, StudySnapshot, source_of
from paxtune.reports.tables import Table, say, to_text
from paxtune.study.record import Status
from paxtune.study.store import StudyStore
from trainer.command import printable
from trainer.runtime.interrupt import SignalEvent

_COLUMNS = ('trial', 'worker', 'attempt', 'step', 'reward', 'last event', 'seconds ago')

# A read takes longer with more trials, on a machine that is busy with training.
_MOST_OF_THE_TIME = 0.03
_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0


class LiveView:
    """Shows a study in a thread. An error of the view ends the view, and nothing else."""

    def __init__(
        self,
        read: Callable[[], StudySnapshot],
        display: Display,
        interval: float = 0.5,
        notice: Callable[[], str] = lambda: '',
    ) -> None:
        """Prepares a view.

        Args:
            read: returns the state of the study.
            interval: the least number of seconds between two reads.
            notice: returns a line for people, which is shown within a moment.
        """
        self._read, self._display = read, display
        self._interval, self._notice = interval, notice
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._last: StudySnapshot | None = None
        self.is_shown = False

    def start(self) -> None:
        """Draws the study, and begins to follow it."""
        with self._guarded():
            self._display.open()
            self.is_shown = True
            # A notebook knows by its context which cell an output belongs to.
            follow = contextvars.copy_context().run
            self._thread = threading.Thread(target=follow, args=[self._follow], daemon=True)
            self._thread.start()

    def say(self, text: str) -> bool:
        """Shows a line that stays; returns False where the view has ended."""
        with self._guarded():
            if self.is_shown:
                self._display.say(text)
        return self.is_shown

    def stop(self) -> None:
        """Ends the view with a summary of the study; does nothing where it has ended."""
        self._ended.set()
        try:
            if self._thread is not None:  # A store that cannot be reached must not hold the search.
                self._thread.join(_STOP_SECONDS)
        finally:
            with self._lock, self._guarded():
                if self.is_shown:
                    self._close()
                    if self._last is not None:
                        self._display.say(summary_line(self._last))

    def _follow(self) -> None:
        with self._guarded():
            for snapshot in looks(self._read, self._interval, self._rest):
                with self._lock:
                    if not self.is_shown:
                        return
                    self._last = snapshot
                    _show(snapshot, self._display, self._notice())

    def _rest(self, seconds: float) -> bool:
        """Waits until the next read is due, or the notice changes; returns True at the end."""
        due, notice = time.monotonic() + seconds, self._notice()
        while time.monotonic() < due and self._notice() == notice:
            if self._ended.wait(_POLL_SECONDS):
                break
        return self._ended.is_set()

    def _close(self) -> None:
        self.is_shown = False
        self._display.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            with self._lock:
                if self._ended.is_set() and not self.is_shown:
                    return  # The view was closed meanwhile, or an error was said.
                self._ended.set()
                with contextlib.suppress(Exception):
                    self._close()
                reason = f'{type(error).__name__}: {error}'
                say(printable(f'The live view has ended by an error; the search goes on. {reason}'))


def looks(
    read: Callable[[], StudySnapshot], interval: float, rest: Callable[[float], bool]
) -> Iterator[StudySnapshot]:
    """Reads a study repeatedly, in a small part of the time, and once more at the end.

    That part includes the time between two reads in which the caller draws.

    Args:
        interval: the least number of seconds between two reads.
        rest: waits that many seconds; returns True at the end.
    """
    is_ended = False
    while not is_ended:
        began = time.monotonic()
        yield read()
        took = time.monotonic() - began
        is_ended = rest(max(interval, took / _MOST_OF_THE_TIME))
    yield read()


def watch(
    store: StudyStore,
    where: str,
    interval: float,
    ended: SignalEvent,
    console: Console | None = None,
    directory: Path | None = None,
) -> None:
    """Shows a study until it is done, the output is closed, or `ended` is set.

    In a terminal this is the screen of a search; elsewhere, lines after each change.

    Args:
        store: holds the study; it is only read.
        where: its name for people.
        interval: the least number of seconds between two reads.
        directory: as of `SnapshotReader`.

    Raises:
        UserError: there is no study of this version.
    """
    display = display_for(console or standard_console())
    # Elsewhere each step would be a line.
    directory = None if display is None else directory
    reader = SnapshotReader(source_of(store, where), store.created, where, directory)
    snapshots = looks(reader.read, interval, ended.wait)
    if display is None:
        _show_lines(snapshots)
    else:
        _show_screens(snapshots, display)


def _show_screens(snapshots: Iterator[StudySnapshot], display: Display) -> None:
    last = next(snapshots)  # Before anything is drawn: there may be no study.
    display.open()
    with contextlib.closing(display):
        for snapshot in itertools.chain([last], snapshots):
            last = snapshot
            _show(snapshot, display)
            if snapshot.overview.is_done:
                break
    display.say(summary_line(last))


def _show_lines(snapshots: Iterator[StudySnapshot]) -> None:
    printed = None
    for snapshot in snapshots:
        # Not the estimates, which each look changes.
        running = [dataclasses.replace(each, speed=None) for each in snapshot.running]
        content = _headline(snapshot), running
        if content != printed and not say(_lines(snapshot)):
            return
        if snapshot.overview.is_done:
            return
        printed = content


def _show(snapshot: StudySnapshot, display: Display, notice: str = '') -> None:
    for line in snapshot.ended_lines:
        display.say(line)
    display.draw(screen(snapshot, display.size, notice))


def _lines(snapshot: StudySnapshot) -> str:
    now = f'{datetime.datetime.now():%H:%M:%S}'
    lines = [f'{now} {_headline(snapshot)}']
    if snapshot.running:
        lines += [f'  {line}' for line in to_text(_table(snapshot)).splitlines()]
    return '\n'.join(lines)


def _headline(snapshot: StudySnapshot) -> str:
    seen = snapshot.overview
    parts = [f'{snapshot.num_ended} of {seen.num_trials or "?"} trials']
    parts += [f'{seen.counts[how]} {how}' for how in Status if seen.counts.get(how)]
    if seen.best is not None:
        parts.append(f'best: trial {seen.best_trial} with {seen.best:.6g}')
    if seen.front:
        parts.append(f'{seen.front} that no other is better than')
    parts += state_remarks(snapshot)
    return printable(f'{snapshot.where}: {", ".join(parts)}')


def _table(snapshot: StudySnapshot) -> Table:
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {
            'trial': each.number,
            'worker': each.worker or '(waits for one)',
            'attempt': each.attempt,
            'step': each.step,
            'reward': ', '.join(f'{reward:.6g}' for reward in each.rewards),
            'last event': each.event,
            # Clocks of two machines may differ.
            'seconds ago': each.since and max(0, round((now - each.since).total_seconds())),
        }
        for each in snapshot.running
    ]
    return Table(rows, _COLUMNS)
