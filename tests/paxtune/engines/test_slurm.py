"""Searches on a SLURM cluster: real daemons, of which this machine has two nodes."""

import contextlib
import itertools
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paxtune.engines.slurm_cluster import options
from paxtune.storage.open_study import load_study
from paxtune.study.record import Event, Status, TrialRecord
from tests.factories import slow_trials
from tests.paxtune.engines.conftest import told
from tests.servers.processes import ROOT, command, environment, passed
from tools.servers.slurm import cluster
from trainer.symbolic.errors import UserError

_SLOW = '--exp=tests.factories.slow_trials.Slow'

assert slow_trials.__name__  # Importing it makes its classes known to `load_study`.


@pytest.fixture(scope='module')
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with cluster(tmp_path_factory.mktemp('slurm')) as variables:
        yield variables


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

    def has_active(self, measurements: int) -> bool:
        running = [each for each in self.trials() if each.status is Status.ACTIVE and each.holder]
        return measurements in [len(each.measurements) for each in running]

    def has(self, event: str) -> bool:
        return any(event == each.event for trial in self.trials() for each in trial.history)


def wait(for_: Callable[[], Any], seconds: float = 400.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := for_()):
        assert time.monotonic() < end, for_
        time.sleep(0.5)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cancelled_killed_and_timed_out_jobs_and_a_killed_driver(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    alone, directory = tmp_path / 'alone', tmp_path / 'slurm'
    driver = Driver(directory, slurm, _SLOW, '--workers=2', '--slurm', 'time=60')
    with driver.running() as process:
        cancelled, timed_out = wait(lambda: jobs if len(jobs := driver.running_jobs()) == 2 else [])
        wait(lambda: driver.has_active(measurements=1))
        driver.slurm('scancel', cancelled)
        driver.limit(
            timed_out, driver.minutes(timed_out) + 2
        )  # The signal comes two minutes before.
        wait(lambda: 'SIGUSR2' in driver.log(timed_out))
        driver.limit(timed_out, 60)  # A busy machine may save for minutes.
        wait(lambda: re.search(r'Restarts=[1-9]', driver.description(timed_out)))
        wait(lambda: driver.has('resumed') and driver.has_active(measurements=1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    with driver.running() as process:
        wait(lambda: len(driver.running_jobs()) == 2 and driver.has_active(measurements=1))
        driver.kill_jobs()
        wait(lambda: driver.has('lost'))
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out
        assert 'The study is done' in out
    assert driver.slurm('squeue', '--noheader') == []
    at_once = ('--set', 'train_input.seconds=0')
    passed(command('paxtune.search', _SLOW, *at_once, f'--job_log_dir={alone}'))
    with load_study(directory) as study, load_study(alone) as undisturbed:
        assert len(study.trials) == 16
        assert told(study) == told(undisturbed)
        found = [each for trial in study.trials for each in continuations(trial.record)]
    saved = [(lost.detail, next_.step) for lost, next_ in found if lost.event == 'released']
    assert saved and all(detail == f'after step {step}' for detail, step in saved), saved
    killed = [next_.step for lost, next_ in found if lost.event == 'lost']
    checkpoints = {0, 20, 40, *(step for _, step in saved)}
    assert any(killed) and checkpoints.issuperset(killed), killed


def continuations(trial: TrialRecord) -> list[tuple[Event, Event]]:
    """Pairs the ends of a trial's workers with the starts of the next ones."""
    history = [event for event in trial.history if event.event != 'claimed']
    return [
        (event, after)
        for event, after in itertools.pairwise(history)
        if event.event in ('released', 'lost') and after.event in ('resumed', 'restarted')
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_worker_has_a_process_on_each_node_and_leaves_on_a_signal(
    tmp_path: Path, slurm: dict[str, str], undisturbed: list[Any]
) -> None:
    flags = (
        '--exp=tests.factories.multi_process.Search',
        '--num_trials=2',
        '--slurm',
        'time=10',
        'nodes=2',
    )
    env = {'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
    driver = Driver(tmp_path, slurm | env, *flags)
    with driver.running() as process:
        wait(lambda: driver.has('claimed'))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 130, out
    assert driver.running_jobs() == []
    with driver.running() as process:
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out
    with load_study(tmp_path) as study:
        assert told(study) == undisturbed[:2]


@pytest.mark.slow
def test_jobs_that_have_not_begun_are_taken_back_without_a_word(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    driver = Driver(tmp_path, slurm, _SLOW, '--slurm', 'time=10', 'begin=now+1hour')
    with driver.running() as process:
        wait(lambda: list(tmp_path.glob('slurm/*_submitted.pkl')))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    assert 'SLURM job' not in out
    assert driver.slurm('squeue', '--noheader') == []


@pytest.mark.slow
def test_jobs_that_end_at_once_end_the_search(tmp_path: Path, slurm: dict[str, str]) -> None:
    broken = ['time=10', 'export=ALL,PYTHONHASHSEED=broken']
    with Driver(tmp_path, slurm, _SLOW, '--slurm', *broken).running() as process:
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    assert '3 jobs in a row ended without a measurement' in out
    assert 'it left no message' in out


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
