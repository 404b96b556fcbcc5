import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import tenacity

from paxtune.running import json_logs
from paxtune.running.device_allocation import ALLOCATOR, Place, places
from paxtune.running.false_starts import FalseStarts
from paxtune.running.trial_json import require_no_link
from paxtune.running.worker_line import WorkerLine
from paxtune.service import tokens
from paxtune.service.client import Client
from paxtune.service.remote_store import lose
from paxtune.service.schema import RevokedRequest
from paxtune.study import transitions
from paxtune.study.transitions import WorkerLoss
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, full_disk_text, is_disk_full

_LOG = logging.getLogger(__name__)

_LOCK = 'workers.lock'
_HOST = socket.gethostname()
_TICK_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_MAX_KILLED_STARTS = 8  # Another program may end a process now and then.
_MAX_STOPPED_SECONDS = 60.0
_MAX_ENDING_SECONDS = 15.0  # The code of a trial may leave threads, which would never end.
_SHOWN_LINES = 20
_MIN_ROOM = 2**20

DETACHED, STOPPED = 75, 76
"""Exit codes of a worker that is cut off from its trial or the service; that an error stops."""

_GAVE_BACK = (0, 2, DETACHED, STOPPED, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# Signals that end a process without a fault of its own. The kernel's OOM killer uses SIGKILL, too.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class WorkerError(Exception):
    """A worker ended with an error that ends the study's run. The message says which."""


@dataclasses.dataclass
class _Slot:
    """A slot of one worker at a time.

    Attributes:
        number: from 1.
        log: the file of its output.
        began: the offset in the log at which the worker began.
        false_starts: its processes that ended without a trial.
        is_done: whether the last process found the study done.
        line: to the worker, which reports its end here.
        ended: the time since which the worker has reported its end, and lives.
        stopped: the time since which the process is stopped, as by SIGSTOP.
        killed: the reason why the supervisor has killed it.
        is_alone: trials are not packed, since a process with several of them has failed.
    """

    number: int
    place: Place
    worker: str = ''
    process: 'subprocess.Popen[bytes] | None' = None
    log: Path = Path()
    began: int = 0
    false_starts: FalseStarts = dataclasses.field(default_factory=FalseStarts)
    is_done: bool = False
    line: WorkerLine = dataclasses.field(init=False)
    ended: float | None = None
    stopped: float | None = None
    killed: WorkerLoss | None = None
    is_alone: bool = False


class Supervisor:
    """Keeps a number of workers running on a study until they say that it is done."""

    def __init__(
        self,
        client: Client,
        directory: JobPath,
        home: Path,
        count: int,
        modules: Sequence[str],
        *,
        token: str | None,
        flags: Sequence[str] = (),
        memory_bytes: int | None = None,
        max_attempts: int = 1,
        first: int = 1,
        restarts: bool = True,
    ) -> None:
        """Prepares to start workers.

        Args:
            directory: of the study, where trials write.
            home: a local directory for the logs of workers.
            modules: imported by workers, as they define the classes of the experiment.
            token: the secret of the service.
            flags: further flags of workers, as for their connection to the service.
            memory_bytes: the resident memory beyond which a worker is ended.
            max_attempts: of a trial: see `paxtune.study.transitions.lose`.
            first: the number of the first worker, in the names of logs.
            restarts: start a worker again when it ends before the study is done.
        """
        self._client, self._directory, self._home = client, directory, home
        self._modules, self._token, self._flags = modules, token, flags
        self._memory_bytes, self._max_attempts = memory_bytes, max_attempts
        self._name = transitions.new_worker()
        self._slots = [_Slot(i, place) for i, place in enumerate(places(count), first)]
        self._restarts = restarts
        self._started = 0

    @property
    def is_done(self) -> bool:
        """Returns True if all workers have ended because there are no more trials."""
        return all(slot.is_done for slot in self._slots)

    @property
    def false_starts(self) -> int:
        """The number of processes in a row that ended without a trial."""
        return max(slot.false_starts.count for slot in self._slots)

    def run(self, should_interrupt: Callable[[], bool], look: Callable[[], None]) -> None:
        """Runs workers until they are done.

        Args:
            should_interrupt: asked often; on True the workers save, and end.
            look: called about once a second.

        Raises:
            WorkerError: an error ends the study's run.
            UserError: the workers cannot start.
        """
        looked = 0.0
        try:
            for slot in self._slots:
                self._start(slot)
            while any(slot.process is not None for slot in self._slots):
                if should_interrupt():
                    self._end_all()
                    return
                for slot in self._slots:
                    self._watch(slot)
                if time.monotonic() - looked > _LOOK_SECONDS:
                    self._require_room()
                    self._kill_revoked()
                    look()
                    looked = time.monotonic()
                time.sleep(_TICK_SECONDS)
        except BaseException as error:
            # On a full disk they could save nothing.
            self._end_all(signal.SIGKILL if is_disk_full(error) else signal.SIGTERM)
            raise

    def _require_room(self) -> None:
        # Without any, neither the study nor the log of a worker can say so.
        if shutil.disk_usage(self._home).free < _MIN_ROOM:
            full = OSError(errno.ENOSPC, f'less than {_MIN_ROOM >> 10} KiB are free')
            raise WorkerError(full_disk_text(full, self._home)) from full

    def _start(self, slot: _Slot) -> None:
        self._started += 1
        slot.worker = f'{self._name}-{self._started}'
        slot.killed = slot.stopped = slot.ended = None
        slot.log = log_file(self._home, slot.number)
        require_no_link(self._home, slot.log, slot.log.with_suffix('.jsonl'))
        slot.log.parent.mkdir(parents=True, exist_ok=True)
        with open(slot.log, 'ab') as log:
            slot.began = log.tell()
            slot.line = WorkerLine()
            # A session of its own: Ctrl-C is for this process, which forwards it to the workers.
            slot.process = subprocess.Popen(
                self._command(slot),
                stdin=slot.line.stdin,
                stdout=log,
                stderr=log,
                env=self._environment(slot),
                start_new_session=True,
            )
        slot.line.started(slot.process)
        _LOG.info('worker %s started as process %d', slot.worker, slot.process.pid)

    def _command(self, slot: _Slot) -> list[str]:
        given = {
            'endpoint': self._client.endpoint,
            'study': self._client.study,
            'worker': slot.worker,
            'job_log_dir': str(self._directory),
            'log': str(slot.log.with_suffix('.jsonl')),
            'modules': ','.join(self._modules),
            'cores': ','.join(map(str, slot.place.cores)),
        }
        flags = [f'--{name}={value}' for name, value in given.items()]
        flags += [*self._flags, *(['--pack=1'] if slot.is_alone else [])]
        return [sys.executable, '-m', 'paxtune.worker', '--supervised', *flags]

    def _environment(self, slot: _Slot) -> dict[str, str]:
        # Workers can import all modules of this process, also from its directory.
        found = os.pathsep.join(path or os.getcwd() for path in sys.path)
        secret = {} if self._token is None else {tokens.VARIABLE: self._token}
        return {**ALLOCATOR, **os.environ, 'PYTHONPATH': found, **slot.place.environment, **secret}

    def _watch(self, slot: _Slot) -> None:
        if slot.process is None:
            return
        code = slot.process.poll()
        if code is None:
            self._look_at(slot)
            return
        self._ended(slot, code)
        if slot.is_done or not self._restarts:
            slot.process = None
        else:
            self._start(slot)

    def _ended(self, slot: _Slot, code: int) -> None:
        reported = slot.line.reported()
        slot.line.close()
        _LOG.info('worker %s ended with %d, and reported %s', slot.worker, code, reported)
        self._require_room()
        slot.is_done = reported == 0
        loss = slot.killed or _loss_of(code, reported)
        slot.is_alone |= loss.counts or self._may_hang_or_fill_memory(slot, code, reported)
        lost = lose(self._client, slot.worker, loss, self._max_attempts)
        if reported in (2, STOPPED):
            message = f'\n{self._tail(slot)}'.rpartition('\nerror: ')[2].strip()
            message = message or f'worker {slot.worker} could not write {slot.log}'
            raise UserError(message) if reported == 2 else WorkerError(message)
        is_false_start = lost is None and slot.killed is None and reported not in _GAVE_BACK
        limit = {} if loss.counts else {'most': _MAX_KILLED_STARTS}
        if slot.false_starts.note(is_false_start, **limit):
            raise WorkerError(
                f'{slot.false_starts.count} workers in a row ended before they had a trial '
                f'({loss.reason}). The last one said:\n{self._tail(slot)}'
            )

    def _may_hang_or_fill_memory(self, slot: _Slot, code: int, reported: int | None) -> bool:
        """True if one of several packed trials may be why a process ended: the next shows which."""
        if slot.killed is not None or code == -signal.SIGKILL:  # So the kernel ends it, too.
            return True
        # A worker that finds out by itself that its trial took too long detaches.
        request = RevokedRequest(workers=[slot.worker])
        return reported == DETACHED and bool(self._client.call(request).workers)

    def _look_at(self, slot: _Slot) -> None:
        assert slot.process is not None
        if self._is_ending(slot):
            return
        try:
            process = psutil.Process(slot.process.pid)
            used, status = process.memory_info().rss, process.status()
        except psutil.Error:
            return  # It has just ended.
        if status != psutil.STATUS_STOPPED:
            slot.stopped = None
        elif slot.stopped is None:
            slot.stopped = time.monotonic()
        elif time.monotonic() - slot.stopped > _MAX_STOPPED_SECONDS:
            self._kill(slot, 'its worker was stopped', counts=False)
        if self._memory_bytes is not None and used > self._memory_bytes:
            usage = f'its worker used {used / 2**20:.0f} MiB of memory'
            self._kill(slot, f'{usage}, more than --worker_memory allows', counts=True)

    def _is_ending(self, slot: _Slot) -> bool:
        """Returns True if a worker has reported its end; kills it where it does not follow."""
        assert slot.process is not None
        if slot.ended is None and slot.line.reported() is not None:
            slot.ended = time.monotonic()
        elif slot.ended is not None and time.monotonic() - slot.ended > _MAX_ENDING_SECONDS:
            slot.process.kill()
        return slot.ended is not None

    def _kill_revoked(self) -> None:
        # A stopped worker (SIGSTOP) cannot end by itself.
        running = {slot.worker: slot for slot in self._slots if slot.process is not None}
        for worker in self._client.call(RevokedRequest(workers=list(running))).workers:
            self._kill(running[worker], 'it had lost its trial', counts=False)

    def _kill(self, slot: _Slot, why: str, counts: bool) -> None:
        assert slot.process is not None
        if slot.killed is None:
            slot.killed = WorkerLoss(why, counts, is_dead=True)
            slot.process.kill()

    def _end_all(self, how: signal.Signals = signal.SIGTERM) -> None:
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            assert slot.process is not None
            slot.process.send_signal(how)
            slot.process.send_signal(signal.SIGCONT)  # A stopped process handles no signal.
            slot.line.ask_to_leave()
        for slot in running:
            assert slot.process is not None
            while slot.process.poll() is None:
                self._is_ending(slot)
                time.sleep(_TICK_SECONDS)
            slot.line.close()
            slot.process = None

    def _tail(self, slot: _Slot) -> str:
        with open(slot.log, 'rb') as file:
            file.seek(slot.began)
            lines = file.read().decode(errors='replace').splitlines()
        return '\n'.join(lines[-_SHOWN_LINES:])


def log_file(home: Path, number: int) -> Path:
    """Returns the file of the output of a worker of this machine, by its number."""
    return home / json_logs.LOGS / f'{_HOST}-{number}.log'


def _loss_of(code: int, reported: int | None) -> WorkerLoss:
    """Returns the loss of a worker that this supervisor did not kill.

    An end that the worker did not report is that of its trial.
    """
    if reported is not None:
        reason, counts = f'its worker ended with exit code {reported}', reported not in _GAVE_BACK
    elif code >= 0:
        reason, counts = f'its worker ended with exit code {code}', True
    else:
        name = signal.Signals(-code).name
        reason, counts = f'its worker was ended by {name}', -code not in _FROM_OUTSIDE
    return WorkerLoss(reason, counts, is_dead=True)


@contextlib.contextmanager
def worker_lock_file(directory: JobPath) -> Iterator[None]:
    """Holds a lock while the worker lives: see `wait_for_the_last`. An object store has none."""
    if not isinstance(directory, Path):
        yield
        return
    with open(directory / _LOCK, 'a') as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        # A process that the code of a trial forks, and leaves, is no worker.
        os.register_at_fork(after_in_child=file.close)
        yield


def wait_for_the_last(directory: Path, seconds: float = 20.0) -> None:
    """Waits for the end of an earlier search's workers; raises UserError if one stays."""
    polling = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BlockingIOError),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(_TICK_SECONDS),
        reraise=True,
    )
    try:
        with open(directory / _LOCK, 'a') as file:
            polling(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f'--job_log_dir={directory}: workers of an earlier search are still '
            'there (python -m paxtune.worker): end them first'
        ) from None


def modules_of(value: Any, has_script: bool = False) -> list[str]:
    """Lists the modules of the classes that a value is built of, or names.

    Raises:
        UserError: a class is of the script that was started, and workers do not have it.
    """
    import pyglove as pg

    from paxtune.algorithms import DnaGenerator, VizierDesigner
    from paxtune.algorithms.external import import_path

    objects = pg.query(value, where=lambda part: isinstance(part, pg.Object), enter_selected=True)
    found = {type(each).__module__ for each in objects.values()}
    named = [each for each in objects.values() if isinstance(each, DnaGenerator | VizierDesigner)]
    found |= set(filter(None, (import_path.imported_module(each.factory) for each in named)))
    found -= {'__main__'} if has_script else set()
    if '__main__' in found:
        raise UserError(
            'workers are other processes, which cannot import names that are defined in the '
            'script that was started: put the experiment and its classes into a module'
        )
    return sorted(module for module in found if not module.startswith('pyglove'))
