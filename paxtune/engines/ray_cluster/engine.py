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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from absl import logging

from paxtune.engines.base import Engine, Job
from paxtune.engines.network_service import FOLDER
from paxtune.engines.ray_cluster.worker_group import NAMESPACE, State, WorkerGroup
from paxtune.engines.remote import Remote
from paxtune.engines.supervised import (
    WorkerConfig,
    directory_or_temporary,
    require_one_process,
    watched,
)
from paxtune.running.runner import Runner
from paxtune.running.supervisor import modules_of
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import take_up
from paxtune.service import tokens
from paxtune.service.leases import LEASE_SECONDS
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.study_file import DATABASE
from paxtune.study.plan import SearchPlan
from paxtune.study.study import Study
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError, nearest

STRATEGIES = ('PACK', 'SPREAD', 'STRICT_PACK', 'STRICT_SPREAD')

_LOOK_SECONDS = 0.5
_RAY_COPIES = 'runtime_resources'


@dataclasses.dataclass(frozen=True)
class Ray(WorkerConfig, Engine):
    """Runs the trials in workers on a Ray cluster. Any of them, or their nodes, may die.

    The study and its workers belong to a coordinator, an actor on the node of this process. If
    this process dies, the search goes on, and the same call joins it again. A trial that a node has
    lost continues from its checkpoint where the nodes share the directory; elsewhere it starts
    again.

    Attributes:
        address: of the cluster, as for `ray.init`; None for that of `RAY_ADDRESS`, or one that
            runs on this machine, or else a new one. Not used where Ray is connected already.
        trial_resources: of each process of a trial, by the names of Ray.
        processes: the number of processes that train a trial together.
        strategy: Ray's placement strategy of these processes.
        runtime_env: Ray's runtime environment, such as `{'working_dir': '.'}`: what nodes need of
            code and packages. That of the job by default. Where it has changed, the next call
            ends the workers, and begins others.
        lease_seconds: the time that a worker may pass without a heartbeat.
    """

    has_workers, may_correct = True, False

    address: str | None = None
    trial_resources: Mapping[str, float] = dataclasses.field(default_factory=lambda: {'CPU': 1})
    processes: int = 1
    strategy: str = 'STRICT_SPREAD'
    runtime_env: Mapping[str, Any] | None = None
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes < 1:
            raise UserError(f'--trial_processes={self.processes}: expected at least 1')
        if self.pack > 1:
            require_one_process(self.processes)
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

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        found = super().directory(directory_or_temporary(given))
        if found is not None and _RAY_COPIES in Path(found).absolute().parts:
            raise UserError(
                f'--job_log_dir={found}: it lies in a copy of --working-dir, which Ray deletes '
                'after the job. Give an absolute path'
            )
        return found

    def require_function(self, runner: Runner) -> None:
        if self.processes > 1:
            raise UserError('several processes train experiments; a function runs in one process')
        super().require_function(runner)

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[JobPath]
    ) -> tuple[Study, AbstractContextManager[object]]:
        assert isinstance(directory, Path)
        modules_of(plan.space.value)  # Before anything starts.
        self._connect()
        coordinator = self._coordinator(directory)
        with contextlib.ExitStack() as on_error:
            on_error.callback(_end_idle, coordinator)
            remote = Remote(_get(coordinator.serve.remote()))
            study, _ = remote.open(directory, plan, prior_studies)
            on_error.pop_all()
        return study, _left_to(study, coordinator)

    def run(self, job: Job) -> None:
        study = job.study
        assert isinstance(study.directory, Path)
        take_up(study)
        coordinator = self._coordinator(study.directory)
        _get(coordinator.start.remote(self._worker_group(job)))

        def run(look: Callable[[], None]) -> None:
            is_leaving, waiting = False, 0
            while (state := _state(coordinator)).running:
                if not is_leaving and job.should_interrupt():
                    coordinator.leave.remote()
                    is_leaving = True
                if state.waiting > waiting:
                    self._say_that_wait(state.waiting)
                waiting = state.waiting
                look()
                time.sleep(_LOOK_SECONDS)
            state.error.require_success()

        try:
            watched(job, run)
        except KeyboardInterrupt:
            _get(coordinator.leave.remote())
            while _state(coordinator).running:
                time.sleep(_LOOK_SECONDS)
            raise

    def _connect(self) -> None:
        try:
            ray = importlib.import_module('ray')
        except ImportError as error:
            raise UserError(
                "--engine=ray: Ray is not installed: pip install 'paxtune[ray]'"
            ) from error
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
            '%d of %d workers wait for room: each needs %s (%s). `ray status` shows what there is.',
            workers,
            self.count,
            needs,
            self.strategy,
        )

    def _worker_group(self, job: Job) -> WorkerGroup:
        study = job.study
        assert isinstance(study.directory, Path)
        return WorkerGroup(
            self.count,
            self.processes,
            dict(self.trial_resources),
            self.strategy,
            str(study.directory.absolute()),
            self.imports(study),
            self.flags(job),
            self.memory_bytes,
            study.search.faults.max_attempts,
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


def _state(coordinator: Any) -> State:
    state: State = _get(coordinator.state.remote())
    return state


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


@contextlib.contextmanager
def _left_to(study: Study, coordinator: Any) -> Iterator[None]:
    """Ends the coordinator when the search is left, and reads the study from its directory.

    Workers that run keep it: the search goes on.
    """
    try:
        yield
    finally:
        if _end_idle(coordinator):
            assert study.directory is not None
            study.store.close()
            study.store = LocalStore(Database(Path(study.directory) / DATABASE))


def _end_idle(coordinator: Any) -> bool:
    """Ends a coordinator without running workers; returns False where it has some."""
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(RayError):
        if ray.get(coordinator.state.remote()).running:
            logging.warning('The workers on the cluster go on. The same command joins them.')
            return False
        ray.get(coordinator.end.remote())
    with contextlib.suppress(RayError):
        ray.kill(coordinator)
    return True


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps what this process does on SIGTERM, which Ray replaces where it starts a cluster."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)
