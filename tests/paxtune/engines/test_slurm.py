"""Searches on a SLURM cluster: real daemons, of which this machine has two nodes."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paxtune.engines.slurm_cluster import options
from paxtune.storage.open_study import load_study
from paxtune.study.record import Status, TrialRecord
from tests.conformance import engine_suite
from tests.conformance.engine_suite import Case, Life
from tests.factories import held_trials
from tests.factories.ray_searches import until
from tests.paxtune.engines.conftest import told
from tests.servers.processes import ROOT, command, environment, passed
from tools.servers.slurm import cluster
from trainer.symbolic.errors import UserError

_HELD = '--exp=tests.factories.held_trials.Held'

assert held_trials.__name__  # Importing it makes its classes known to `load_study`.


@pytest.fixture(scope='module')
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp('slurm')) as variables:
        yield variables


@pytest.fixture(scope='module')
def life(slurm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Life:
    folder = tmp_path_factory.mktemp('life')
    return engine_suite.run(
        Case(folder, engine_suite.as_command('slurm', folder, slurm), 'kill_job')
    )


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
@pytest.mark.parametrize('check', engine_suite.ALL, ids=lambda check: check.__name__)
def test_slurm_keeps_the_contract_of_engines(life: Life, check: Callable[[Life], None]) -> None:
    check(life)


class Driver:
    """A search on the cluster, as a process."""

    def __init__(self, directory: Path, slurm: dict[str, str], *flags: str) -> None:
        self._env = {**environment(), **slurm, 'JAX_PLATFORMS': 'cpu'}
        self._directory, self._flags = directory, flags

    @contextlib.contextmanager
    def running(self) -> 'Iterator[subprocess.Popen[str]]':
        search = [sys.executable, '-m', 'paxtune.search', '--engine=slurm', *self._flags]
        process = subprocess.Popen(
            [*search, f'--job_log_dir={self._directory}'],
            env=self._env,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def slurm(self, *words: str) -> list[str]:
        done = subprocess.run(words, env=self._env, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def running_jobs(self) -> list[str]:
        return self.slurm('squeue', '--noheader', '--array', '--states=RUNNING', '--format=%i')

    def description(self, job: str) -> str:
        return '\n'.join(self.slurm('scontrol', 'show', 'job', job))

    def minutes(self, job: str) -> int:
        found = re.search(r'RunTime=(\d+):(\d+):', self.description(job))
        assert found is not None
        return int(found[1]) * 60 + int(found[2])

    def limit(self, job: str, minutes: int) -> None:
        self.slurm('scontrol', 'update', f'JobId={job}', f'TimeLimit={minutes}')

    def kill_jobs(self) -> None:
        """Kills the processes of jobs, as a lost node does; `scancel` lets them save."""
        for each in psutil.process_iter(['cmdline']):
            line = ' '.join(each.info['cmdline'] or ())
            if str(self._directory) in line and re.search('submitit.core|paxtune.worker', line):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()

    def log(self, job: str) -> str:
        return ''.join(file.read_text() for file in self._directory.glob(f'slurm/{job}_*.out'))

    def trials(self) -> list[TrialRecord]:
        if not (self._directory / 'study.uuid').exists():
            return []
        with load_study(self._directory) as study:
            return [trial.record for trial in study.trials]

    def measured(self) -> int:
        """The number of running trials with one measurement."""
        running = [each for each in self.trials() if each.status is Status.ACTIVE and each.holder]
        return [len(each.measurements) for each in running].count(1)

    def count(self, event: str) -> int:
        return sum(event == each.event for trial in self.trials() for each in trial.history)

    def served(self) -> int:
        """When the search has last started its service, in nanoseconds."""
        return (self._directory / 'service' / 'endpoint').stat().st_mtime_ns


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(1800)
def test_cancelled_killed_and_timed_out_jobs_and_a_killed_driver(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    hold, directory = tmp_path / 'hold', tmp_path / 'slurm'
    hold.touch()
    flags = (_HELD, '--set', f'train_input.hold={hold}')
    driver = Driver(directory, slurm, *flags, '--workers=2', '--slurm', 'time=60')
    with driver.running() as process:
        until(lambda: driver.measured() == 2)
        cancelled, timed_out = driver.running_jobs()
        driver.slurm('scancel', cancelled)
        until(lambda: driver.count('released') == 1)
        # The signal comes two minutes before.
        driver.limit(timed_out, driver.minutes(timed_out) + 2)
        until(lambda: 'SIGUSR2' in driver.log(timed_out))
        driver.limit(timed_out, 60)  # A busy machine may save for minutes.
        until(lambda: re.search(r'Restarts=[1-9]', driver.description(timed_out)))
        until(lambda: driver.count('claimed') == 4)
        jobs = {*driver.running_jobs()}
        assert len(jobs) == 2 and timed_out in jobs and cancelled not in jobs
        served = driver.served()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with driver.running() as process:
        until(lambda: driver.served() > served)
        assert {*driver.running_jobs()} == jobs
        driver.kill_jobs()
        until(lambda: driver.count('lost') == 2)
        hold.unlink()
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out
        assert 'The study is done' in out
    assert driver.slurm('squeue', '--noheader') == []
    passed(command('paxtune.search', *flags, f'--job_log_dir={tmp_path / "alone"}'))
    with load_study(directory) as study, load_study(tmp_path / 'alone') as undisturbed:
        assert len(study.trials) == 4
        assert told(study) == told(undisturbed)
        disturbed = [trial.record.history for trial in study.trials[:2]]
    for history in disturbed:
        (released,) = (each.detail for each in history if each.event == 'released')
        saved = int(released.removeprefix('after step '))
        steps = {each.step for each in history if each.event in ('resumed', 'restarted')}
        assert saved > 20 and steps and steps <= {saved, 40}, history


@pytest.mark.slow(reason='a real cluster')
@pytest.mark.timeout(900)
def test_one_worker_has_a_process_on_each_node(
    tmp_path: Path, slurm: dict[str, str], undisturbed: list[Any]
) -> None:
    flags = ('--exp=tests.factories.multi_process.Search', '--num_trials=2')
    env = {'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
    driver = Driver(tmp_path, slurm | env, *flags, '--slurm', 'time=10', 'nodes=2')
    with driver.running() as process:
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out
    with load_study(tmp_path) as study:
        assert told(study) == undisturbed[:2]


@pytest.mark.slow
def test_jobs_that_have_not_begun_are_taken_back_without_a_word(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    driver = Driver(tmp_path, slurm, _HELD, '--slurm', 'time=10', 'begin=now+1hour')
    with driver.running() as process:
        until(lambda: list(tmp_path.glob('slurm/*_submitted.pkl')))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    assert 'SLURM job' not in out
    assert driver.slurm('squeue', '--noheader') == []


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ([], 'expected time=HH:MM:SS'),
        (['time=soon'], 'time=soon: expected HH:MM:SS'),
        (['time=10', 'array=0-3'], 'array=…: the engine gives or excludes this option'),
        (['time=10', 'clusters=other'], 'clusters=…: the engine gives or excludes this option'),
        (['time=10', 'comment=a\nrm -r b'], r"comment='a\\nrm -r b': .* and its value on one line"),
        (['time=10', 'a\nb=c'], r'expected the long name of an option'),
        (['time=10', 'N=2'], 'N=.2.: expected the long name of an option'),
        (['time=10', 'nodes=none'], 'expected nodes and ntasks-per-node of at least 1'),
    ],
)
def test_options_that_cannot_be_used_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options.parse(given)
