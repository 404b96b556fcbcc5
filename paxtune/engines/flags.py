"""Flags that choose the engine of a search."""

import argparse
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from paxtune.service import study_location
from trainer import command
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.engines.base import Engine
    from paxtune.engines.supervised import WorkerConfig
    from paxtune.service.address import Service

_RAY_FLAGS = (
    ('ray_address', 'ADDRESS', 'the cluster: auto, or HOST:PORT'),
    ('trial_resources', 'JSON', 'what each process of a trial needs, such as \'{"GPU": 1}\''),
    ('trial_placement', 'STRATEGY', 'the nodes of these processes: STRICT_SPREAD, STRICT_PACK, …'),
    ('runtime_env', 'JSON', 'code and packages for the nodes, such as \'{"working_dir": "."}\''),
)


def add_flags(flags: argparse.ArgumentParser) -> None:
    """Adds the flags to the command of a search."""
    flags.add_argument(
        '--workers',
        type=int,
        help='processes that run trials, and may die without harm',
    )
    flags.add_argument(
        '--pack',
        metavar='K',
        help='train K trials at a time as one program; auto where that is faster, or off',
    )
    flags.add_argument(
        '--worker_memory', type=float, metavar='GIB', help='what one of them may use of the memory'
    )
    names = ', '.join(_CLUSTERS)
    flags.add_argument('--engine', metavar='NAME', help=f'where workers run: {names}')
    for name, metavar, text in _RAY_FLAGS:
        flags.add_argument(f'--{name}', metavar=metavar, help=f'{text}, with --engine=ray')
    command.add_list_flag(
        flags,
        '--slurm',
        'OPTION=VALUE',
        'options of sbatch for each worker, with --engine=slurm: partition=gpu gres=gpu:1 '
        'time=04:00:00',
    )
    flags.add_argument(
        '--trial_processes', type=int, metavar='N', help='processes that train a trial together'
    )
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
    service = study_location.service_from_flags(args, name)
    storage = study_location.storage_from_flags(args, name)
    engine = args.engine
    _require_engine(args)
    pack = _pack(args)
    if storage is not None:
        return _stored(storage, args)
    if service is None and args.workers is None and engine is None:
        if args.worker_memory is not None:
            raise UserError('--worker_memory is what each of --workers may use: give both')
        return None if pack is None else _packed(pack)
    # Imported here: a search in this process needs none of it.
    from paxtune.engines.remote import Remote
    from paxtune.engines.supervised import WorkerConfig
    from paxtune.engines.workers import Workers
    from trainer.symbolic import registry

    modules = (registry.module_of(args.exp),)
    count = 1 if args.workers is None else args.workers
    config = WorkerConfig(count, args.worker_memory, modules, pack=_pack_of_workers(pack))
    if engine is not None:
        if service is not None:
            raise UserError('--engine keeps the study itself: give no --vizier_endpoint')
        return _cluster(engine)(args, config)
    if service is None:
        return Workers(**vars(config))
    return Remote(service, config)


def _stored(storage: 'Service', args: argparse.Namespace) -> 'Engine':
    from paxtune.engines.vizier_storage import VizierStorage
    from trainer.runtime import processes

    apart = [f'--{name}' for name in ('workers', 'engine') if getattr(args, name) is not None]
    if processes.count() > 1:
        apart.append('--coordinator')
    if apart:
        raise UserError(
            f'{study_location.STORAGE_FLAG}={args.storage} {apart[0]}: trials run in the process '
            "of the search, since Vizier's API has no leases. For workers, have paxtune.serve keep "
            f'the study: {study_location.FLAG}'
        )
    return VizierStorage(storage)


def _pack(args: argparse.Namespace) -> "int | Literal['auto'] | None":
    """Returns the number of trials of --pack; None without it."""
    if args.pack in (None, 'off'):
        return None
    for name in ('storage', 'coordinator'):
        if getattr(args, name) is not None:
            raise UserError(
                f'--pack={args.pack} --{name}: its trials run in the process of the search, whose '
                'study is in its directory. Give one of both'
            )
    if args.pack == 'auto':
        return 'auto'
    if not args.pack.isdecimal() or int(args.pack) < 2:
        raise UserError(f'--pack={args.pack}: expected at least 2 trials, auto or off')
    return int(args.pack)


def _packed(pack: "int | Literal['auto']") -> 'Engine':
    from paxtune.engines.packed import Packed

    return Packed(pack)


def _pack_of_workers(pack: "int | Literal['auto'] | None") -> int:
    if pack == 'auto':
        raise UserError(
            '--pack=auto measures trials in the process of the search: give workers a number'
        )
    return pack or 1


def _require_engine(args: argparse.Namespace) -> None:
    of_ray = [name for name, *_ in _RAY_FLAGS if getattr(args, name) is not None]
    if of_ray and args.engine != 'ray':
        raise UserError(f'--{of_ray[0]} is for a Ray cluster: give --engine=ray')
    if args.slurm and args.engine != 'slurm':
        raise UserError('--slurm is for a SLURM cluster: give --engine=slurm')
    if args.trial_processes is not None and args.engine != 'ray':
        raise UserError(
            '--trial_processes is for --engine=ray. On SLURM, give --slurm nodes=2 '
            'ntasks-per-node=1; elsewhere, see --coordinator'
        )


def _cluster(name: str) -> 'Callable[[argparse.Namespace, WorkerConfig], Engine]':
    if name not in _CLUSTERS:
        raise UserError(f'--engine={name}: there is none. {nearest(name, list(_CLUSTERS))}')
    return _CLUSTERS[name]


def _ray(args: argparse.Namespace, config: 'WorkerConfig') -> 'Engine':
    from paxtune.engines.ray_cluster.engine import Ray

    given = {
        'address': args.ray_address,
        'trial_resources': _json_object(args.trial_resources, '--trial_resources'),
        'processes': args.trial_processes,
        'strategy': args.trial_placement,
        'runtime_env': _json_object(args.runtime_env, '--runtime_env'),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return Ray(**vars(config), **chosen)


def _slurm(args: argparse.Namespace, config: 'WorkerConfig') -> 'Engine':
    from paxtune.engines.slurm_cluster import options
    from paxtune.engines.slurm_cluster.engine import Slurm

    return Slurm(**vars(config), options=options.parse(args.slurm))


def _json_object(text: str | None, flag: str) -> 'dict[str, Any] | None':
    if text is None:
        return None
    with contextlib.suppress(json.JSONDecodeError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise UserError(f'{flag}={text}: expected a JSON object, such as {{"GPU": 1}}')


_CLUSTERS: 'dict[str, Callable[[argparse.Namespace, WorkerConfig], Engine]]' = {
    'ray': _ray,
    'slurm': _slurm,
}
"""Engines that start workers on a cluster, by name. Each reads its own flags."""
