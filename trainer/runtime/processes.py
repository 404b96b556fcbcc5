"""Several processes that train together: they decide alike, and what fails in one ends all.

Each of them has some of the devices, and runs the same program. What only one of them knows (a
signal came, data cannot be read) it says here, and all hear it at the same place: between two
*rounds*, which all processes take part in, nobody waits for anybody. A round goes through the
service that JAX starts in process 0, not through the devices, which may be busy; with one process
it costs nothing.

A process may be lost: killed, or with its machine. The others notice it in the next round, or JAX
ends them. The same commands again go on from the newest checkpoint.
"""

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

# Public JAX has no messages between processes that do without devices. Orbax uses these, too.
from jax._src import distributed
from jax.experimental import multihost_utils

from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import LostProcessError, OtherProcessError, SaveError, UserError

T = TypeVar('T')

LOST_AFTER = 30
"""Seconds after which a process that no longer answers counts as lost."""

_GOODBYE = 120
"""Seconds that a process which ends waits for the others."""

_PATIENCE = 15
"""Seconds to wait for the others after an error in what all do together: they have it too, or wait
for this process there, where it will not come any more."""

_IN_COMMON = (jax.errors.JaxRuntimeError, SaveError)

_FOREVER = 20 * 24 * 3600  # As milliseconds in 32 bits.


def start(args: argparse.Namespace) -> None:
    """Joins the processes of a job, as the flags of `command.add_process_flags` say.

    Nothing may have touched the devices yet. Without the flags nothing happens.

    Raises:
        UserError: the flags do not fit together, or the others did not come.
    """
    where = (args.coordinator, args.num_processes, args.process_id)
    if where == (None, None, None):
        return
    if None in where:
        raise UserError('--coordinator, --num_processes and --process_id go together: give all')
    host, _, port = args.coordinator.rpartition(':')
    if not host or not port.isdecimal():
        raise UserError(f'--coordinator: expected host:port, not {args.coordinator!r}')
    if not 0 <= args.process_id < args.num_processes:
        raise UserError(
            f'--process_id: expected 0 to {args.num_processes - 1}, as there are '
            f'{args.num_processes} processes (--num_processes), not {args.process_id}'
        )
    if args.num_processes > 1:
        _join(*where)


def _join(coordinator: str, num_processes: int, process_id: int) -> None:
    # It would take SIGTERM for itself, which `Interrupt` takes.
    jax.config.update('jax_enable_preemption_service', False)
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    # Who comes too late, or to another port, shows in nothing else: JAX waits, and then aborts.
    print(
        f'Process {process_id} of {num_processes} joins the others at {coordinator}.',
        file=sys.stderr,
        flush=True,
    )
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=LOST_AFTER,
            shutdown_timeout_seconds=_GOODBYE,
        )
        jax.devices()  # Here, where all are: it waits for the devices of all.
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f'--coordinator: the {num_processes} processes did not come together at '
            f'{coordinator}: {reason}'
        ) from error


def require_joined() -> None:
    """Makes sure that all processes that share devices can talk to each other.

    Raises:
        UserError: they cannot.
    """
    if jax.process_count() != count():
        raise UserError(
            f'{jax.process_count()} processes share their devices, and know nothing else of each '
            'other: start them with --coordinator, or call jax.distributed.initialize()'
        )


def count() -> int:
    """How many processes train together."""
    return _group().count


def index() -> int:
    """Which of them this one is, from 0."""
    return _group().index


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return index() == 0


def is_lost() -> bool:
    """Whether another process was lost, so that nothing can be done together any more."""
    return _group().lost is not None


def agree(flag: bool = False) -> bool:
    """A round: whether any process says so.

    Raises:
        OtherProcessError, UserError, StopTrial, SkipTrial: another process failed.
        LostProcessError: another process is not there any more.
    """
    return any('flag' in said for said in _group().round({'flag': True} if flag else None).values())


def is_preempted(step: int) -> bool:
    """Whether JAX's preemption notice came, and all processes are to save after this step.

    JAX takes SIGTERM for such a notice where `jax.distributed.initialize()` was called without
    `start`, and lets all processes know. Each must ask this at every step.
    """
    # `reached_preemption_sync_point` raises where there is nothing that could be reached.
    if distributed.global_state.preemption_sync_manager is None:
        return False
    return bool(multihost_utils.reached_preemption_sync_point(step))


def gather(value: Any) -> list[Any]:
    """A round: the JSON data that each process gives, by its index.

    Raises:
        Exception: as `agree`.
    """
    heard = _group().round({'value': value})
    return [heard[process]['value'] for process in range(count())]


def broadcast(value: Any = None) -> Any:
    """A round: the JSON data that the first process gives. What others give does not count.

    Raises:
        Exception: as `agree`.
    """
    heard = _group().round({'value': value} if is_first() else None)
    return heard[0]['value']


