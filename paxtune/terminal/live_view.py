"""A live view of a study: a screen in a terminal and in a notebook, lines elsewhere."""

import contextlib
import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from paxtune.analysis.study_poller import StudyPoller, found_metrics, source_of
from paxtune.analysis.study_state import StudyState
from paxtune.reports.running_trials import running_rows
from paxtune.reports.tables import Table, say, to_text
from paxtune.study.store import StudyStore
from paxtune.terminal.displays import Display, display_for, standard_console
from paxtune.terminal.live_screen import Labels, ended_line, screen, state_remarks, summary_line
from trainer.command import printable
from trainer.runtime.interrupt import SignalEvent

_COLUMNS = ('trial', 'worker', 'attempt', 'step', 'reward', 'last event', 'seconds ago')

# A read takes longer with more trials, on a machine that is busy with training.
_MAX_TIME_SHARE = 0.03
_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0


class LiveView:
    """Shows a study in a thread. An error of the view ends the view, and nothing else."""

    def __init__(
        self,
        read: Callable[[], StudyState],
        display: Display,
        labels: Labels,
        interval: float = 0.5,
        notice: Callable[[], str] = lambda: '',
    ) -> None:
        """Prepares a view.

        Args:
            read: returns the state of the study.
            interval: the least number of seconds between two reads.
            notice: returns a line for people, which is shown within a moment.
        """
        self._read, self._display, self._labels = read, display, labels
        self._interval, self._notice = interval, notice
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        self._last: StudyState | None = None
        self.is_shown = False

    def start(self) -> None:
        """Begins to follow the study. Trials that end from now on are shown as they end."""
        with self._guarded():
            self._read()  # A trial may end before the thread looks for the first time.
            self._display.open()
            self.is_shown = True
            # A notebook knows by its context which cell an output belongs to.
            follow = contextvars.copy_context().run
            self._thread = threading.Thread(target=follow, args=[self._follow], daemon=True)
            self._thread.start()

    def say(self, text: str) -> bool:
        """Shows a line that stays; returns False if the view has ended."""
        with self._guarded():
            if self.is_shown:
                self._display.say(text)
        return self.is_shown

    def stop(self) -> None:
        """Ends the view with a summary of the study; does nothing if it has ended."""
        self._ended.set()
        try:
            if self._thread is not None:  # A store that cannot be reached must not hold the search.
                self._thread.join(_STOP_SECONDS)
        finally:
            with self._lock, self._guarded():
                if self.is_shown:
                    self._close()
                    if self._last is not None:
                        self._display.say(summary_line(self._last, self._labels))

    def _follow(self) -> None:
        with self._guarded():
            for state in looks(self._read, self._interval, self._rest):
                with self._lock:
                    if not self.is_shown:
                        return
                    self._last = state
                    _show(state, self._display, self._labels, self._notice())

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
                say(printable(f'The live view has failed; the search continues. {reason}'))


def looks(
    read: Callable[[], StudyState], interval: float, rest: Callable[[float], bool]
) -> Iterator[StudyState]:
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
        is_ended = rest(max(interval, took / _MAX_TIME_SHARE))
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
        directory: of the study, if known: trials report steps there.

    Raises:
        UserError: there is no study of this version.
    """
    display = display_for(console or standard_console())
    labels, source = Labels(where), source_of(store, where)
    if display is None:  # Each step would be a line.
        _show_lines(looks(StudyPoller(source).poll, interval, ended.wait), labels)
        return
    poller = (
        StudyPoller(source) if directory is None else StudyPoller(source, found_metrics(directory))
    )
    _show_screens(looks(poller.poll, interval, ended.wait), display, labels)


def _show_screens(states: Iterator[StudyState], display: Display, labels: Labels) -> None:
    last = next(states)  # Before anything is drawn: there may be no study.
    display.open()
    with contextlib.closing(display):
        for state in itertools.chain([last], states):
            last = state
            _show(state, display, labels)
            if state.is_done:
                break
    display.say(summary_line(last, labels))


def _show_lines(states: Iterator[StudyState], labels: Labels) -> None:
    printed = None
    for state in states:
        rows = running_rows(state.running, state.now)
        # Estimates and ages change with each look.
        known = [[row[name] for name in _COLUMNS[:-1]] for row in rows]
        content = _headline(state, labels), known, [each.since for each in state.running]
        if content != printed and not say(_lines(state, labels)):
            return
        if state.is_done:
            return
        printed = content


def _show(state: StudyState, display: Display, labels: Labels, notice: str = '') -> None:
    for trial in state.ended:
        display.say(ended_line(trial, labels))
    display.draw(screen(state, labels, display.size, notice))


def _lines(state: StudyState, labels: Labels) -> str:
    lines = [f'{state.now.astimezone():%H:%M:%S} {_headline(state, labels)}']
    if state.running:
        table = Table(running_rows(state.running, state.now), _COLUMNS)
        lines += [f'  {line}' for line in to_text(table).splitlines()]
    return '\n'.join(lines)


def _headline(state: StudyState, labels: Labels) -> str:
    known = '; '.join([summary_line(state, labels), *state_remarks(state)])
    return printable(f'{labels.where}: {known}')
