"""The thread that makes suggestions: when it runs, waits, fails and ends."""

import threading
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.storage.open_study import load_study
from paxtune.study import stop_requests
from paxtune.study.study import Study
from paxtune.study.suggester import SuggestionError
from tests.paxtune.asking import Digest, finish
from tests.paxtune.service.conftest import until
from tests.paxtune.studies import ask
from tests.paxtune.study.prefetching import opened, run, run_to, settle


def test_a_suggestion_in_progress_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(budget=Budget(4), algorithm=Digest(seconds=0.1)) as study:
        numbers = []
        original = study.suggester.next

        def counted(number: int) -> Any:
            numbers.append(number)
            return original(number)

        monkeypatch.setattr(study.suggester, 'next', counted)
        run(study)
    assert numbers == [1, 2, 3, 4]


def test_the_next_suggestion_is_there_before_the_trial_has_ended() -> None:
    with opened(budget=Budget(4), algorithm=Digest(seconds=0.05)) as study:
        for number in range(1, 4):
            trial = ask(study)
            assert trial.id == number
            until(lambda: study.trials[-1].record.is_prefetched, 10)
            finish(study, trial)
        assert not study.is_done


def test_an_error_of_the_algorithm_is_raised_at_the_next_request() -> None:
    with opened(algorithm=Digest(breaks_at=3)) as study:
        finish(study, ask(study))
        trial = ask(study)
        settle_quietly(study)
        finish(study, trial)
        for _ in range(2):
            with pytest.raises(SuggestionError, match='this algorithm breaks'):
                study.ask()
        assert len(study.trials) == 2


def settle_quietly(study: Study) -> None:
    until(
        lambda: study._queue._prefetcher._last is None or study._queue._prefetcher._last.done(), 10
    )


def test_a_done_study_does_not_raise_what_it_did_not_need() -> None:
    with opened(algorithm=Digest(breaks_at=2), budget=Budget(8, target_reward=10.0)) as study:
        trial = ask(study)
        settle_quietly(study)
        study.tell(trial, {'y': 1.0})
        assert study.ask() is None


def test_a_small_space_is_exhausted() -> None:
    with opened(value=pg.Dict(x=pg.oneof([0.1, 0.2, 0.3])), budget=Budget(9)) as study:
        assert sorted(trial.decisions['x'] for trial in run(study)) == [0.1, 0.2, 0.3]
        assert study.exhausted and study.is_done


def test_nothing_is_asked_ahead_of_a_pause_or_beyond_the_last_trial() -> None:
    with opened(budget=Budget(2)) as study:
        stop_requests.request_pause(study.store)
        first = ask(study)
        settle(study)
        assert len(study.trials) == 1
        stop_requests.resume(study.store)
        finish(study, first)
        ask(study)
        settle(study)
        assert len(study.trials) == 2


def test_a_study_in_another_algorithm_has_no_thread() -> None:
    before = threading.active_count()
    with opened(algorithm=RandomSearch()) as study:
        run_to(study, 2)
        assert threading.active_count() == before


def test_closing_waits_for_what_is_being_made(tmp_path: Path) -> None:
    before = threading.active_count()
    with opened(tmp_path, algorithm=Digest(seconds=0.2)) as study:
        ask(study)
    assert threading.active_count() == before
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['ACTIVE', 'REQUESTED']
