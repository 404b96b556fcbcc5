"""Flags that choose the engine of a search."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from paxtune.service import study_location
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.engines.base import Engine
    from paxtune.engines.supervised import WorkerConfig


def add_flags(flags: argparse.ArgumentParser) -> None:
    """Adds the flags to the command of a search."""
    flags.add_argument(
        '--workers', type=int, help='run trials in so many processes, which may die without harm'
    )
    flags.add_argument(
        '--worker_memory', type=float, metavar='GIB', help='what one of them may use of the memory'
    )
    if _CLUSTERS:
        names = ', '.join(_CLUSTERS)
        flags.add_argument('--engine', metavar='NAME', help=f'where workers run: {names}')
    study_location.add_flags(
        flags, 'join the study that a service keeps (python -m paxtune.serve), with --workers, or 1'
    )


def from_flags(args: argparse.Namespace, name: str) -> 'Engine | None':
    """Returns the engine that flags choose; None for trials in this process.

    Args:
        name: the study's name without --study.

    Raises:
        UserError: the flags do not fit together.
    """
    from paxtune.engines.remote import Remote
    from paxtune.engines.supervised import WorkerConfig
    from paxtune.engines.workers import Workers
    from trainer.symbolic import registry

    service = study_location.service_from_flags(args, name)
    engine = getattr(args, 'engine', None)
    if service is None and args.workers is None and engine is None:
        if args.worker_memory is not None:
            raise UserError('--worker_memory is what each of --workers may use: give both')
        return None
    modules = (registry.module_of(args.exp),)
    config = WorkerConfig(1 if args.workers is None else args.workers, args.worker_memory, modules)
    if engine is not None:
        if service is not None:
            raise UserError('--engine keeps the study itself: give no --vizier_endpoint')
        return _cluster(engine)(args, config)
    if service is None:
        return Workers(config.count, config.memory_gb, modules)
    return Remote(service, config)


def _cluster(name: str) -> 'Callable[[argparse.Namespace, WorkerConfig], Engine]':
    if name not in _CLUSTERS:
        raise UserError(f'--engine={name}: there is none. {nearest(name, list(_CLUSTERS))}')
    return _CLUSTERS[name]


_CLUSTERS: 'dict[str, Callable[[argparse.Namespace, WorkerConfig], Engine]]' = {}
"""Engines that start workers on a cluster, by name. Each reads its own flags."""
