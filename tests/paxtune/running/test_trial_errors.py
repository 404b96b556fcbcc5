"""Errors that stop a study, with the line of the user's code that raised."""

from pathlib import Path
from typing import Any

import pytest

from paxtune import Faults, search, tune
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.storage.open_study import load_study
from tests.factories.function_studies import SPACE
from tests.factories.studies import states
from tests.factories.tunables import Failing

FUNCTION: dict[str, Any] = {'space': SPACE, 'objective': 'minimize', 'num_trials': 6}
RAISING = 'task.model.stack.layers[0].feed_forward.how=raise'


def line_of(code: Any, offset: int) -> str:
    return f'{Path(__file__).relative_to(Path.cwd())}:{code.__code__.co_firstlineno + offset}'


def buggy(x: int) -> float:
    return {'loss': 1.0}[f'los{x}']


def test_the_same_error_of_the_first_three_trials_stops_a_search_of_a_function() -> None:
    with pytest.raises(StudyStoppedError) as raised:
        tune(buggy, **FUNCTION)
    place = line_of(buggy, 1)
    assert 'trials 1, 2 and 3 all raised the same error' in str(raised.value)
    assert "KeyError: 'los" in str(raised.value) and f'({place})' in str(raised.value)
    study = raised.value.study
    assert study is not None
    assert states(study) == ['INFEASIBLE', 'INFEASIBLE', 'ACTIVE']
    assert str(study.trials[0].reason).endswith(f'({place})')
    with tune(lambda x: float(x), study=study):
        assert states(study) == ['INFEASIBLE'] * 2 + ['COMPLETED'] * 4


def test_a_study_that_is_to_bear_more_failures_goes_on() -> None:
    with tune(buggy, faults=Faults(max_consecutive_failures=9), **FUNCTION) as study:
        assert states(study) == ['INFEASIBLE'] * 6


def test_different_errors_and_errors_after_a_measurement_stop_nothing() -> None:
    def different(values: Any, trial: Any) -> float:
        raise [KeyError, ValueError][trial.id % 2]('bad')

    def later(values: Any, trial: Any) -> float:
        return 1.0 if trial.id == 1 else buggy(values.x)

    for function, completed in ((different, 0), (later, 1)):
        with tune(function, **FUNCTION) as study:
            assert states(study).count('COMPLETED') == completed
            assert states(study).count('INFEASIBLE') == 6 - completed


@pytest.mark.parametrize('is_stored', [True, False])
def test_an_error_of_files_stops_a_study_and_its_trial_runs_again(
    tmp_path: Path, is_stored: bool
) -> None:
    calls = []

    def lost(x: int) -> float:
        calls.append(x)
        if len(calls) == 4:
            try:
                (tmp_path / 'missing').read_text()
            except FileNotFoundError as error:
                raise ValueError('no data') from error
        return float(x)

    given: dict[str, Any] = {'job_log_dir': tmp_path / 'study'} if is_stored else {}
    with pytest.raises(
        StudyStoppedError, match=r'trial 4 raised ValueError: no data \(.*\.py:'
    ) as e:
        tune(lost, **FUNCTION, **given)
    assert (e.value.study is None) == is_stored
    again = {**FUNCTION, **given} if is_stored else {'study': e.value.study}
    with tune(lost, **again) as study:
        assert states(study) == ['COMPLETED'] * 6
    assert calls[3] == calls[4]
    assert len(calls) == 7


def test_a_directory_that_is_lost_stops_the_study(tmp_path: Path) -> None:
    def losing(x: int) -> float:
        (directory,) = (tmp_path / 'trials').iterdir()
        directory.rename(tmp_path / 'gone')
        directory.write_text('no directory')
        return float(x)

    with pytest.raises(StudyStoppedError, match=r'^NotADirectoryError: .*0001-x=.*trial\.json'):
        tune(losing, job_log_dir=tmp_path, **FUNCTION)


@pytest.mark.parametrize('flag', ['', pytest.param('--workers=2', marks=pytest.mark.slow)])
def test_a_bug_in_a_layer_stops_a_search_and_is_named(
    tmp_path: Path, capsys: Any, flag: str
) -> None:
    flags = ['--tune', 'task.learner.learning_rate=floatv(1e-3, 1e-1)', '--set', RAISING]
    exp = ['--exp=tests.factories.tunables.Failures', f'--job_log_dir={tmp_path}']
    assert search.main([*exp, *flags, *filter(None, [flag])]) == 1
    out = capsys.readouterr().out
    place = line_of(Failing.forward, 2).replace(
        'paxtune/running/test_trial_errors', 'factories/tunables'
    )
    reason = f'RuntimeError: this layer cannot be built ({place})'
    assert ' all raised the same error, and no other trial has measured anything' in out
    assert reason in out
    with load_study(tmp_path) as study:
        assert [each.reason for each in study.trials].count(reason) == 2
