"""Properties of a trial's transitions: any sequence of them keeps a record whole."""

import dataclasses
import datetime
import json
from collections.abc import Callable, Collection
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paxtune.analysis.study_state import StudyState, bare_trials
from paxtune.objectives.measurement import Measurement
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.codec import decode_trial, encode_trial, parse_trial
from paxtune.storage.open_study import open_study
from paxtune.study import export, invariants, transitions
from paxtune.study.columns import columns_of, row_of
from paxtune.study.invariants import InvariantError
from paxtune.study.record import Failures, RequestIds, Status, TrialRecord
from paxtune.study.transitions import IllegalTransition, WorkerLoss
from paxtune.study.trial import Trial
from tests.factories.toys import search
from tests.properties import examples

with open_study(None, pg.Dict(x=pg.floatv(0.0, 1.0)), search=search()) as _study:
    STUDY, CONTEXT = _study.record, _study.context
    PARAMETERS = to_parameters(_study.space.spec, {'x': 0.5})
    COLUMNS = columns_of([], _study.space, _study.rewards)

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NEW = TrialRecord(PARAMETERS, id=3, created=START)
OPEN = (Status.ACTIVE, Status.PAUSED)
SERVICE_OWNED = ('attempt', 'failures')

words = st.text(st.characters(codec='utf-8'), max_size=5)
workers = st.sampled_from(['a', 'b'])
steps = st.integers(1, 9)
metrics = st.dictionaries(st.sampled_from(['loss', 'speed']), st.floats(), max_size=2)
losses = st.builds(WorkerLoss, words, st.booleans(), st.booleans())
finals = st.builds(
    Measurement, steps, metrics, st.tuples(st.floats(allow_nan=False, allow_infinity=False))
)
# Values that only a service writes, as a hostile worker may send them.
forged = st.fixed_dictionaries(
    {
        'holder': st.sampled_from(['', 'b', 'c']),
        'attempt': st.integers(1, 9),
        'failures': st.builds(Failures, steps, steps, steps),
        'requests': st.builds(RequestIds, words, st.just(('forged',))),
    }
)


