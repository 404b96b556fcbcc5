"""Flags that choose the engine of a search.

`FLAGS` declares them. The parser, the checks and the table of docs/distributed.md come from it.
"""

import argparse
import contextlib
import json
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from paxtune.engines.slurm_cluster import options
from paxtune.service import study_location
from trainer import command
from trainer.symbolic.errors import UserError, nearest

if TYPE_CHECKING:
    from paxtune.engines.base import Engine
    from paxtune.engines.supervised import WorkerConfig
    from paxtune.service.address import Service

CLUSTERS = {
    'ray': 'paxtune.engines.ray_cluster.engine:Ray',
    'slurm': 'paxtune.engines.slurm_cluster.engine:Slurm',
}
"""The classes of engines that start workers on a cluster, by the name of --engine."""


class Flag(NamedTuple):
    """A flag of engines.

    Attributes:
        name: without dashes.
        metavar: the placeholder of its value.
        text: the help.
        read: makes the value of a text; `options.parse`, of a list of texts.
        engine: the only --engine that takes the flag; '' for all.
        field: the field of that engine.
    """

    name: str
    metavar: str
    text: str
    read: Callable[[Any], Any] = str
    engine: str = ''
    field: str = ''

    def is_given(self, args: argparse.Namespace) -> bool:
        """Returns True if the flag has a value."""
        return getattr(args, self.name) not in (None, [])


def _json_object(text: str) -> dict[str, Any]:
    with contextlib.suppress(json.JSONDecodeError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise ValueError('expected a JSON object, such as {"GPU": 1}')


_NEEDS = 'resources of each process of a trial, such as \'{"GPU": 1}\''
_NODES = 'placement of these processes on nodes: STRICT_SPREAD, STRICT_PACK, …'
_CODE = 'code and packages for the nodes, such as \'{"working_dir": "."}\''
_SBATCH = 'options of sbatch for each worker: partition=gpu gres=gpu:1 nodes=2 time=04:00:00'

FLAGS = (
    Flag('workers', 'N', 'worker processes; if one dies, its trial continues in another', int),
    Flag(
        'pack',
        'K',
        'train K trials together as one program; auto measures whether that is faster; or off',
    ),
    Flag('worker_memory', 'GIB', 'main memory that a worker may use', float),
    Flag('engine', 'NAME', f'cluster that runs the workers: {", ".join(CLUSTERS)}'),
    Flag('ray_address', 'ADDRESS', 'Ray cluster: auto, or HOST:PORT', str, 'ray', 'address'),
    Flag('trial_resources', 'JSON', _NEEDS, _json_object, 'ray', 'trial_resources'),
    Flag('trial_placement', 'STRATEGY', _NODES, str, 'ray', 'strategy'),
    Flag('trial_processes', 'N', 'processes that train a trial together', int, 'ray', 'processes'),
    Flag('runtime_env', 'JSON', _CODE, _json_object, 'ray', 'runtime_env'),
    Flag('slurm', 'OPTION=VALUE', _SBATCH, options.parse, 'slurm', 'options'),
)


def add_flags(flags: argparse.ArgumentParser) -> None:
    """Adds the flags to the command of a search."""
    for flag in FLAGS:
        name, text = f'--{flag.name}', flag.text
        if flag.engine:
            text += f', with --engine={flag.engine}'
        if flag.read is options.parse:
            command.add_list_flag(flags, name, flag.metavar, text)
        else:
            kind = flag.read if isinstance(flag.read, type) else str
            flags.add_argument(name, type=kind, metavar=flag.metavar, help=text)
    study_location.add_flags(
        flags, 'run trials of a study in a service (python -m paxtune.serve); one worker by default'
    )


def table() -> str:
    """Renders the flags as the table of docs/distributed.md."""
    rows = [f'| `--{flag.name}` | {flag.engine} | {flag.text} |' for flag in FLAGS]
    return '\n'.join(['| Flag | Needs `--engine=` | Meaning |', '| --- | --- | --- |', *rows])


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
            raise UserError('--worker_memory limits each of --workers: give both')
        if pack is None:
            return None
        from paxtune.engines.packed import Packed

        return Packed(pack)
    # Imported here: a search in this process needs none of it.
    from paxtune.engines.remote import Remote
    from paxtune.engines.supervised import WorkerConfig
    from paxtune.engines.workers import Workers
    from trainer.symbolic import registry

    modules = (registry.module_of(args.exp),)
    count = 1 if args.workers is None else args.workers
    if pack == 'auto':
        raise UserError(
            '--pack=auto measures trials in the process of the search: give workers a number'
        )
    config = WorkerConfig(count, args.worker_memory, modules, pack=pack or 1)
    if engine is not None:
        if service is not None:
            raise UserError('--engine keeps the study itself: give no --vizier_endpoint')
        return _cluster(args, config)
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


def _require_engine(args: argparse.Namespace) -> None:
    for name in ('workers', 'trial_processes', 'worker_memory'):
        given = getattr(args, name)
        if given is not None and not given > 0:
            raise UserError(f'--{name}={given}: expected a number above 0')
    for flag in FLAGS:
        if flag.engine and flag.engine != args.engine and flag.is_given(args):
            raise UserError(f'--{flag.name} needs --engine={flag.engine}')


def _cluster(args: argparse.Namespace, config: 'WorkerConfig') -> 'Engine':
    if args.engine not in CLUSTERS:
        raise UserError(
            f'--engine={args.engine}: there is none. {nearest(args.engine, list(CLUSTERS))}'
        )
    fields = {}
    for flag in FLAGS:
        if flag.engine == args.engine and flag.is_given(args):
            given = getattr(args, flag.name)
            try:
                fields[flag.field] = given if isinstance(flag.read, type) else flag.read(given)
            except ValueError as error:
                raise UserError(f'--{flag.name}={given}: {error}') from None
    made: Engine = pkgutil.resolve_name(CLUSTERS[args.engine])(**vars(config), **fields)
    return made