def meet(name: str, said: str, milliseconds: int) -> set[str]:
    """Waits for the others outside of rounds, in any thread. Returns what all say.

    Args:
        name: of the meeting; no other has it.
        said: what this process says.
        milliseconds: how long to wait.

    Raises:
        JaxRuntimeError: some process did not come.
    """
    return _group().meet(name, said, milliseconds)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Whoever leaves this, leaves it with all others: the same way, or with an error of theirs.

    An error in one process is raised in the others in their next round, wherever that is. So there
    must be a round before they wait for the failed one in any other way, as in a step.

    Raises:
        Exception: as `agree`.
    """
    try:
        yield
    except LostProcessError:
        raise
    except Exception as error:
        _group().tell(error)
        raise
    except GeneratorExit:  # Of a generator that all close at the same place.
        agree()
        raise
    agree()


class _Alone:
    """One process."""

    count, index = 1, 0
    lost: LostProcessError | None = None

    def round(self, said: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
        """What each process says, by its index."""
        # The caller goes on with data that nobody else has, as if they had been sent.
        return {} if said is None else {0: said}

    def tell(self, error: Exception) -> None:
        """Tells the others what happened here."""

    def meet(self, name: str, said: str, milliseconds: int) -> set[str]:
        """Waits for the others outside of rounds. Returns what all say."""
        return {said}


class _Group(_Alone):
    """The processes that JAX brought together."""

    def __init__(self, state: Any) -> None:
        self.count, self.index = state.num_processes, state.process_id
        self._client = state.client
        self._rounds = 0
        self._said: str | None = None
        self._told: BaseException | None = None

    def round(self, said: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
        heard = self._round(said)
        for process, what in sorted(heard.items()):
            if 'error' in what:
                self._told = _decoded(process, what['error'])
                raise self._told
        return heard

    def tell(self, error: Exception) -> None:
        cause: BaseException | None = error
        while cause is not None:
            if cause is self._told:
                return
            cause = cause.__cause__
        self._told = error
        seconds = _PATIENCE if isinstance(error, _IN_COMMON) else _FOREVER
        try:
            self._round({'error': _encoded(error)}, seconds)
        except LostProcessError as lost:
            raise LostProcessError(f'{_told(error)}; and {lost}') from error

    def _round(
        self, said: dict[str, Any] | None, seconds: int = _FOREVER
    ) -> dict[int, dict[str, Any]]:
        if self.lost is not None:
            raise self.lost
        self._rounds += 1
        try:
            heard = _interruptible(lambda: self._exchange(said, seconds))
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            self.lost = LostProcessError(
                f'another of the {self.count} processes was lost, or hangs: {reason}. Start all of '
                'them again: they go on from the newest checkpoint.'
            )
            raise self.lost from error
        return {int(key.rpartition('/')[2]): json.loads(text) for key, text in heard}

    def _exchange(self, said: dict[str, Any] | None, seconds: int) -> list[tuple[str, str]]:
        name, before = f'paxtune/rounds/{self._rounds}', self._said
        self._said = None if said is None else f'{name}/{self.index}'
        if self._said is not None:
            self._client.key_value_set(self._said, json.dumps(said))
        self._client.wait_at_barrier(name, seconds * 1000)
        heard = self._client.key_value_dir_get(f'{name}/')
        if before is not None:  # All have read it: they are in the next round.
            self._client.key_value_delete(before)
        return heard

    def meet(self, name: str, said: str, milliseconds: int) -> set[str]:
        self._client.key_value_set(f'{name}/{self.index}', said)
        self._client.wait_at_barrier(name, milliseconds)
        return {text for _, text in self._client.key_value_dir_get(f'{name}/')}


_alone = _Alone()
_joined: _Group | None = None


def _group() -> _Alone:
    global _joined
    if _joined is None and jax.distributed.is_initialized():
        _joined = _Group(distributed.global_state)
    return _alone if _joined is None or _joined.count == 1 else _joined


def _interruptible(function: Callable[[], T]) -> T:
    """Calls a function that waits. Python's signal handlers run meanwhile."""
    results: list[T] = []
    errors: list[Exception] = []

    def call() -> None:
        try:
            results.append(function())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _encoded(error: Exception) -> dict[str, Any]:
    """An error as JSON data."""
    if isinstance(error, StopTrial):
        return {'stop': error.reason, 'reward': error.reward, 'metrics': error.metrics}
    if isinstance(error, SkipTrial):
        return {'skip': error.reason}
    if isinstance(error, UserError):
        return {'user': str(error)}
    return {'other': _told(error)}


def _told(error: Exception) -> str:
    text = str(error).strip().split('\n')[0]
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _decoded(process: int, said: dict[str, Any]) -> Exception:
    """What an error of another process is in this one."""
    if 'stop' in said:
        return StopTrial(said['stop'], reward=said['reward'], metrics=said['metrics'])
    if 'skip' in said:
        return SkipTrial(said['skip'])
    if 'user' in said:
        return UserError(f'process {process}: {said["user"]}')
    return OtherProcessError(f'process {process}: {said["other"]}')