class TrialLife(RuleBasedStateMachine):
    """A trial that meets transitions in any order. The illegal ones change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.record, self.now, self.num_ends = NEW, START, 0
        self.earlier = [NEW]

    def apply(
        self,
        legal: Collection[Status],
        transition: Callable[[TrialRecord, datetime.datetime], TrialRecord],
    ) -> None:
        self.now += datetime.timedelta(seconds=1)
        before = self.record
        if before.status not in legal:
            with pytest.raises(IllegalTransition, match=f'trial 3 is {before.status.upper()}'):
                transition(before, self.now)
            return
        self.change(transition(before, self.now))

    def change(self, after: TrialRecord) -> None:
        before, self.record = self.record, after
        self.earlier.append(after)
        self.num_ends += after.status.has_ended and not before.status.has_ended
        assert_follows(before, after)

    @rule(worker=workers)
    def claim(self, worker: str) -> None:
        legal = (Status.REQUESTED, Status.ACTIVE)
        self.apply(legal, lambda each, now: transitions.claim(each, worker, now))
        assert self.record.status not in legal or self.record.holder == worker

    @rule(why=words)
    def release(self, why: str) -> None:
        self.apply([Status.ACTIVE], lambda each, now: transitions.release(each, why, now))

    @rule(step=steps, why=words)
    def pause(self, step: int, why: str) -> None:
        self.apply([Status.ACTIVE], lambda each, now: transitions.pause(each, step, why, now))

    @rule(why=words)
    def promote(self, why: str) -> None:
        step = self.record.paused_at
        self.apply([Status.PAUSED], lambda each, now: transitions.promote(each, step, why, now))

    @rule(loss=losses, max_attempts=st.integers(1, 4), step=steps)
    def lose(self, loss: WorkerLoss, max_attempts: int, step: int) -> None:
        before = self.record
        self.apply(
            [Status.ACTIVE], lambda each, now: transitions.lose(each, loss, max_attempts, step, now)
        )
        if before.status is Status.ACTIVE and self.record.status is Status.ACTIVE:
            # A worker that may come back, or that may be at fault, writes nothing any more.
            assert self.record.attempt > before.attempt or (loss.is_dead and not loss.counts)
            faults = self.record.failures.faults
            assert faults == before.failures.faults or faults < max_attempts

    @rule(step=steps, measured=metrics, rewards=st.tuples(st.integers(-9, 9)), saved=st.booleans())
    def report(self, step: int, measured: Any, rewards: Any, saved: bool) -> None:
        step += 10 * len(self.record.measurements)  # `RunningTrial` reports no step twice.
        measurement = Measurement(step, measured, rewards, 'path' if saved else None)
        finite = {name: each for name, each in measured.items() if abs(each) < float('inf')}
        measurement = dataclasses.replace(measurement, metrics=finite)
        non_finite = {*measured} - {*finite}
        self.apply(
            [Status.ACTIVE], lambda each, _: transitions.report(each, measurement, non_finite)
        )

    @rule(final=finals, reason=st.none() | words, is_stopped=st.booleans())
    def complete(self, final: Measurement, reason: str | None, is_stopped: bool) -> None:
        self.apply(
            OPEN,
            lambda each, now: transitions.complete(
                each, final, now, reason=reason, is_stopped=is_stopped
            ),
        )

    @rule(reason=words, is_error=st.booleans())
    def fail(self, reason: str, is_error: bool) -> None:
        self.apply(OPEN, lambda each, now: transitions.fail(each, reason, now, is_error=is_error))

    @rule(
        propose=st.sampled_from(['pause', 'promote', 'release', 'fail', 'complete', 'nothing']),
        fields=forged,
        request=words,
    )
    def merge(self, propose: str, fields: dict[str, Any], request: str) -> None:
        """A worker proposes a transition of the current record, and forges the service's fields."""
        current, now = self.record, self.now
        changes: dict[str, Callable[[], TrialRecord]] = {
            'pause': lambda: transitions.pause(current, 5, 'why', now),
            'promote': lambda: transitions.promote(current, current.paused_at, 'why', now),
            'release': lambda: transitions.release(current, 'why', now),
            'fail': lambda: transitions.fail(current, 'why', now),
            'complete': lambda: transitions.complete(current, Measurement(5, {}, (1.0,)), now),
            'nothing': lambda: dataclasses.replace(current, metadata={'by': 'hand'}),
        }
        try:
            proposed = changes[propose]()
        except IllegalTransition:
            return
        merged = transitions.merge(current, dataclasses.replace(proposed, **fields), request)
        assert_service_owned(current, merged, request)
        self.change(merged)

    @precondition(lambda self: len(self.earlier) > 1)
    @rule(data=st.data(), fields=forged)
    def merge_outdated(self, data: st.DataObject, fields: dict[str, Any]) -> None:
        """A worker proposes a record of the past: a service refuses it, or keeps its own fields."""
        old = data.draw(st.sampled_from(self.earlier))
        try:
            merged = transitions.merge(self.record, dataclasses.replace(old, **fields), 'request')
        except IllegalTransition:
            return
        assert_service_owned(self.record, merged, 'request')
        assert not invariants.broken(self.record, merged)

    @rule()
    def store(self) -> None:
        """The trial goes on from its stored bytes, as in another process."""
        self.record = parse_trial(encode_trial(self.record).SerializeToString())

    @invariant()
    def ends_once(self) -> None:
        assert self.num_ends == self.record.status.has_ended

    @invariant()
    def is_whole(self) -> None:
        record = self.record
        assert (record.paused_at is not None) == (record.status is Status.PAUSED)
        assert [each.time for each in record.history] == sorted(e.time for e in record.history)

    @invariant()
    def comes_back_from_a_store(self) -> None:
        assert decode_trial(encode_trial(self.record)) == self.record

    @invariant()
    def can_be_printed(self) -> None:
        trial = Trial(self.record, CONTEXT)
        found = json.loads(json.dumps(export.content(trial)))
        assert found['stopped'] == (self.record.status is Status.STOPPED)
        row = row_of(trial, COLUMNS)
        assert (row['state'], row['decisions.x']) == (found['state'], 0.5)
        state = StudyState(STUDY, bare_trials(STUDY, [self.record]), START, self.now)
        assert state.counts == {self.record.status: 1}
        (bare,) = bare_trials(STUDY, [self.record])
        assert (bare.reward, bare.history) == (trial.reward, trial.history)


TestTrialLife = TrialLife.TestCase
TestTrialLife.settings = examples(100, stateful_step_count=20)


def assert_follows(before: TrialRecord, after: TrialRecord) -> None:
    """Asserts what holds from one record to the next, whatever the transition."""
    assert not invariants.broken(before, after)
    assert list(after.measurements)[: len(before.measurements)] == list(before.measurements)
    assert len(after.history) >= len(before.history)


def assert_service_owned(current: TrialRecord, merged: TrialRecord, request: str) -> None:
    """Asserts that a worker's write changes no field that only the service writes."""
    for name in SERVICE_OWNED:
        assert getattr(merged, name) == getattr(current, name)
    assert merged.requests.added == current.requests.added
    assert merged.requests.changed == (*current.requests.changed, request)[-16:]
    assert merged.holder in ('', current.holder)


# --- Single transitions ---


