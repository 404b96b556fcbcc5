"""The scene of faults: a search and its workers, their service, its database, their disk."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, TypeAlias

import psutil
import pytest

from benchmarks.chaotic.experiment import FATES, NUM_FATES
from paxtune.running.device_allocation import places
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study, load_study
from paxtune.study.study import Study
from tests.disks import SmallDisk, small_disk
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
EXPERIMENT = 'benchmarks.chaotic.experiment.Chaotic'

Mode: TypeAlias = Literal['embedded', 'sqlite', 'postgresql']
"""Where the study is kept: by the search itself, or by a service, and that in which database."""

_FULL_DISK = 'no space is left on the disk'
_STUDY = 'chaos'
_MAX_RESTARTS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Attributes:
        mode: where the study is kept.
        num_workers: how many processes run trials.
        num_trials: how many trials.
        seed: what faults, decisions and seed trials are drawn from.
        rounds: how often each kind of fault may happen.
        between_faults: the least and the most seconds between two faults.
        lease_seconds: after which the service gives up a worker.
        timeout: after which a trial without a step is given up.
        max_attempts: how often a trial is tried.
        deadline: after so many seconds it is given up.
    """

    mode: Mode
    num_workers: int
    num_trials: int
    seed: int
    rounds: int
    between_faults: tuple[float, float]
    lease_seconds: float
    timeout: float
    max_attempts: int
    deadline: float


