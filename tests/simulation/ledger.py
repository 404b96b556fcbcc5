"""Invariants: what may be committed, replied and written to directories, checked at every event."""

import contextlib
import dataclasses
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paxtune.service import schema
from paxtune.simulate.replay_workload import State
from paxtune.storage.codec import TrialProto, decode_trial, parse_trial
from paxtune.study.record import RequestIds, Status, TrialRecord
from paxtune.study.trial import Trial
from tests.simulation.process import Process
from tests.simulation.world import EVERY, World, truth

_QUERY = 'SELECT trial_id, serialized_trial FROM trials WHERE study_id = ?'
_SLOW = 15.0  # Seconds until calls are through again.
_LOSSES = ('lost', 'failed', 'released', 'paused', 'ended')
_METHOD = f'/{schema.SERVICE}/'


class Ledger:
    """Watches commits, replies and directories; notes each violation in the world.

    Attributes:
        stalls: the beginning and the end of each stall of the database.
        owners: of a study in a directory: the process of each name of a worker.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.stalls: list[tuple[float, float]] = []
        self.owners: dict[str, Process] = {}
        self._content: dict[int, bytes] = {}
        self.records: dict[int, TrialRecord] = {}
        self._writers: dict[Path, list[Process]] = defaultdict(list)
        self._training: dict[Process, float] = {}  # With the time at which it began.
        self._reader: sqlite3.Connection | None = None

    def close(self) -> None:
        """Closes the database."""
        if self._reader is not None:
            self._reader.close()

    # Commits.

    def committed(self) -> None:
        """Compares the trials with those of the commit before."""
        if self._reader is None:
            path = self._world.database
            self._reader = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        rows = dict(self._reader.execute(_QUERY, (self._world.study,)).fetchall())
        for id_, content in rows.items():
            if self._content.get(id_) != content:
                after = decode_trial(TrialProto.FromString(content))
                self._written(self.records.get(id_), after)
                self.records[id_] = after
        for id_ in self.records.keys() - rows.keys():
            del self.records[id_]
        self._content = rows

    def _written(self, before: TrialRecord | None, after: TrialRecord) -> None:
        if before is None:
            self._added(after)
            return
        events = after.history[len(before.history) :]
        self._world.say(f'  trial {after.id}: {_shown(before)} -> {_shown(after)}', *(
            f'{each.event} {each.detail}'.strip() for each in events
        ))  # fmt: skip
        if (after.parameters, after.created) != (before.parameters, before.created):
            self._bad('another trial', after, 'has the number of an earlier one')
        if before.status.has_ended and _fixed(before) != _fixed(after):
            self._bad('ended twice', after, f'changed after its end: {_shown(before)}')
        if after.attempt < before.attempt:
            self._bad('attempt', after, f'fell from {before.attempt}')
        if tuple(after.measurements)[: len(before.measurements)] != tuple(before.measurements):
            self._bad('measurements', after, 'lost a measurement')
        if after.history[: len(before.history)] != before.history:
            self._bad('history', after, 'lost an event')
        # The seconds of a trial are a sum, which may be above the clock by a rounding.
        if not before.run_time.seconds <= after.run_time.seconds <= self._world.now + 1e-6:
            pair = f'{after.run_time.seconds:.0f} s, before {before.run_time.seconds:.0f} s'
            self._bad('time', after, pair)
        self._check_events(before, after)
        self._check_truth(after)

    def _check_events(self, before: TrialRecord, after: TrialRecord) -> None:
        holder, is_paused = before.holder, before.status is Status.PAUSED
        paused_at = before.paused_at
        for event in after.history[len(before.history) :]:
            if event.event == 'claimed':
                if holder not in ('', after.holder):
                    self._bad('claimed twice', after, f'by {after.holder}, and {holder} has it')
                holder = after.holder
            elif event.event in _LOSSES:
                if event.event == 'lost' and 'no heartbeat' in event.detail:
                    self._check_silence(after, holder)
                owner = self.owners.get(holder)
                if event.event == 'lost' and owner is not None and owner.is_alive:
                    self._bad('claimed twice', after, f'{holder} has it, and lives')
                holder, is_paused = '', event.event == 'paused'
                paused_at = event.step
            elif event.event == 'promoted':
                is_by_hand = event.detail.startswith(by_hand(''))
                if not is_paused or (is_by_hand and event.detail != by_hand(paused_at)):
                    self._bad('promoted twice', after, str(event.detail))
                is_paused = False
        if sum(each.event == 'ended' for each in after.history) > 1:
            self._bad('ended twice', after, 'two ends in its history')

    def _check_silence(self, record: TrialRecord, holder: str) -> None:
        """Checks that a worker which lost the trial that it trains was dead, stopped or cut off."""
        world = self._world
        for each in world.processes:
            host = each.host
            began = self._training.get(each, math.inf)
            last = max(began, each.stopped_until, host.requests_lost_until, host.replies_lost_until)
            # A loss may be written a stall after it was decided.
            stalled = sum(max(0.0, end - max(start, last)) for start, end in self.stalls)
            longest = world.faults.settings.lease + _SLOW
            if each.name == holder and each.is_alive and world.now - last - stalled > longest:
                self._bad('lease', record, f'taken from {holder}, which lives')

    def _added(self, record: TrialRecord) -> None:
        self._world.say(f'  trial {record.id}: added, {_shown(record)}, {record.lineage.origin}')
        if record.id != max(self.records, default=0) + 1:
            self._bad('number', record, 'left a gap')
        for other in self.records.values():
            lineage = other.lineage
            if record.lineage.origin == 'added' and other.parameters == record.parameters:
                self._bad('added twice', record, f'as trial {other.id}')
            if lineage.is_imported and lineage.origin == record.lineage.origin:
                self._bad('imported twice', record, lineage.origin)
            if record.lineage.replaces is not None and record.lineage.replaces == lineage.replaces:
                self._bad('forked twice', record, f'in place of trial {lineage.replaces}')
            if record.lineage.retry_of is not None and (
                record.lineage.retry_of == lineage.retry_of
            ):
                self._world.say('a second retry of trial', lineage.retry_of)

    def _check_truth(self, record: TrialRecord) -> None:
        if record.final is not None and record.status is Status.COMPLETED:
            expected = truth(record.parameters, record.final.step)
            if record.final.rewards != (expected,):
                self._bad('reward', record, f'{record.final.rewards} is not {expected}')
        origin = record.lineage.forked_from
        for each in record.measurements:
            # A fork begins with the measurement of its parent.
            if origin is not None and each.step <= origin[1]:
                continue
            if each.metrics.get('loss') != truth(record.parameters, each.step):
                self._bad('measurement', record, f'{each.metrics} at step {each.step}')

    def has_ended(self) -> bool:
        """Returns True if all trials have ended."""
        return all(each.status.has_ended for each in self.records.values())

    # Replies.

    def acknowledged(self, process: Process, path: str, request: bytes, reply: bytes) -> None:
        """Checks a reply that has reached its caller."""
        method = path.removeprefix(_METHOD)
        if method == 'update':
            self._update_acknowledged(process, request, reply)
        elif method == 'claim':
            content = schema.decode(schema.ClaimReply, reply).trial
            if content is not None and parse_trial(content).status is not Status.ACTIVE:
                self._bad('claim', parse_trial(content), f'given to {process.name}')
        elif method == 'add':
            for content in schema.decode(schema.TrialsReply, reply).trials:
                if (added := parse_trial(content)).id not in self.records:
                    self._bad('acknowledged', added, f'added by {process.name}, is not there')

    def _update_acknowledged(self, process: Process, request: bytes, reply: bytes) -> None:
        if not schema.decode(schema.UpdateReply, reply).done:
            return
        sent = schema.decode(schema.UpdateRequest, request)
        written = parse_trial(sent.trial)
        stored = self.records.get(sent.id)
        if stored is None:
            self._bad('acknowledged', written, 'is not there')
            return
        lacking = [m for m in written.measurements if m not in tuple(stored.measurements)]
        if lacking:
            self._bad('acknowledged', written, f'{process.name} wrote {lacking}')
        if written.status.has_ended and (written.status, written.final) != (
            stored.status,
            stored.final,
        ):
            self._bad('acknowledged', written, f'ended by {process.name}, is {_shown(stored)}')

    # Directories.

    def has(self, process: Process, id_: int) -> bool:
        """Returns True if a process has a trial."""
        holder = self.records[id_].holder if id_ in self.records else ''
        return holder == process.name or self.owners.get(holder) is process

    @contextlib.contextmanager
    def writing(self, directory: Path) -> Iterator[None]:
        """Notes that a process may write in the directory of an attempt, while entered."""
        process = self._world.process
        self._writers[directory].append(process)
        try:
            self.writes(directory)
            self._training[process] = self._world.now
            yield
        finally:
            self._training.pop(process, None)
            self._writers[directory].remove(process)

    def writes(self, directory: Path) -> None:
        """Checks that a process writes alone."""
        process = self._world.process
        others = [p for p in self._writers[directory] if p.is_alive and p is not process]
        if others:
            names = ', '.join(each.name for each in others)
            self._world.violate(
                'two writers', f'{directory.name}: {process.name} writes beside {names}'
            )

    def trained(self, trial: Trial, state: State) -> None:
        """Checks what the state of a trial was trained from."""
        parent = trial.lineage.forked_from
        own = [step for number, step in state.trace if number == trial.id]
        steps = [step for _, step in state.trace]
        from_step = 0 if parent is None else parent[1]
        whole = list(range(EVERY, state.step + 1, EVERY))
        if steps != whole or own != [step for step in whole if step > from_step]:
            self._world.violate('trace', f'trial {trial.id}: {state.trace}, from {parent}')

    def _bad(self, kind: str, record: TrialRecord, text: str) -> None:
        self._world.violate(kind, f'trial {record.id} ({_shown(record)}): {text}')


def by_hand(step: object) -> str:
    """Renders the reason of a promotion that is to end the pause at a step."""
    return f'by hand, at step {step}'


def _shown(record: TrialRecord) -> str:
    holder = f' of {record.holder}' if record.holder else ''
    measured = f', {len(record.measurements)} measured' if record.measurements else ''
    return f'{record.status} {record.attempt}{holder}{measured}'


def _fixed(record: TrialRecord) -> Any:
    """Returns what may not change once a trial has ended."""
    return dataclasses.replace(record, requests=RequestIds(), metadata={}, measurements=())
