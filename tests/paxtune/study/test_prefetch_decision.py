"""The decision to prefetch a suggestion, from recorded times."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from paxtune.study import prefetch
from paxtune.study.record import Event, Lineage, Status, TrialRecord
from paxtune.study.trial import Trial, TrialContext
from tests.paxtune.asking import Digest, finish
from tests.paxtune.studies import ask
from tests.paxtune.study.prefetching import opened, run, run_to, seen, settle, was_ahead

NOW = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)


def trial(suggest_seconds: float, seconds: float = 0.0, **fields: Any) -> Trial:
    made: dict[str, Any] = {'status': Status.COMPLETED, 'seconds': seconds, **fields}
    return Trial(TrialRecord({}, id=1, suggest_seconds=suggest_seconds, **made), TrialContext([]))


@pytest.mark.parametrize(
    'trials, expected',
    [
        ([], False),
        ([trial(9.0, status=Status.ACTIVE)], False),  # Nothing is known of a trial's time.
        ([trial(0.4, 7.0)], True),
        ([trial(0.4, 9.0)], False),
        ([trial(0.001, 0.001)], False),  # Too short to matter.
        ([trial(0.0, 1.0)], False),  # Initial trials take no suggestion.
        # Programs were compiled in one of the last two.
        ([trial(0.1, 9.0), trial(8.0, 9.0), trial(0.1, 9.0)], False),
        ([trial(0.1, 9.0), trial(8.0, 9.0)], False),
        ([trial(0.1, 9.0), trial(8.0, 9.0), trial(0.7, 9.0)], True),
        # Failed trials and those of other studies say nothing of the time of a trial.
        ([trial(0.4, 0.1, status=Status.INFEASIBLE), trial(0.4, 9.0)], False),
        ([trial(0.0, 0.1, lineage=Lineage(origin='a#1')), trial(0.4, 9.0)], False),
        ([trial(0.4, 0.1, status=Status.STOPPED), trial(0.4, 9.0)], True),
    ],
)
def test_slow_suggestions_are_prefetched(trials: list[Trial], expected: bool) -> None:
    assert prefetch.is_worthwhile(trials, 0.05) == expected
    assert prefetch.is_worthwhile(trials, 0.0)


def test_the_time_of_a_trial_without_a_tuner_is_that_since_its_claim() -> None:
    claimed = Event(NOW, 'claimed', 1)
    ended = NOW + datetime.timedelta(seconds=3)
    assert prefetch.trial_seconds(trial(0.1, history=(claimed,), ended=ended)) == 3.0
    assert prefetch.trial_seconds(trial(0.1, 5.0, history=(claimed,), ended=ended)) == 5.0


@pytest.fixture(autouse=True)
def share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Digest, 'prefetch_share', 0.05)


def test_fast_suggestions_are_made_of_all_results() -> None:
    with opened() as study:
        trials = run(study)
    assert seen(trials[3]) == '1:completed 2:completed 3:completed' or trials[2].is_failed
    assert not any(was_ahead(trial) or trial.record.is_prefetched for trial in trials)
    assert [trial.record.prefetches_next for trial in trials] == [False] * len(trials)
    assert all(0 < trial.record.suggest_seconds < 1 for trial in trials)


def test_suggestions_as_slow_as_trials_are_prefetched() -> None:
    with opened(algorithm=Digest(seconds=0.08)) as study:
        trials = run(study)
    # The time of a trial is known only after the first one.
    assert [trial.record.prefetches_next for trial in trials[:3]] == [False, True, True]
    assert [was_ahead(trial) for trial in trials[:4]] == [False, False, True, True]
    states = [[each.split(':')[1] for each in seen(trial).split()] for trial in trials]
    assert 'pending' not in states[1] and states[2][-1] == 'pending'


@pytest.mark.parametrize('is_slow', [False, True])
def test_the_decision_holds_across_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Later measurements of time do not change the next suggestion."""
    monkeypatch.setattr(prefetch, 'is_worthwhile', lambda trials, share: is_slow)
    with opened(tmp_path, algorithm=Digest()) as study:
        run_to(study, 3)
        running = ask(study)
        settle(study)
        if is_slow:  # Killed before the suggestion was written.
            study.store.delete_trial(5)
    monkeypatch.setattr(prefetch, 'is_worthwhile', lambda trials, share: not is_slow)
    with opened(tmp_path, algorithm=Digest()) as study:
        again = ask(study)
        assert (again.id, again.record.prefetches_next) == (running.id, is_slow)
        settle(study)
        finish(study, again)
        assert ('4:pending' in seen(ask(study))) == is_slow
