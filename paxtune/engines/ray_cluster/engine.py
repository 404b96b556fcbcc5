"""Trials on a Ray cluster."""

import contextlib
import dataclasses
import hashlib
import importlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from paxtune.engines.base import Job, require_counts
from paxtune.engines.cluster import Cluster
from paxtune.engines.cluster_worker import ClusterWorker
from paxtune.engines.network_service import FOLDER
from paxtune.engines.ray_cluster.worker_group import NAMESPACE, WorkerGroup
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.service import tokens
from paxtune.service.address import Service
from paxtune.study.transitions import DetachedError
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, nearest

STRATEGIES = ('PACK', 'SPREAD', 'STRICT_PACK', 'STRICT_SPREAD')

_LOOK_SECONDS = 0.5
_RAY_COPIES = 'runtime_resources'


@dataclasses.dataclass(frozen=True)
class Ray(Cluster):
    """Runs the trials in workers on a Ray cluster. Any of them, or their nodes, may die.

    The study and its workers belong to a coordinator, an actor on the node of this process. If
    this process dies, the search goes on, and the same call joins it again. A trial that a node has
    lost continues from its checkpoint where the nodes share the directory; elsewhere it starts
    again.

    Attributes:
        address: of the cluster, as for `ray.init`; None for the one of `RAY_ADDRESS`, else one on
            this machine, else a new one. Not used if Ray is connected already.
        trial_resources: of each process of a trial, by the names of Ray.
        processes: the number of processes that train a trial together.
        strategy: Ray's placement strategy of these processes.
        runtime_env: Ray's runtime environment, such as `{'working_dir': '.'}`, has the code and
            packages of nodes. By default it is the job's. If it has changed, the next call ends the
            workers, and begins others.
    """

    extra, library = 'ray', 'ray'

    address: str | None = None
    trial_resources: Mapping[str, float] = dataclasses.field(default_factory=lambda: {'CPU': 1})
    processes: int = 1
    strategy: str = 'STRICT_SPREAD'
    runtime_env: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        require_counts(self, 'processes')
        super().__post_init__()
        if self.strategy not in STRATEGIES:
            raise UserError(
                f'--trial_placement={self.strategy}: expected one of {", ".join(STRATEGIES)}. '
                f'{nearest(self.strategy, STRATEGIES)}'.rstrip()
            )
        amounts = self.trial_resources.values()
        if not self.trial_resources or not all(
            isinstance(each, int | float) and each > 0 for each in amounts
        ):
            raise UserError(
                f'--trial_resources={dict(self.trial_resources)}: expected amounts above 0 by '
                'name, such as {"CPU": 4, "GPU": 1}'
            )

    @property
    def description(self) -> str:
        return f'in {self.count} workers on a Ray cluster{self.pack_label}'

    @property
    def processes_per_worker(self) -> int:
        return self.processes

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        found = super().directory(given)
        if found is not None and _RAY_COPIES in Path(found).absolute().parts:
            raise UserError(
                f'--job_log_dir={found}: it lies in a copy of --working-dir, which Ray deletes '
                'after the job. Give an absolute path'
            )
        return found

    @contextlib.contextmanager
    def serve(self, directory: Path) -> Iterator[Service]:
        """Leaves the service to its coordinator, which ends with it unless workers run."""
        self._connect()
        coordinator = self._coordinator(directory)
        try:
            yield _get(coordinator.serve.remote())
        finally:
            _end_idle(coordinator)

    def keep(self, job: Job, worker: ClusterWorker, look: Callable[[], None]) -> None:
        coordinator = self._coordinator(Path(worker.directory))
        group = WorkerGroup(self.count, worker, dict(self.trial_resources), self.strategy)
        _get(coordinator.start.remote(group))
        is_leaving, waiting = False, 0
        try:
            while (state := _get(coordinator.state.remote())).is_running:
                if not is_leaving and job.should_interrupt():
                    coordinator.leave.remote()
                    is_leaving = True
                if state.waiting > waiting:
                    self._say_that_wait(state.waiting)
                waiting = state.waiting
                try:
                    look()
                except DetachedError:  # The service ends with its coordinator.
                    _get(coordinator.state.remote())
                    raise
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            _get(coordinator.leave.remote())
            while _get(coordinator.state.remote()).is_running:
                time.sleep(_LOOK_SECONDS)
            raise
        state.end.require_success()

    def _connect(self) -> None:
        ray = importlib.import_module('ray')
        address = self.address or os.environ.get('RAY_ADDRESS', '')
        if address.startswith('ray://') or ray.util.client.ray.is_connected():
            raise UserError(
                f'--ray_address={address}: run the search on a node of the cluster: '
                'ray job submit --working-dir=. -- python -m paxtune.search …'
            )
        if ray.is_initialized():
            if self.runtime_env is not None:
                raise UserError('Ray is connected already: give runtime_env to ray.init')
            return
        environment = None if self.runtime_env is None else dict(self.runtime_env)
        with _own_signals():
            try:
                ray.init(
                    self.address,
                    namespace=NAMESPACE,
                    runtime_env=environment,
                    logging_level='WARNING',
                )
            except ConnectionError as error:
                raise UserError(
                    f'--ray_address={self.address}: {error}. `ray start --head` starts a cluster'
                ) from error
            except (ValueError, RuntimeError) as error:
                raise UserError(f'--engine=ray: {error}') from error

    def _coordinator(self, directory: Path) -> Any:
        """Returns the coordinator of a directory with the code of this process.

        It is started if there is none. One with other code saves the trials of its workers, and
        ends.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from paxtune.engines.ray_cluster.coordinator import Coordinator

        context = ray.get_runtime_context()
        name = _name(directory, context.get_runtime_env_string())
        options: dict[str, Any] = {
            'name': name,
            'namespace': NAMESPACE,
            'lifetime': 'detached',
            'get_if_exists': True,
            'num_cpus': 0,
            'max_restarts': -1,
            'max_task_retries': -1,
            'scheduling_strategy': NodeAffinitySchedulingStrategy(context.get_node_id(), soft=True),
        }
        made = ray.remote(Coordinator).options(**options)
        return made.remote(str(directory.absolute()), self.lease_seconds, name)

    def _say_that_wait(self, workers: int) -> None:
        needs = f'{self.processes} × {dict(self.trial_resources)}'
        logging.warning(
            '%d of %d workers wait for room: each needs %s (%s). `ray status` shows the resources.',
            workers,
            self.count,
            needs,
            self.strategy,
        )


def _name(directory: Path, environment: str) -> str:
    """Returns the name of the coordinator of a directory, which is kept there.

    Another runtime environment has another name, and ends the coordinator of the last one.
    """
    file = directory / FOLDER / 'ray_coordinator'
    code = hashlib.sha256(environment.encode()).hexdigest()[:16]
    kept = tokens.read_private(file)
    if kept is not None and kept.endswith(code):
        return kept
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if kept is not None:
        _end_other(kept)
    name = f'coordinator-{secrets.token_hex(8)}-{code}'
    tokens.write_private(file, name)
    return name


def _end_other(name: str) -> None:
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(ValueError, RayError):  # It has ended.
        coordinator = ray.get_actor(name, NAMESPACE)
        logging.warning('The runtime environment has changed: workers save, and others begin.')
        ray.get(coordinator.end.remote())
        ray.kill(coordinator)


def _get(reply: Any) -> Any:
    """Returns the reply of the coordinator.

    Raises:
        UserError: the coordinator raised it.
        StudyStoppedError: the coordinator was lost for good.
    """
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return ray.get(reply)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except RayActorError as error:
        _, raised, message = str(error).rpartition(f'{UserError.__name__}: ')
        if raised:  # When Ray started it again.
            raise UserError(message.strip()) from None
        reason = str(error).splitlines()[0]
        raise StudyStoppedError(f'the coordinator was lost: {reason}') from error


def _end_idle(coordinator: Any) -> None:
    """Ends a coordinator without running workers. Workers that run keep it: the search goes on."""
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):
        if ray.get(coordinator.state.remote()).is_running:
            logging.warning('The workers on the cluster go on. The same command joins them.')
            return
        ray.get(coordinator.end.remote())
    with contextlib.suppress(RayError):
        ray.kill(coordinator)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray replaces if it starts a cluster."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)
