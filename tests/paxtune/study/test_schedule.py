"""The next action of a worker, as a function of records and of the scheduler's decision."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.schedulers import Fork, Promote, Wait
from paxtune.study.record import Status, TrialRecord
from paxtune.study.schedule import Claim, Decision, Done, Suggest, View, done_reason, next_action
from tests.properties import examples

PROMOTE, FORK = Promote(1, 'of the best'), Fork(1, 2, {}, 2, 'of the best')
WAIT = Wait('three trials are to reach the rung first')


def view(*statuses: str, decision: Decision = None, holder: str = '', **fields: Any) -> View:
    """A study of three trials at most."""
    records = [
        TrialRecord({}, id=id_, status=Status(status), pauses=(2,), holder=holder)
        for id_, status in enumerate(statuses, 1)
    ]
    given = {'num_trials': 3, 'is_exhausted': False, 'budget_used': None, **fields}
    unended = [each for each in records if not each.status.has_ended]
    return View(len(records), unended, decide=lambda: decision, **given)


def unasked() -> Decision:
    raise AssertionError('the scheduler is not asked')


# --- What comes next ---


def test_a_study_without_trials_gets_one() -> None:
    assert next_action(view()) == Suggest()
    assert next_action(view(has_holders=True)) == Claim()
    assert next_action(view(has_holders=True, may_claim=False)) == Suggest()


def test_a_trial_that_lost_its_worker_comes_before_all_else() -> None:
    ownerless = view('paused', 'active', 'requested')
    assert next_action(dataclasses.replace(ownerless, decide=unasked)) == Claim()
    # In a shared store another worker may be at it.
    held = view('paused', 'active', holder='other', decision=PROMOTE, has_holders=True)
    assert next_action(held) == PROMOTE


@pytest.mark.parametrize('decision', [PROMOTE, FORK])
def test_promoted_and_forked_trials_come_before_waiting_and_new_ones(decision: Any) -> None:
    assert next_action(view('paused', 'requested', decision=decision)) == decision
    assert next_action(view('paused', decision=decision)) == decision


def test_trials_that_wait_come_before_new_ones_and_before_waiting() -> None:
    assert next_action(view('completed', 'requested')) == Claim()
    assert next_action(view('paused', 'requested', decision=WAIT)) == Claim()


def test_a_worker_waits_while_others_run() -> None:
    others: dict[str, Any] = {'holder': 'other', 'has_holders': True, 'may_claim': False}
    assert next_action(view('active', decision=WAIT, **others)) == WAIT
    full = next_action(view('active', 'active', 'active', **others))
    assert full == Wait('the study has all of its trials')
    assert next_action(view('active', is_exhausted=True, **others)) == full
    assert next_action(view('active', **others)) == Suggest()


# --- The end ---


@pytest.mark.parametrize(
    ('given', 'reason'),
    [
        (view('active', 'requested', budget_used='an hour is over'), 'an hour is over'),
        (view('completed', 'stopped', 'infeasible'), 'it has all of its 3 trials'),
        (view('completed', 'paused', 'paused'), 'it has all of its 3 trials'),
        (view('completed', 'paused', 'paused', decision=WAIT), 'it has all of its 3 trials'),
        (view('paused', 'paused', decision=WAIT), WAIT.reason),
        (
            view('completed', is_exhausted=True),
            'there are no more than 1 different experiment in its space',
        ),
        # The study was shortened.
        (view('completed', 'completed', num_trials=1), 'it has all of its 2 trials'),
    ],
)
def test_reasons_why_a_study_is_done(given: View, reason: str) -> None:
    assert done_reason(given) == reason
    assert next_action(given) == Done(reason)


@pytest.mark.parametrize(
    'given',
    [
        view(),
        view('completed', 'completed'),
        view('completed', 'completed', 'active'),
        view('completed', 'completed', 'requested'),
        view('completed', 'requested', is_exhausted=True),
        view('completed', 'requested', num_trials=1),
        view('completed', 'paused', 'paused', decision=PROMOTE),
        view('paused', 'paused', is_exhausted=True, decision=FORK),
        view('paused', 'active', decision=WAIT),
    ],
)
def test_a_study_is_not_done(given: View) -> None:
    assert done_reason(given) is None
    assert not isinstance(next_action(given), Done)


# --- Properties ---


@st.composite
def views(draw: st.DrawFn) -> View:
    statuses = st.sampled_from([*map(str, Status)])
    return view(
        *draw(st.lists(statuses, max_size=5)),
        decision=draw(st.sampled_from([None, PROMOTE, FORK, WAIT])),
        holder=draw(st.sampled_from(['', 'other'])),
        num_trials=draw(st.integers(1, 5)),
        is_exhausted=draw(st.booleans()),
        budget_used=draw(st.sampled_from([None, None, 'an hour is over'])),
        has_holders=draw(st.booleans()),
        may_claim=draw(st.booleans()),
    )


def test_the_scheduler_decides_once() -> None:
    calls = []
    given = dataclasses.replace(view('paused'), decide=lambda: calls.append(1))
    assert done_reason(given) is None
    next_action(given)
    assert given.decision is None
    assert len(calls) == 1


@given(given=views())
@examples(400)
def test_any_study_has_a_next_action(given: View) -> None:
    action = next_action(given)
    assert next_action(given) == action
    assert isinstance(action, Done) == (done_reason(given) is not None)
    if isinstance(action, Suggest):
        assert given.has_room and not isinstance(given.decision, Wait)
    if isinstance(action, Claim):
        assert given.may_claim
    if isinstance(action, Promote | Fork):
        assert action == given.decision and not given.has_ownerless


@given(given=views())
@examples(400)
def test_a_worker_that_is_alone_never_waits(given: View) -> None:
    alone = dataclasses.replace(
        given, has_holders=False, is_alive=lambda worker: False, may_claim=True
    )
    assert not isinstance(next_action(alone), Wait)
