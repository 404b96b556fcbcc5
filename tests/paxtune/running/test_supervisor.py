"""Searches with workers, which die by real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyglove as pg
import pytest
from etils import epath

from paxtune import tune
from paxtune.engines.workers import Workers
from paxtune.running.device_allocation import ALLOCATOR, Place, divided, places
from paxtune.running.supervisor import modules_of, wait_for_the_last, worker_lock_file
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study, load_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directory
from tests.factories import faulty_experiments as faulty
from tests.factories import toys
from tests.paxtune.service.conftest import until
from tests.servers.processes import ROOT, environment
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

slow = pytest.mark.slow


_started: list['subprocess.Popen[str]'] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    for process in _started:
        with process:
            process.kill()
    _started.clear()


def start(
    module: str, *flags: str, cwd: Path = ROOT, path: str = str(ROOT)
) -> 'subprocess.Popen[str]':
    """A command in a process of its own, with `path` as its PYTHONPATH."""
    process = subprocess.Popen(
        [sys.executable, '-m', module, *flags],
        env=environment() | {'PYTHONPATH': path},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _started.append(process)
    return process


def search(
    directory: JobPath, *flags: str, exp: str = 'Slow', **place: Any
) -> 'subprocess.Popen[str]':
    given = [
        f'--exp=tests.factories.faulty_experiments.{exp}',
        f'--job_log_dir={directory}',
        *flags,
    ]
    return start('paxtune.search', *given, **place)


def ended(process: 'subprocess.Popen[str]', code: int = 0) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == code, out
    return out


def workers_of(process: 'subprocess.Popen[str]') -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if 'paxtune.worker' in child.cmdline()]


def loaded(directory: Path) -> Study:
    """The study of a search that has just been started."""
    end = time.monotonic() + 60
    while True:
        try:
            return load_study(directory)
        except UserError:
            assert time.monotonic() < end
            time.sleep(0.1)


def running(study: Study, measured: int = 0) -> list[Trial]:
    return [
        trial
        for trial in study.trials
        if trial.record.holder and len(trial.measurements) >= measured
    ]


def told(trials: list[Trial]) -> dict[str, Any]:
    """Returns the results that faults must not change, by decisions: the order may vary."""
    return {
        str(trial.decisions): (trial.state, [(m.step, m.rewards) for m in trial.measurements])
        for trial in trials
    }


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The trials on one core, in one process."""
    directory = tmp_path_factory.mktemp('undisturbed')
    pinned = ['taskset', '-c', str(min(os.sched_getaffinity(0)))]
    flags = ['--exp=tests.factories.faulty_experiments.Slow', f'--job_log_dir={directory}']
    subprocess.run(
        [*pinned, sys.executable, '-m', 'paxtune.search', *flags, '--set', 'train_input.seconds=0'],
        env=environment(),
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    with load_study(directory) as study:
        return told(study.trials)


@contextlib.contextmanager
def two_running(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Study]]:
    """A search whose two workers both have a trial with a measurement; and its study."""
    first = search(directory, '--workers=2')
    with loaded(directory) as study:
        until(lambda: len(running(study, measured=1)) == 2, 120)
        yield first, study


