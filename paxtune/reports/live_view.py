"""A study as it goes on, without the classes of its experiment."""

import contextlib
import dataclasses
import datetime
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from paxtune.reports.overview import Overview, bare_trials
from paxtune.reports.tables import Drawn, Table, say, to_text
from paxtune.study.record import Status, TrialRecord
from paxtune.study.store import StudyStore
from paxtune.study.trial import TRIALS, Trial
from trainer.command import printable
from trainer.runtime.metric_writer import METRICS, last_training_record
from trainer.symbolic.errors import UserError

_SPEED = {'train/loss': 'train/loss', 'steps/s': 'train/steps_per_second'}
_COLUMNS = (
    'trial', 'worker', 'attempt', 'step', 'reward', *_SPEED, 'last event', 'seconds ago',
)  # fmt: skip

_OTHER_LINES = 8  # Of a live table, those that are no trials.

# A read takes longer with more trials, on a machine that is busy with training.
_MOST_OF_THE_TIME = 0.1


@dataclasses.dataclass(frozen=True)
class Running:
    """A trial that has begun and not ended.

    Attributes:
        worker: its owner; '' while it waits for one.
        attempt: the number of the attempt.
        step: the last reported step.
        rewards: of its last measurement.
        training: the last record of training in its `metrics.jsonl`.
        since: the time of `event`, or of the last observed step; None if unknown.
    """

    number: int
    worker: str
    attempt: int
    step: int
    rewards: tuple[float, ...]
    event: str
    training: Mapping[str, float]
    since: datetime.datetime | None


@dataclasses.dataclass(frozen=True)
class StudySnapshot:
    """The state of a study at one moment; `is_to_pause` if a pause was requested."""

    overview: Overview
    running: list[Running]
    is_to_pause: bool


class LiveView:
    """Reads a study repeatedly. Ended trials are read once."""

    def __init__(self, store: StudyStore, where: str, directory: Path | None = None) -> None:
        """Prepares a view of a store.

        Args:
            where: its name for people.
            directory: of the study, where it is known: trials report steps there.
        """
        self._store, self._where, self._directory = store, where, directory
        self._ended: dict[int, TrialRecord] = {}
        self._seen: dict[int, tuple[int, datetime.datetime | None]] = {}

    def refresh(self) -> StudySnapshot:
        """Reads the current state; raises UserError if there is no study of this version."""
        study = self._store.study()
        if study is None:
            raise UserError(f'There is no study in {self._where}: nothing was written yet.')
        numbers, read = self._store.read(self._ended)
        known = self._ended | {record.id: record for record in read}
        records = [known[number] for number in numbers]
        self._ended = {each.id: each for each in records if each.status.has_ended}
        overview = Overview.of(study, records, self._store.created())
        active = [record for record in read if record.status.is_open]
        running = [self._running(trial) for trial in bare_trials(study, active)]
        return StudySnapshot(overview, running, study.pause_requested)

    def _running(self, trial: Trial) -> Running:
        last = trial.measurements[-1] if trial.measurements else None
        history = trial.record.history
        # Steps of attempts that resumed from a checkpoint.
        resumed = [event.step for event in history if event.step is not None]
        training = self._training(trial)
        begun = [training['step']] if training else []
        step = max([0 if last is None else last.step, *resumed[-1:], *begun])
        seen, since = self._seen.get(trial.id, (step, None))
        if step != seen:
            since = datetime.datetime.now(datetime.UTC)
        self._seen[trial.id] = step, since
        moments = [event.time for event in history[-1:]] + ([] if since is None else [since])
        return Running(
            number=trial.id,
            worker=trial.record.holder,
            attempt=trial.attempt,
            step=step,
            rewards=() if last is None else last.rewards,
            event=history[-1].event if history else '',
            training=training,
            since=max(moments, default=None),
        )

    def _training(self, trial: Trial) -> dict[str, Any]:
        if self._directory is None:
            return {}
        attempt = f'attempt_{trial.attempt}/' if trial.attempt > 1 else ''
        # Its directory is named by its decisions, which only the classes can read.
        names = self._directory.glob(f'{TRIALS}/{trial.id:04d}-*/{attempt}{METRICS}')
        return next(filter(None, map(last_training_record, names)), {})


def watch(
    store: StudyStore,
    where: str,
    interval: float,
    ended: threading.Event,
    console: Console | None = None,
    directory: Path | None = None,
) -> None:
    """Shows a study until it is done, the output is closed, or `ended` is set.

    In a terminal this is a live table; elsewhere, lines after each change.

    Args:
        store: holds the study; it is only read.
        where: its name for people.
        interval: the least number of seconds between two reads.
        directory: as of `LiveView`.

    Raises:
        UserError: there is no study of this version.
    """
    console = console or Console(highlight=False)
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    # Elsewhere each step would be a line.
    view, printed = LiveView(store, where, directory if live else None), None
    with live or contextlib.nullcontext():
        while not ended.is_set():
            began = time.monotonic()
            snapshot = view.refresh()
            if live is not None:
                table = Drawn(_table(snapshot), max_lines=console.height - _OTHER_LINES)
                live.update(Group(Text(_headline(snapshot, where)), table), refresh=True)
            elif snapshot != printed and not say(_lines(snapshot, where)):
                return
            if snapshot.overview.is_done:
                return
            printed = snapshot
            took = time.monotonic() - began
            ended.wait(max(interval, took / _MOST_OF_THE_TIME))


def _lines(snapshot: StudySnapshot, where: str) -> str:
    now = f'{datetime.datetime.now():%H:%M:%S}'
    lines = [f'{now} {_headline(snapshot, where)}']
    if snapshot.running:
        lines += [f'  {line}' for line in to_text(_table(snapshot)).splitlines()]
    return '\n'.join(lines)


def _headline(snapshot: StudySnapshot, where: str) -> str:
    seen = snapshot.overview
    counts = seen.counts
    ended = sum(count for how, count in counts.items() if Status(how).has_ended)
    parts = [f'{ended} of {seen.num_trials or "?"} trials']
    parts += [f'{counts[how]} {how}' for how in Status if counts.get(how)]
    if seen.best is not None:
        parts.append(f'best: trial {seen.best_trial} with {seen.best:.6g}')
    if seen.front:
        parts.append(f'{seen.front} that no other is better than')
    if seen.is_done:
        parts.append('the study is done')
    elif snapshot.is_to_pause:
        parts.append('a pause was asked for')
    elif not any(each.worker for each in snapshot.running):
        parts.append('no worker has a trial')
    return printable(f'{where}: {", ".join(parts)}')


def _table(snapshot: StudySnapshot) -> Table:
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {
            'trial': each.number,
            'worker': each.worker or '(waits for one)',
            'attempt': each.attempt,
            'step': each.step,
            'reward': ', '.join(f'{reward:.6g}' for reward in each.rewards),
            **{name: each.training.get(key) for name, key in _SPEED.items()},
            'last event': each.event,
            # Clocks of two machines may differ.
            'seconds ago': each.since and max(0, round((now - each.since).total_seconds())),
        }
        for each in snapshot.running
    ]
    return Table(rows, _COLUMNS)
