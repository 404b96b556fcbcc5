"""Coordination of processes that train together: equal decisions, and one failure ends all.

Each process has some of the devices, and runs the same program. Processes exchange messages in
*rounds*, which all processes take part in, at the same place of the program. A message can be a
received signal, or an error. Between rounds no process waits for another. A round uses the service
that JAX starts in process 0, not the devices, which may be busy. With one process it is free.

A process may be lost: killed, or with its machine. The others notice it in the next round, or JAX
ends them. The same commands resume from the newest checkpoint.
"""

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

# Public JAX has no messages between processes without devices. Orbax uses this module, too.
from jax._src import distributed
from jax.experimental import multihost_utils

from trainer.runtime import clusters
from trainer.runtime.signals import SkipTrial, StopTrial
from trainer.symbolic.errors import LostProcessError, OtherProcessError, SaveError, UserError

T = TypeVar('T')

LOST_AFTER = 30
"""Seconds after which a process that no longer answers counts as lost."""

_SHUTDOWN_SECONDS = 120
"""Seconds that an ending process waits for other processes."""

_ERROR_SECONDS = 15
"""Seconds to wait for the others after an error in a joint operation. The others raise it, too, or
wait in that operation for this process in vain."""

_JOINT_ERRORS = (jax.errors.JaxRuntimeError, SaveError)

_AUTO, _ALONE = 'auto', 'none'
"""Values of --coordinator: the processes that JAX finds in the environment; none of them."""

_FOREVER = 20 * 24 * 3600  # As milliseconds in 32 bits.


def start(args: argparse.Namespace) -> None:
    """Joins the processes of a job: see `command.add_process_flags`.

    Flags name them, or JAX finds them in the environment of a TPU pod, SLURM, MPI or Kubernetes.
    Call this before any use of the devices.

    Raises:
        UserError: the flags or the environment do not fit together, or another process did not
            join.
    """
    require_flags(args)
    if args.coordinator not in (None, _AUTO, _ALONE):
        if args.num_processes > 1:
            _join(args.coordinator, args.num_processes, args.process_id)
    elif args.coordinator != _ALONE:
        _join_cluster(is_required=args.coordinator == _AUTO)


def require_flags(args: argparse.Namespace) -> None:
    """Raises UserError if the flags of `start` do not fit together; joins nothing."""
    where = (args.coordinator, args.num_processes, args.process_id)
    is_named = args.coordinator not in (None, _AUTO, _ALONE)
    if not is_named and where[1:] == (None, None):
        return
    if not is_named or None in where:
        raise UserError('--coordinator, --num_processes and --process_id go together: give all')
    host, _, port = args.coordinator.rpartition(':')
    if not host or not port.isdecimal():
        raise UserError(
            f'--coordinator: expected host:port, {_AUTO} or {_ALONE}, not {args.coordinator!r}'
        )
    if not 0 <= args.process_id < args.num_processes:
        raise UserError(
            f'--process_id: expected 0 to {args.num_processes - 1}, as there are '
            f'{args.num_processes} processes (--num_processes), not {args.process_id}'
        )


def _join_cluster(is_required: bool) -> None:
    """Joins the processes that JAX finds; UserError if it finds no required ones."""
    try:
        found = clusters.detected()
    except Exception as error:
        raise UserError(
            f'--coordinator={_AUTO}, which is the default in a cluster: its environment cannot be '
            f'used: {_first_line(error)}. Give --coordinator=HOST:PORT, '
            f'--num_processes and --process_id, or --coordinator={_ALONE} for this process alone'
        ) from error
    if found is not None:
        devices = None if found.local_devices is None else list(found.local_devices)
        how = {'local_device_ids': devices, 'cluster_detection_method': 'deactivate'}
        _join(found.coordinator, found.count, found.index, **how)
    elif is_required and not clusters.is_present():
        raise UserError(
            f'--coordinator={_AUTO}: neither a TPU pod, SLURM (srun), Open MPI (mpirun) nor an '
            'indexed Job of Kubernetes has started this process: give --coordinator=HOST:PORT, '
            '--num_processes and --process_id'
        )


def _join(coordinator: str, num_processes: int, process_id: int, **how: Any) -> None:
    # The service would handle SIGTERM, which `Interrupt` handles.
    jax.config.update('jax_enable_preemption_service', False)
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    # The only sign of a process that is late, or at another port: JAX waits silently, and aborts.
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
            **how,
            heartbeat_timeout_seconds=LOST_AFTER,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
        jax.devices()  # Waits for the devices of all processes, which are all here.
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f'--coordinator: the {num_processes} processes did not all join at '
            f'{coordinator}: {reason}'
        ) from error


def require_joined() -> None:
    """Raises UserError if processes that share devices cannot exchange messages."""
    if jax.process_count() != count():
        raise UserError(
            f'{jax.process_count()} processes share their devices, but cannot exchange messages: '
            'start them with --coordinator, or call jax.distributed.initialize()'
        )


def count() -> int:
    """Number of processes that train together."""
    return _group().count


def index() -> int:
    """Index of this process, from 0."""
    return _group().index


def is_first() -> bool:
    """True in the process that writes and prints."""
    return index() == 0


def is_lost() -> bool:
    """True if another process was lost, which makes rounds impossible."""
    return _group().lost is not None


def agree(flag: bool = False) -> bool:
    """A round: returns True if the flag of any process is set.

    Raises:
        OtherProcessError, UserError, StopTrial, SkipTrial: another process failed.
        LostProcessError: another process was lost.
    """
    messages = _group().round({'flag': True} if flag else None)
    return any('flag' in message for message in messages.values())


