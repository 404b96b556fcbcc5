"""Searches over several processes: real ones, with simulated devices."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from paxtune.storage.open_study import load_study
from paxtune.study.transitions import WorkerLoss
from tests.factories.studies import lose, never_trained
from tests.paxtune.engines.conftest import search, told
from tests.servers.processes import all_passed, job

pytestmark = pytest.mark.slow


def kept(directory: Path) -> list[Any]:
    with load_study(directory) as study:
        return told(study)


@pytest.mark.sentinel
def test_processes_train_each_trial_together(undisturbed: list[Any]) -> None:
    _, _, stopped, failed, last = undisturbed
    assert 'worse than' in stopped[3]
    assert [step for step, _ in stopped[4]] == [2]
    assert failed[3] == 'OtherProcessError: process 1: ValueError: the disk of this host is broken'
    assert last[3] is None
    assert [step for step, _ in last[4]] == [2, 4, 6]


def test_a_lost_process_ends_the_attempt_and_not_the_study(
    tmp_path: Path, undisturbed: list[Any]
) -> None:
    ended = search(tmp_path, kill={0: 'step:11'})
    assert ended[0].code == -signal.SIGKILL
    assert ended[1].code in (3, -signal.SIGABRT), ended
    assert re.search('processes was lost|another task died', ended[1].err), ended
    with load_study(tmp_path) as study:
        assert study.trials[-1].state == 'ACTIVE'
    assert re.search('trial 2: resumed from step [24]', all_passed(search(tmp_path)))
    assert kept(tmp_path) == undisturbed


def test_a_new_attempt_goes_on_where_a_signal_to_the_second_process_ended_the_one_before(
    tmp_path: Path, undisturbed: list[Any]
) -> None:
    ended = search(tmp_path, kill={1: 'int:9'})
    assert [each.code for each in ended] == [130, 130], ended
    assert 'Paused: interrupted' in ended[0].out
    with load_study(tmp_path, read_only=False) as study:
        loss = WorkerLoss('its disk was full', counts=True)
        lose(study.open_trial(2), loss, study.search.faults.max_attempts)
    assert 'trial 2: resumed from step 3' in all_passed(search(tmp_path))
    assert kept(tmp_path) == undisturbed


def test_a_trial_in_a_directory_of_another_experiment_ends_all(tmp_path: Path) -> None:
    search(tmp_path, kill={1: 'int:9'})
    (record,) = tmp_path.glob('trials/0002-*/experiment.json')
    record.write_text(record.read_text().replace('"is_broken": false', '"is_broken": true'))
    ended = search(tmp_path)
    assert [each.code for each in ended] == [2, 2], ended
    for each in ended:
        assert 'train_input.is_broken: true → false' in each.err
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED', 'ACTIVE']


def test_processes_with_other_flags_are_refused(tmp_path: Path) -> None:
    ended = search(tmp_path, own={1: ['--set', 'train.num_train_steps=4']})
    assert [each.code for each in ended] == [2, 2], ended
    assert 'process 1 has another experiment: give all the same flags' in ended[0].err
    assert not (tmp_path / 'study.db').exists()


def test_processes_measure_a_step_together(tmp_path: Path) -> None:
    flags = ('--exp=tests.factories.multi_process.Timed', f'--job_log_dir={tmp_path}')
    all_passed(job('paxtune.search', *flags))
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 3
        for trial in study.trials:
            assert trial.record.costs['']['step_seconds'] > 0
            told = {each.metrics['step_seconds'] for each in trial.measurements}
            assert told == {trial.record.costs['']['step_seconds']}
            seconds = trial.metrics['step_seconds']
            assert trial.reward == pytest.approx((trial.metrics['eval/log_pplx'] + seconds) / 2)


def test_no_process_trains_a_step_beyond_a_limit_on_its_time(tmp_path: Path) -> None:
    flags = ('--exp=tests.factories.multi_process.Timed', f'--job_log_dir={tmp_path}')
    limit = ['--set', 'search.limits[0].at_most=1e-9']
    ended = job('paxtune.search', *flags, *limit)
    assert [each.code for each in ended] == [1, 1], ended  # No trial was completed.
    with load_study(tmp_path) as study:
        assert len(study.trials) == 3
        for trial in study.trials:
            assert str(trial.reason).startswith('step_seconds is ')
            assert never_trained(study, trial)
