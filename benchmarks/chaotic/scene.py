"""The scene of faults: a search and its workers, their service, its database, their disk."""

import contextlib
import dataclasses
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, TypeAlias

import psutil

from benchmarks.chaotic.experiment import FATES, NUM_FATES
from benchmarks.chaotic.files import workers_of
from benchmarks.chaotic.machine import ROOT, Machine, has_host_names, start
from benchmarks.chaotic.proxy import Proxy
from paxtune.running.device_allocation import places
from paxtune.service import tokens
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import join_study, load_study
from paxtune.study.study import Study
from tools.servers.disks import MountRefusedError, SmallDisk, small_disk
from tools.servers.ports import unused_port
from tools.servers.postgres import PostgresServer

EXPERIMENT = 'benchmarks.chaotic.experiment.Chaotic'

Mode: TypeAlias = Literal['embedded', 'sqlite', 'postgresql']
"""Where the study is kept: by the search itself, or by a service, and that in which database."""

_STUDY = 'chaos'
_MAX_RESTARTS = 5

_EXCUSES = (
    'no space is left on the disk',
    # The service was away, or the network cut, when the search began.
    'did not answer for 10 s',
    # A worker that is stopped cannot end with the search before.
    'workers of an earlier search are still there',
)
"""Parts of the last words of a search that asks for the same command again."""

_EXCUSES_OF_SERVICES = ('connection failed', 'the database system is')
"""Excuses of a service that began while its database was away."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Attributes:
        mode: where the study is kept.
        num_workers: how many processes run trials.
        num_machines: on how many machines they are, if processes can have host names here.
        num_trials: how many trials.
        seed: what faults, decisions and seed trials are drawn from.
        num_alone: how many faults happen one after another, of any kinds; None for each kind once.
        num_pairs: how many pairs of faults overlap.
        between_faults: the least and the most seconds between two faults.
        lease_seconds: after which the service gives up a worker.
        timeout: after which a trial without a step is given up.
        max_attempts: how often a trial is tried.
        deadline: it is given up after this number of seconds.
    """

    mode: Mode
    num_workers: int
    num_machines: int
    num_trials: int
    seed: int
    num_alone: int | None
    num_pairs: int
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
        machines: those that run trials.
        service: the process of the service; None where that is in the search.
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
        self.disk = self._small_disk()
        self.job_log_dir = (folder if self.disk is None else self.disk.path) / 'job'
        self.postgres: PostgresServer | None = None
        self._database: str | Path = folder / 'studies.db'
        if plan.mode == 'postgresql':
            self.postgres = stack.enter_context(PostgresServer.started())
            self._database = self.postgres.new_database()
        self._port = unused_port()
        self._seeds = folder / 'seeds.json'
        self._seeds.write_text(json.dumps(_initial_trials(plan)))
        self._environment = dict(os.environ)
        self._services: list[subprocess.Popen[bytes]] = []
        self.machines: list[Machine] = []
        stack.callback(self._kill_all)
        count = 1
        if plan.mode != 'embedded':
            self._environment[tokens.VARIABLE] = secrets.token_hex()
            self.start_service()
            count = plan.num_machines if has_host_names() else 1
        for number in range(1, count + 1):
            self._add_machine(f'machine{number}', plan.num_workers // count)

    def _small_disk(self) -> SmallDisk | None:
        try:
            return self._stack.enter_context(small_disk(self._folder / 'disk', '64m'))
        except MountRefusedError:
            return None

    @property
    def service(self) -> 'subprocess.Popen[bytes] | None':
        return self._services[-1] if self._services else None

    def start_service(self) -> None:
        """Starts the service, or starts it again."""
        database, lease = str(self._database), f'--lease_seconds={self.plan.lease_seconds}'
        flags = [f'--database={database}', f'--port={self._port}', lease]
        command = [sys.executable, '-m', 'paxtune.serve', *flags]
        self._service_length = len(self._service_text())
        self._services.append(start(command, self._service_log, self._environment))

    def _add_machine(self, name: str, num_workers: int) -> None:
        plan = self.plan
        flags: dict[str, object] = {
            'exp': EXPERIMENT,
            'num_trials': plan.num_trials,
            'workers': num_workers,
            'worker_memory': 1.2,
            'trial_timeout': plan.timeout,
            'max_attempts': plan.max_attempts,
            'seed': plan.seed,
            'initial_trials': self._seeds,
            'job_log_dir': self.job_log_dir,
        }
        network = None
        if plan.mode != 'embedded':
            network = Proxy(self._port)
            self._stack.callback(network.stop)
            flags |= {'vizier_endpoint': f'127.0.0.1:{network.port}', 'study': _STUDY}
        log = self._folder / f'{name}.log'
        self.machines.append(Machine(name, flags, self._environment, network, log))

    def workers(self) -> list[psutil.Process]:
        """The processes that run trials now, of all machines."""
        return [worker for machine in self.machines for worker in machine.workers()]

    def is_working(self) -> bool:
        """True if all workers run, and at least one of them has begun a trial."""
        text = ''.join(log.read_text(errors='replace') for log in self.logs())
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
            message = self._service_text()[self._service_length :]
            if not any(excuse in message for excuse in _EXCUSES_OF_SERVICES):
                self._surprise(f'the service ended with {code}: {_last_line(message)}')
            self.start_service()
        codes = [machine.search.poll() for machine in self.machines]
        for machine, code in zip(self.machines, codes, strict=True):
            if code:
                message = machine.message()
                if not any(excuse in message for excuse in _EXCUSES):
                    self._surprise(f'{machine.name} ended with {code}: {_last_line(message)}')
                machine.start()
        return all(code == 0 for code in codes)

    def _surprise(self, what: str) -> None:
        self.surprises.append(what)
        if len(self.surprises) > _MAX_RESTARTS:
            raise RuntimeError('\n'.join(self.surprises))

    @property
    def _service_log(self) -> Path:
        return self._folder / 'service.log'

    def _service_text(self) -> str:
        log = self._service_log
        return log.read_text(errors='replace') if log.exists() else ''

    def errors(self) -> list[str]:
        """Tracebacks of commands, and internal errors of the service."""
        texts = {machine.name: machine.log.read_text() for machine in self.machines}
        texts['the service'] = self._service_text()
        return [
            f'{name}: {line}'
            for name, text in texts.items()
            for line in text.splitlines()
            if line.startswith('Traceback') or ': INTERNAL: ' in line
        ]

    def end(self) -> None:
        """Ends the service, in peace."""
        if self.service is not None:
            self.service.terminate()
            if code := self.service.wait(60):
                self._surprise(f'the service was to end, and ended with {code}')

    def left_behind(self) -> list[int]:
        """Workers that are still there."""
        return [each.pid for each in workers_of(self.job_log_dir)]

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
        cores = places(self.plan.num_workers // len(self.machines))[0].cores
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
        for process in self._services:
            process.kill()
            process.wait()
        for machine in self.machines:
            machine.end()
        while left := self.left_behind():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [''])[-1]


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