RUNNING = transitions.claim(NEW, 'a', START)
PAUSED = transitions.pause(RUNNING, 10, 'why', START)
DONE = transitions.complete(
    transitions.report(RUNNING, Measurement(5, {}, (1.0,)), ()), Measurement(5, {}, (1.0,)), START
)


@pytest.mark.parametrize(
    ('before', 'changes', 'broken'),
    [
        (RUNNING, {'id': 4}, 'its number'),
        (RUNNING, {'created': None}, 'its time of creation'),
        (RUNNING, {'parameters': {'x': 0.25}}, 'its decisions have changed'),
        (
            dataclasses.replace(RUNNING, attempt=3),
            {'attempt': 2},
            'attempt 2 comes after attempt 3',
        ),
        (DONE, {'measurements': ()}, 'measurements are missing'),
        (PAUSED, {'pauses': ()}, 'its pauses at'),
        (PAUSED, {'pauses': (10, 5)}, 'its pauses at'),
        (RUNNING, {'status': Status.PAUSED}, 'a holds it, and it is paused'),
        (DONE, {'status': Status.ACTIVE}, 'it has ended, and its status has changed'),
        (DONE, {'final': None}, 'it has ended, and its final has changed'),
        (DONE, {'ended': None}, 'it has ended, and its ended has changed'),
        (DONE, {'measurements': (*DONE.measurements, DONE.final)}, 'and a measurement was added'),
        (RUNNING, {'status': Status.REQUESTED, 'holder': ''}, 'waits to be claimed'),
        (NEW, {'status': Status.INFEASIBLE, 'ended': START}, 'no worker has claimed it'),
        (RUNNING, {'status': Status.INFEASIBLE, 'holder': ''}, 'its time of the end is None'),
        (
            RUNNING,
            {'status': Status.COMPLETED, 'holder': '', 'ended': START},
            'its final measurement is None',
        ),
        (RUNNING, {'status': Status.PAUSED, 'holder': ''}, 'it is paused at no step'),
    ],
)
def test_a_broken_transition_is_caught(
    before: TrialRecord, changes: dict[str, Any], broken: str
) -> None:
    def transition(record: TrialRecord, _: datetime.datetime) -> TrialRecord:
        return dataclasses.replace(record, **changes)

    with pytest.raises(InvariantError, match=f'^trial 3: .*{broken}'):
        transitions.applied(transition, before, START)


def active(**fields: Any) -> TrialRecord:
    claimed = transitions.claim(NEW, 'a', START)
    return dataclasses.replace(claimed, **fields)


@pytest.mark.parametrize('proposed', [{'id': 4}, {'parameters': {'x': 0.1}}, {'created': None}])
def test_a_worker_cannot_change_another_trial_or_its_decisions(proposed: dict[str, Any]) -> None:
    current = active()
    with pytest.raises(IllegalTransition, match='trial 3: its decisions cannot be changed'):
        transitions.merge(current, dataclasses.replace(current, **proposed), 'request')


def test_a_worker_cannot_end_an_unclaimed_trial() -> None:
    ended = transitions.fail(active(), 'no memory', START)
    with pytest.raises(IllegalTransition, match='trial 3 is REQUESTED'):
        transitions.merge(NEW, ended, 'request')


@given(count=st.integers(1, 12), stuck=st.integers(0, 12))
@examples(40)
def test_losses_in_a_row_count_in_the_end(count: int, stuck: int) -> None:
    record = active()
    for step in range(count):  # Each worker gets a step further.
        record = transitions.lose(record, WorkerLoss('gone', is_dead=True), 1, step + 1, START)
    assert (record.failures, record.attempt) == (Failures(0, 1, count), 1)
    for _ in range(min(stuck, transitions.MAX_LOSSES - 2)):
        record = transitions.lose(record, WorkerLoss('gone', is_dead=True), 1, count, START)
    assert record.status is Status.ACTIVE
    if stuck >= transitions.MAX_LOSSES - 1:
        record = transitions.lose(record, WorkerLoss('gone', is_dead=True), 1, count, START)
        assert record.reason == 'gone (8 times in a row, without one more step)'


def test_the_history_keeps_the_last_events() -> None:
    record = active()
    for number in range(300):
        record = transitions.add_event(record, str(number), START)
    assert [each.event for each in record.history] == [str(number) for number in range(100, 300)]


def test_a_promotion_is_for_one_pause() -> None:
    paused = transitions.pause(active(), 10, 'why', START)
    again = transitions.promote(paused, 10, 'why', START)
    with pytest.raises(IllegalTransition, match='that pause is over'):
        transitions.promote(again, None, 'why', START)
    later = transitions.pause(again, 20, 'why', START)
    with pytest.raises(IllegalTransition, match='trial 3 is PAUSED: that pause is over'):
        transitions.promote(later, 10, 'why', START)
