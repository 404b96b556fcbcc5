"""The engine of a search, where its caller names none or only a number of workers."""

import sys

from etils import epy

from paxtune.engines.base import Engine
from paxtune.engines.in_process import InProcess
from paxtune.running.workloads import FunctionWorkload, Workload
from trainer.command import say
from trainer.symbolic.errors import UserError

with epy.lazy_imports():  # They import JAX, and a study of a function has no use for it.
    from paxtune.engines import multi_host, remote, remote_multi_host, threads
    from paxtune.engines import workers as worker_engine
    from trainer.runtime import processes


def engine_for(
    workload: Workload, engine: Engine | None, workers: int | None, num_processes: int
) -> Engine:
    """Returns the engine that runs the trials of a workload.

    Args:
        workload: the work of the search.
        engine: the engine that is asked for; None for any.
        workers: the number of trials at a time, without an engine; None for one.
        num_processes: the number of processes that were started together.

    Raises:
        UserError: the workload cannot run so.
    """
    if workers is not None and engine is not None:
        raise UserError(f'workers={workers} and engine={engine!r}: give one of them')
    if workers is not None:
        engine = _parallel(workload, workers)
    elif num_processes > 1:
        engine = _together(engine)
    engine = engine or InProcess()
    if isinstance(workload, FunctionWorkload):
        engine.require_function(workload.runner())
    if workload.trains:
        _require_one_way(engine, num_processes)
    return engine


def _parallel(workload: Workload, workers: int) -> Engine:
    if not isinstance(workload, FunctionWorkload):
        return worker_engine.Workers(workers)
    if workers == 1:
        return InProcess()
    if (why := workload.why_not_in_workers()) is None:
        return worker_engine.Workers(workers)
    say(
        f'{workers} trials at a time in threads, where Python takes turns: {why.rstrip(".")}.',
        sys.stderr,
    )
    return threads.Threads(workers)


def _together(engine: Engine | None) -> Engine:
    if engine is None:
        return multi_host.MultiHost()
    if isinstance(engine, remote.Remote) and engine.workers.count == 1:
        return remote_multi_host.RemoteMultiHost(engine)
    return engine


def _require_one_way(engine: Engine, num_processes: int) -> None:
    # Processes that know nothing of each other would each run trials of its own.
    processes.require_joined()
    if isinstance(engine, threads.Threads):
        raise UserError('Threads run functions: use Workers for the trials of an experiment')
    if num_processes > 1 and not isinstance(engine, multi_host.MultiHost):
        raise UserError(
            '--workers runs trials apart, each in a process of its own; --coordinator runs each '
            'trial in all processes: choose one'
        )