def is_preempted(step: int) -> bool:
    """True if JAX received a preemption notice, and all processes are to save after this step.

    If `jax.distributed.initialize()` was called without `start`, JAX treats SIGTERM as a notice
    and informs all processes. Each process must call this at every step.
    """
    # `reached_preemption_sync_point` raises without a preemption service.
    if distributed.global_state.preemption_sync_manager is None:
        return False
    return bool(multihost_utils.reached_preemption_sync_point(step))


def gather(value: Any) -> list[Any]:
    """A round: returns the JSON data of each process, by its index; raises as `agree`."""
    messages = _group().round({'value': value})
    return [messages[process]['value'] for process in range(count())]


def broadcast(value: Any = None) -> Any:
    """A round: returns the JSON data of the first process, for all; raises as `agree`."""
    messages = _group().round({'value': value} if is_first() else None)
    return messages[0]['value']


def barrier(name: str, message: str, milliseconds: int) -> set[str]:
    """Waits for the other processes outside of rounds, in any thread, at a barrier of unique name.

    Returns:
        The messages of all processes.

    Raises:
        JaxRuntimeError: a process did not come.
    """
    return _group().barrier(name, message, milliseconds)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Context manager that all processes leave together, with an error if one of them fails.

    An error in one process is raised in the others in their next round. So there must be a round
    before they wait for the failed process in any other way, as in a step.

    Raises:
        Exception: as `agree`.
    """
    try:
        yield
    except LostProcessError:
        raise
    except Exception as error:
        _group().send_error(error)
        raise
    except GeneratorExit:  # A generator that all processes close at the same place.
        agree()
        raise
    agree()


class _SingleProcess:
    """Coordination of one process."""

    count, index = 1, 0
    lost: LostProcessError | None = None

    def round(self, message: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
        # The data itself, not a copy as after a transfer.
        return {} if message is None else {0: message}

    def send_error(self, error: Exception) -> None:
        """Sends an error of this process to the others."""

    def barrier(self, name: str, message: str, milliseconds: int) -> set[str]:
        return {message}


class _Group(_SingleProcess):
    """Coordination of the processes that JAX connected."""

    def __init__(self, state: Any) -> None:
        self.count, self.index = state.num_processes, state.process_id
        self._client = state.client
        self._rounds = 0
        self._key: str | None = None  # Key of the last message of this process.
        self._known: BaseException | None = None  # The error that all processes know.

    def round(self, message: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
        messages = self._round(message)
        for process, received in sorted(messages.items()):
            if 'error' in received:
                self._known = error_from_json(process, received['error'])
                raise self._known
        return messages

    def send_error(self, error: Exception) -> None:
        cause: BaseException | None = error
        while cause is not None:
            if cause is self._known:
                return
            cause = cause.__cause__
        self._known = error
        seconds = _ERROR_SECONDS if isinstance(error, _JOINT_ERRORS) else _FOREVER
        try:
            self._round({'error': error_to_json(error)}, seconds)
        except LostProcessError as lost:
            raise LostProcessError(f'{_first_line(error)}; and {lost}') from error

    def _round(
        self, message: dict[str, Any] | None, seconds: int = _FOREVER
    ) -> dict[int, dict[str, Any]]:
        if self.lost is not None:
            raise self.lost
        self._rounds += 1
        try:
            received = _interruptible(lambda: self._exchange(message, seconds))
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            self.lost = LostProcessError(
                f'another of the {self.count} processes was lost, or hangs: {reason}. Start all of '
                'them again: they resume from the newest checkpoint.'
            )
            raise self.lost from error
        return {int(key.rpartition('/')[2]): json.loads(text) for key, text in received}

    def _exchange(self, message: dict[str, Any] | None, seconds: int) -> list[tuple[str, str]]:
        name, before = f'paxtune/rounds/{self._rounds}', self._key
        self._key = None if message is None else f'{name}/{self.index}'
        if self._key is not None:
            self._client.key_value_set(self._key, json.dumps(message))
        self._client.wait_at_barrier(name, seconds * 1000)
        received = self._client.key_value_dir_get(f'{name}/')
        if before is not None:  # All processes are in the next round, so they have read it.
            self._client.key_value_delete(before)
        return received

    def barrier(self, name: str, message: str, milliseconds: int) -> set[str]:
        self._client.key_value_set(f'{name}/{self.index}', message)
        self._client.wait_at_barrier(name, milliseconds)
        return {text for _, text in self._client.key_value_dir_get(f'{name}/')}


_single = _SingleProcess()
_joined: _Group | None = None


def _group() -> _SingleProcess:
    global _joined
    if _joined is None and jax.distributed.is_initialized():
        _joined = _Group(distributed.global_state)
    return _single if _joined is None or _joined.count == 1 else _joined


def _interruptible(function: Callable[[], T]) -> T:
    """Calls a function that waits, in a thread, so that Python's signal handlers can run."""
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


def error_to_json(error: Exception) -> dict[str, Any]:
    """Encodes an error as JSON data."""
    if isinstance(error, StopTrial):
        return {'stop': error.reason, 'reward': error.reward, 'metrics': error.metrics}
    if isinstance(error, SkipTrial):
        return {'skip': error.reason}
    if isinstance(error, UserError):
        return {'user': str(error)}
    return {'other': _first_line(error)}


def _first_line(error: Exception) -> str:
    text = str(error).strip().split('\n')[0]
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def error_from_json(process: int, encoded: dict[str, Any]) -> Exception:
    """Returns the error that another process has encoded."""
    if 'stop' in encoded:
        return StopTrial(encoded['stop'], reward=encoded['reward'], metrics=encoded['metrics'])
    if 'skip' in encoded:
        return SkipTrial(encoded['skip'])
    if 'user' in encoded:
        return UserError(f'process {process}: {encoded["user"]}')
    return OtherProcessError(f'process {process}: {encoded["other"]}')
