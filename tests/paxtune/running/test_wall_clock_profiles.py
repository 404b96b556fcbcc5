"""Profiles of the wall clock: of searches, and of their trials."""

import json
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.reports.profiles import profile_of
from paxtune.reports.study_tables import history_of, summary
from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.tuner import Paused, Tuner
from paxtune.storage.open_study import load_study, open_study
from paxtune.studies.__main__ import main
from paxtune.study.study import Study
from paxtune.study.study_view import StudyView
from paxtune.study.trial_paths import trial_directory
from tests.factories.searches import MODULE
from tests.factories.tunables import Rates
from tests.servers.processes import command, passed
from trainer.loop.report import Interrupted, Report
from trainer.runtime.wall_clock import (
    CACHE_HITS,
    CACHE_MISSES,
    IDLE,
    LOST,
    PHASES,
    START_UP,
    STEPS,
    goodput,
    measuring,
    phase,
    total_seconds,
)

Running = Generator[Report, None, None]
_SECONDS = 0.03


@pytest.fixture
def study(tmp_path: Path) -> Generator[Study, None, None]:
    tunable = Rates()
    tunable.rebind({'search.budget.trials': 1})
    with open_study(tmp_path, tunable, {'train_input': 'counting'}) as study:
        yield study


def in_file(study: StudyView, number: int) -> dict[str, float]:
    directory = trial_directory(study.directory, study.trial(number))
    found: dict[str, float] = json.loads((directory / 'trial.json').read_text())['profile']
    return found


def run(study: Study, train: Callable[..., Running], **fields: Any) -> None:
    Tuner(study, ExperimentRunner(train=train), **fields).run()


def first_half(_: Any, __: Path, should_interrupt: Callable[[], bool]) -> Running:
    with phase(STEPS):
        time.sleep(_SECONDS)
    yield Report(2, {'eval/log_pplx': 1.0})
    if should_interrupt():
        raise Interrupted(2)


def second_half(*_: Any, **__: Any) -> Running:
    with phase(STEPS):
        time.sleep(_SECONDS)
    yield Report(6, {'eval/log_pplx': 1.0}, resumed_from=2, is_last=True)


def test_the_profile_of_a_trial_adds_up_over_its_attempts(study: Study) -> None:
    asked: list[Any] = []

    def noted(*arguments: Any, **fields: Any) -> Running:
        asked.append(arguments)
        yield from first_half(*arguments, **fields)

    with pytest.raises(Paused):
        run(study, noted, should_interrupt=lambda: bool(asked))
    before = study.trial(1).record.profile
    assert before[STEPS] >= _SECONDS
    run(study, second_half)
    after = study.trial(1).record.profile
    assert after[STEPS] >= before[STEPS] + _SECONDS
    assert all(after[name] >= before[name] for name in before)
    assert in_file(study, 1) == after


def test_the_profile_of_a_killed_attempt_counts(study: Study) -> None:
    def killed(*arguments: Any, **fields: Any) -> Running:
        yield from first_half(*arguments, **fields)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(study, killed)
    assert not study.trial(1).record.profile
    assert in_file(study, 1)[STEPS] >= _SECONDS
    run(study, second_half)
    profile = study.trial(1).record.profile
    # No checkpoint had the steps of the killed attempt.
    assert profile[STEPS] >= _SECONDS
    assert profile[LOST] >= _SECONDS
    assert in_file(study, 1) == profile
    for page in (history_of(study, 1), summary(study)):
        assert page.data['goodput'] == goodput(page.data['profile'])
        assert f'Goodput: {page.data["goodput"]:.0%}' in [table.note for table in page.tables]


def test_the_wall_clock_of_a_function_is_that_of_its_calls() -> None:
    def failing(x: float) -> float:
        time.sleep(_SECONDS)
        if x > 1:
            raise ValueError('x is too large')
        return x

    space = {'x': pg.oneof([0.5, 2.0])}
    study = tune(failing, space=space, objective='minimize', algorithm='grid')
    profiles = [trial.record.profile for trial in study.trials]
    assert all(each[STEPS] >= _SECONDS for each in profiles)
    assert [START_UP in each for each in profiles] == [True, False]
    total = profile_of(study)
    assert total_seconds(total) == pytest.approx(
        sum(map(total_seconds, [study.record.profile, *profiles]))
    )


@pytest.mark.slow
def test_the_profile_of_a_search_sums_to_its_wall_clock(
    no_programs: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.perf_counter()
    # As in a command, the clock begins before the experiment is planned.
    with measuring(), tune(Rates(), job_log_dir=tmp_path) as study:
        passed_seconds = time.perf_counter() - began
        profile = profile_of(study)
        assert total_seconds(profile) == pytest.approx(passed_seconds, rel=0.02, abs=0.05)
        assert {*profile} >= {*PHASES} - {IDLE, LOST}
        assert all(in_file(study, each.id) == each.record.profile for each in study.trials)
        first, *others = (trial.record.profile for trial in study.trials)
        assert first.get(CACHE_HITS, 0) + first.get(CACHE_MISSES, 0) >= 3
        assert not any({CACHE_HITS, CACHE_MISSES} & {*each} for each in others)
    assert main(['show', str(tmp_path), '--json']) == 0
    assert json.loads(capsys.readouterr().out)['profile'] == profile
    assert main(['show', str(tmp_path), '--trial=1', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['profile'] == first


@pytest.mark.slow
def test_the_profiles_of_workers_add_up(tmp_path: Path) -> None:
    began = time.perf_counter()
    flags = [f'--exp={MODULE}.Rates', f'--job_log_dir={tmp_path}', '--workers=2']
    out = passed(command('paxtune.search', *flags))
    seconds = time.perf_counter() - began
    assert out.index('Best trial: ') < out.index('Wall clock of this search: ')
    with load_study(tmp_path) as study:
        profile = profile_of(study)
        assert sum(trial.seconds for trial in study.trials) < total_seconds(profile) < 2 * seconds
        assert profile[START_UP] > 1.0  # Each has imported JAX.