class Scene:
    """Runs a study, to its end whatever happens.

    Attributes:
        plan: settings of the run.
        disk: where trials write; None where no file system of its own is available.
        postgres: the server of the database; None for SQLite.
        surprises: what ended by itself that should not.
        job_log_dir: where trials write.
    """

    def __init__(self, plan: Plan, folder: Path, stack: contextlib.ExitStack) -> None:
        """Starts everything.

        Args:
            plan: what is run.
            folder: an empty one.
            stack: what is to be ended and removed at the end.
        """
        self.plan, self._folder, self._stack = plan, folder, stack
        self.surprises: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self.disk = self._small_disk()
        self.job_log_dir = (folder if self.disk is None else self.disk.path) / 'job'
        self.postgres: PostgresServer | None = None
        self._database: str | Path = folder / 'studies.db'
        if plan.mode == 'postgresql':
            self.postgres = stack.enter_context(PostgresServer.started())
            self._database = self.postgres.new_database()
        self._port = _unused_port()
        self._seeds = folder / 'seeds.json'
        self._seeds.write_text(json.dumps(_initial_trials(plan)))
        self.service: subprocess.Popen[bytes] | None = None
        stack.callback(self._kill_all)
        if plan.mode != 'embedded':
            self.start_service()
        self.start_driver()

    def _small_disk(self) -> SmallDisk | None:
        try:
            return self._stack.enter_context(small_disk(self._folder / 'disk', '64m'))
        except pytest.skip.Exception:
            return None

    def start_service(self) -> None:
        """Starts the service, or starts it again."""
        database, lease = str(self._database), f'--lease_seconds={self.plan.lease_seconds}'
        flags = [f'--database={database}', f'--port={self._port}', lease]
        self.service = self._start('service', 'paxtune.serve', *flags)

    def start_driver(self) -> None:
        """Starts the search: always the same command."""
        plan = self.plan
        flags = {
            'exp': EXPERIMENT,
            'num_trials': plan.num_trials,
            'workers': plan.num_workers,
            'worker_memory': 1.2,
            'trial_timeout': plan.timeout,
            'max_attempts': plan.max_attempts,
            'seed': plan.seed,
            'initial_trials': self._seeds,
            'job_log_dir': self.job_log_dir,
        }
        if plan.mode != 'embedded':
            flags |= {'vizier_endpoint': f'127.0.0.1:{self._port}', 'study': _STUDY}
        given = [f'--{name}={value}' for name, value in flags.items()]
        self._log_length = len(self._log_text('driver'))
        self.driver = self._start('driver', 'paxtune.search', *given)

    def _start(self, name: str, module: str, *flags: str) -> subprocess.Popen[bytes]:
        with open(self._folder / f'{name}.log', 'ab') as log:
            process = subprocess.Popen(
                [sys.executable, '-m', module, *flags],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which ends them.
            )
        self._started.append(process)
        return process

    def workers(self) -> list[psutil.Process]:
        """The processes that run trials now."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.driver.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if 'paxtune.worker' in each.cmdline():
                        found.append(each)
        return found

    def is_working(self) -> bool:
        """True if all workers run, and at least one of them has begun a trial."""
        text = ''.join(log.read_text() for log in self.logs())
        workers = self.workers()
        return len(workers) == self.plan.num_workers and any(
            name in text for worker in workers for name in _flag(worker, 'worker')
        )

    def logs(self) -> list[Path]:
        """The structured logs of the workers."""
        return sorted((self.job_log_dir / 'logs').glob('*.jsonl'))

    def is_done(self) -> bool:
        """Returns True if the study is done; restarts processes that have ended too early."""
        if self.service is not None and (code := self.service.poll()) is not None:
            self._surprise(f'the service ended with {code}: {self.last_line("service")}')
            self.start_service()
        code = self.driver.poll()
        if code:
            # A full disk ends a search, which then asks for room and for the same command.
            if self.disk is None or _FULL_DISK not in self._log_text('driver')[self._log_length :]:
                self._surprise(f'the search ended with {code}: {self.last_line("driver")}')
            self.start_driver()
        return code == 0

    def _surprise(self, what: str) -> None:
        self.surprises.append(what)
        if len(self.surprises) > _MAX_RESTARTS:
            raise RuntimeError('\n'.join(self.surprises))

    def last_line(self, name: str) -> str:
        """Last line in the log of the service or the driver."""
        lines = self._log_text(name).strip().splitlines()
        return lines[-1] if lines else ''

    def _log_text(self, name: str) -> str:
        log = self._folder / f'{name}.log'
        return log.read_text() if log.exists() else ''

    def end(self) -> None:
        """Ends the service, in peace."""
        if self.service is not None:
            self.service.terminate()
            if code := self.service.wait(60):
                self._surprise(f'the service was to end, and ended with {code}')
            self.service = None

    def left_behind(self) -> list[int]:
        """Workers that are still there."""
        found = psutil.process_iter(['pid', 'cmdline'])
        flag = f'--job_log_dir={self.job_log_dir}'
        return [each.pid for each in found if flag in (each.info['cmdline'] or [])]

    def study(self) -> Study:
        """The study as it is kept. Nothing else may have its database."""
        if self.plan.mode == 'embedded':
            return load_study(self.job_log_dir)
        return join_study(LocalStore(Database(self._database), _STUDY), self.job_log_dir)

    def undisturbed(self, decisions: list[dict[str, object]]) -> Study:
        """Another study in which trials of the given decisions ran, without workers and faults."""
        seeds, directory = self._folder / 'again.json', self._folder / 'undisturbed'
        seeds.write_text(json.dumps(decisions))
        flags = {
            'exp': EXPERIMENT,
            'num_trials': len(decisions),
            'initial_trials': seeds,
            'job_log_dir': directory,
        }
        given = [f'--{name}={value}' for name, value in flags.items()]
        changes = ['train_input.seconds=0.0', 'train.checkpoints.every=1000']
        # The bits depend on the number of threads, which is that of the cores.
        cores = places(self.plan.num_workers)[0].cores
        done = subprocess.run(
            [sys.executable, '-m', 'paxtune.search', *given, '--set', *changes],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return load_study(directory)

    def _kill_all(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for pid in self.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while self.left_behind():
            time.sleep(0.1)


def _flag(process: psutil.Process, name: str) -> list[str]:
    start = f'--{name}='
    with contextlib.suppress(psutil.NoSuchProcess):
        return [each.removeprefix(start) for each in process.cmdline() if each.startswith(start)]
    return []


def _initial_trials(plan: Plan) -> list[dict[str, int]]:
    """Each fate once and again, those that take longest first, and as many that are well."""
    bad = sorted(FATES, key=lambda fate: FATES[fate] != 'hangs')
    rng = random.Random(plan.seed)
    well = [fate for fate in range(NUM_FATES) if fate not in FATES]
    fates = [fate for each in bad for fate in (each, rng.choice(well))]
    return [{'train_input.fate': fate} for fate in fates[: plan.num_trials - 1]]


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        port: int = listener.getsockname()[1]
        return port