@pytest.mark.pax(2, 'Many workers on')
@slow
def test_killed_workers_lose_nothing(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    with two_running(tmp_path) as (first, study):
        victim = workers_of(first)[0]
        assert victim.environ().items() >= ALLOCATOR.items()
        victim.kill()
        until(lambda: len(running(study, measured=1)) < 2, 60)
        until(lambda: len(running(study)) == 2, 60)
        events = [event for trial in study.trials for event in trial.history]
        lost = [event['detail'] for event in events if event['event'] == 'lost']
        assert lost == ['its worker was ended by SIGKILL']
        workers = workers_of(first)
        first.kill()
        first.communicate()
        # What a search has started ends with it.
        psutil.wait_procs(workers, timeout=20)
        assert not any(worker.is_running() for worker in workers)
        out = ended(search(tmp_path, '--workers=2'))
        assert 'The study is done: it has all of its 6 trials (6 completed)' in out
        assert told(study.trials) == undisturbed
        assert {trial.attempt for trial in study.trials} == {1}
        events = [event for trial in study.trials for event in trial.history]
        assert any(event['event'] == 'resumed' and int(event['step']) >= 10 for event in events)


@pytest.mark.pax(2)
@slow
def test_ctrl_c_saves_and_the_same_command_goes_on(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    with two_running(tmp_path) as (first, study):
        workers_of(first)[1].suspend()  # It must not be waited for, for ever.
        first.send_signal(signal.SIGINT)
        out = ended(first, 130)
        assert 'To resume:\n  python -m paxtune.search' in out
        assert not running(study)
        last = [trial.history[-1]['event'] for trial in study.trials if not trial.is_terminal]
        assert last == ['released', 'released']
        ended(search(tmp_path, '--workers=2'))
        assert told(study.trials) == undisturbed


@pytest.mark.slow(reason='a hang of a trial is noticed after 25 seconds, twice')
def test_faults_end_attempts_and_after_the_last_one_the_trial(tmp_path: Path) -> None:
    flags = ['--workers=2', '--worker_memory=2.5', '--trial_timeout=25', '--max_attempts=2']
    out = ended(search(tmp_path, *flags, exp='Faulty'))
    assert '(1 completed, 3 infeasible)' in out
    with load_study(tmp_path) as study:
        reasons = {
            trial.decisions['train_input.fault']: trial.reason or '' for trial in study.trials
        }
        assert reasons['none'] == ''
        assert reasons['abort'] == 'its worker was ended by SIGABRT (attempt 2 of 2)'
        assert reasons['hang'] == 'it made no step for 25 s (attempt 2 of 2)'
        assert reasons['memory'].endswith('more than --worker_memory allows (attempt 2 of 2)')
        assert {trial.attempt for trial in study.trials if trial.reason} == {2}
        assert all(trial.is_failed for trial in study.trials if trial.reason)


@slow
def test_the_worker_after_one_that_ended_with_packed_trials_finds_the_cause(tmp_path: Path) -> None:
    flags = ['--workers=1', '--pack=2', '--worker_memory=2.5', '--max_attempts=2']
    assert '(1 completed, 1 infeasible)' in ended(search(tmp_path, *flags, exp='Hungry'))
    with load_study(tmp_path) as study:
        by_fault = {trial.decisions['train_input.fault']: trial for trial in study.trials}
        reason = by_fault['memory'].reason or ''
        assert reason.endswith('more than --worker_memory allows (attempt 2 of 2)')
        assert 'lost' in events(by_fault['none'])


@slow
def test_a_study_that_only_fails_ends(tmp_path: Path) -> None:
    flags = ['--workers=1', '--max_attempts=1', '--max_consecutive_failures=2', '--num_trials=9']
    fault = ['--set', 'train_input.fault=abort', '--tune', 'train_input.seconds=floatv(0.0,0.1)']
    out = ended(search(tmp_path, *flags, *fault, exp='Faulty'), 1)
    assert 'the last 2 trials have all failed (search.faults.max_consecutive_failures=2)' in out
    assert '2 × its worker was ended by SIGABRT' in out
    with load_study(tmp_path) as study:
        assert len(study.trials) == 2


@slow
def test_a_search_ends_if_its_workers_are_always_killed_before_they_have_a_trial(
    tmp_path: Path,
) -> None:
    # Python imports it before anything else.
    (tmp_path / 'sitecustomize.py').write_text(
        'import os, signal, sys\n'
        "if 'paxtune.worker' in sys.orig_argv:\n"
        '    os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    out = ended(search(tmp_path / 'study', '--workers=1', path=f'{tmp_path}:{ROOT}'), 1)
    assert '8 workers in a row ended before they had a trial' in out
    assert 'its worker was ended by SIGKILL' in out
    with load_study(tmp_path / 'study') as study:
        assert not study.trials


def serve(tmp_path: Path, port: str = '0') -> tuple['subprocess.Popen[str]', str]:
    """A service, and its port."""
    flags = [f'--database={tmp_path}/studies.db', f'--port={port}', '--lease_seconds=10']
    process = start('paxtune.serve', *flags)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, line.split('127.0.0.1:')[1].split()[0].rstrip('.,')


@pytest.mark.pax('vizier_service_endpoint')
@pytest.mark.slow(reason='trials outlive a restart of the service and the end of a lease')
def test_a_trial_survives_its_service_and_moves_to_another_machine(
    store: epath.Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    service, port = serve(tmp_path)
    flags = [f'--vizier_endpoint=127.0.0.1:{port}', '--study=slow', '--num_trials=2']
    flags += ['--set', 'search.retention.best=1', 'train_input.seconds=0.3']
    machines = [tmp_path / 'one', tmp_path / 'two']
    for machine in machines:
        machine.mkdir()
    first = search(store, *flags, cwd=machines[0])
    kept = LocalStore(Database(tmp_path / 'studies.db', read_only=True), 'slow')
    until(lambda: kept.study() is not None, 120)
    with join_study(kept, store) as study:
        until(lambda: bool(running(study, measured=1)), 120)
        service.kill()
        service.communicate()
        serve(tmp_path, port)
        # The worker waits for the service, and goes on.
        until(lambda: bool(running(study, measured=2)), 60)
        assert 'lost' not in events(study.trials[0])
        workers = workers_of(first)
        first.kill()
        first.communicate()
        psutil.wait_procs(workers, timeout=20)
        # Its lease runs out, and another machine begins another attempt where it was.
        out = ended(search(store, *flags, '--workers=2', cwd=machines[1]))
        assert 'The study is done: it has all of its 2 trials (2 completed)' in out
        assert out.count('The logs of workers are in runs/slow/logs') == 1
        trial = study.trials[0]
        assert (trial.attempt, events(trial).count('resumed')) == (2, 1)
        assert 'restarted' not in events(trial)
        assert told(study.trials).items() <= undisturbed.items()
        where = [attempt_directory(study.directory, each) / 'checkpoints' for each in study.trials]
        has_weights = [newest_checkpoint(each) is not None for each in where]
        assert has_weights == [each is study.best for each in study.trials]
    for machine in machines:
        assert list(machine.glob('runs/slow/logs/*-1.jsonl'))


def events(trial: Trial) -> list[str]:
    return [event['event'] for event in trial.history]


@pytest.mark.pax(17)
def test_a_machine_is_divided_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('CUDA_VISIBLE_DEVICES', 'TPU_VISIBLE_CHIPS'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PATH', str(tmp_path))
    cores = sorted(os.sched_getaffinity(0))
    assert places(1) == [Place(tuple(cores), {})]
    if len(cores) > 1:
        half = len(cores) // 2
        first, second = tuple(cores[:half]), tuple(cores[half : 2 * half])
        assert places(2) == [Place(first, {}), Place(second, {})]
    tool = tmp_path / 'nvidia-smi'
    tool.write_text('#!/bin/sh\nprintf "GPU %s: a GPU\\n" 0 1 2 3\n')
    tool.chmod(0o755)
    assert [place.environment for place in places(2)] == [
        {'CUDA_VISIBLE_DEVICES': '0,1'},
        {'CUDA_VISIBLE_DEVICES': '2,3'},
    ]
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
    shared = {
        'CUDA_VISIBLE_DEVICES': '3',
        'XLA_CLIENT_MEM_FRACTION': '0.400',
        'XLA_PYTHON_CLIENT_MEM_FRACTION': '',
    }
    assert [place.environment for place in places(2)] == [shared, shared]
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')  # As Ray sets it for an actor without GPUs.
    assert [place.environment for place in places(2)] == [{}, {}]


def test_each_part_has_as_much_as_any_other() -> None:
    for count in range(1, 9):
        for parts in range(1, 9):
            shares = divided(range(count), parts)
            assert len(shares) == parts
            assert len({len(share) for share in shares}) == 1
            if parts <= count:
                used = [each for share in shares for each in share]
                assert len(used) == len({*used}) > count - parts


def test_workers_refuse_unsupported_options() -> None:
    with pytest.raises(UserError, match='at least 1'):
        Workers(0)
    with pytest.raises(UserError, match='above 0'):
        Workers(1, memory_gb=-1.0)
    with pytest.raises(
        UserError, match=r'<lambda> is not at the top level of a module.*paxtune\.Threads'
    ):
        tune(lambda values: 0.0, space={'x': True}, objective='minimize', engine=Workers(1))


def test_workers_import_what_the_experiment_is_built_of() -> None:
    class Script(toys.Dense):
        __module__ = '__main__'

    needed = {'paxtune.algorithms.random_search', 'paxtune.experiment', faulty.__name__}
    assert needed < {*modules_of(faulty.Slow())}
    with pytest.raises(UserError, match='put the experiment and its classes into a module'):
        modules_of(pg.Dict(layer=Script()))


def test_a_search_waits_for_the_workers_of_the_last_one(tmp_path: Path) -> None:
    wait_for_the_last(tmp_path)
    with (
        worker_lock_file(tmp_path),
        worker_lock_file(tmp_path),
        pytest.raises(UserError, match='still there'),
    ):
        wait_for_the_last(tmp_path, seconds=0.3)
    wait_for_the_last(tmp_path)
