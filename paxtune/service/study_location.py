"""Location of a study: a directory or a service."""

import abc
import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.service.address import Service
    from paxtune.study.store import StudyStore
    from paxtune.study.study import Study
    from trainer.runtime.directory import JobPath

FLAG, STORAGE_FLAG = '--vizier_endpoint', '--storage'

_SERVICE_FLAGS = ('study', 'token_file', 'tls', 'tls_ca')


class StudyLocation(abc.ABC):
    """Location of one study. Its text is for messages."""

    @property
    def directory(self) -> 'JobPath | None':
        """The directory of its trials; None if only its workers know it."""
        return None

    @abc.abstractmethod
    def store(self, can_write: bool = False) -> 'StudyStore':
        """Opens the study's store, which does not need the classes of the experiment.

        Raises:
            UserError: there is no such study.
        """

    def open(self, can_write: bool = False) -> 'Study':
        """Opens the study; raises UserError if it is missing, or its experiment is unknown."""
        from paxtune.storage.open_study import join_study

        return join_study(self.store(can_write), self.directory, not can_write)

    @abc.abstractmethod
    def locked(self, is_shared: bool = False) -> 'contextlib.AbstractContextManager[object]':
        """Excludes other writers, or unshared ones; UserError if a search is running."""

    @abc.abstractmethod
    def has_workers(self) -> bool:
        """Returns True if workers run its trials now."""


class DirectoryLocation(StudyLocation):
    """The --job_log_dir of a search."""

    def __init__(self, directory: str) -> None:
        self._given = directory

    def __str__(self) -> str:
        return self._given

    @property
    def directory(self) -> Path:
        """The directory of the study; raises UserError if there is none, and makes none."""
        return self._database().parent

    def store(self, can_write: bool = False) -> 'StudyStore':
        from paxtune.storage.database import Database
        from paxtune.storage.local_store import LocalStore

        return LocalStore(Database(self._database(), read_only=not can_write))

    def locked(self, is_shared: bool = False) -> 'contextlib.AbstractContextManager[object]':
        from trainer.runtime.directory import locked

        return locked(self.directory, is_shared)

    def has_workers(self) -> bool:
        try:
            with self.locked():
                return False
        except UserError:
            return True

    def _database(self) -> Path:
        from paxtune.storage.study_file import how_to_recover
        from paxtune.storage.vizier_store import database

        path = database(self._given)
        if not path.exists():
            raise UserError(
                f'There is no study in {path.parent}: {path.name} is missing'
                + (how_to_recover(path.parent) or f'. For one in a service: {FLAG}=… --study=NAME')
            )
        return path


class ServiceLocation(StudyLocation):
    """A study in a service, `python -m paxtune.serve`."""

    def __init__(self, service: 'Service', directory: 'JobPath | None' = None) -> None:
        """Calls nothing yet. `directory` has the trials, if it is known."""
        self._service, self._directory = service, directory

    @property
    def directory(self) -> 'JobPath | None':
        return self._directory

    def __str__(self) -> str:
        return f'{self._service.endpoint}/{self._service.study}'

    def store(self, can_write: bool = False) -> 'StudyStore':
        from paxtune.service.remote_store import RemoteStore

        service = self._service
        if '/' in service.study:
            raise UserError(
                f'--study={service.study}: a Vizier client created the study, so it has no '
                "experiment. Use Vizier's client to read and change it."
            )
        client = service.client()
        where = f'the service at {service.endpoint} has no such study'
        return _known(RemoteStore(client), client.connect, f'--study={service.study}: {where}')

    def others(self) -> 'list[StudyLocation]':
        """Lists all studies of the service."""
        from paxtune.service.schema import StudiesRequest

        service = self._service
        with contextlib.closing(service.client()) as client:
            client.connect()
            names = client.call(StudiesRequest()).names
        return [ServiceLocation(dataclasses.replace(service, study=name)) for name in names]

    def locked(self, is_shared: bool = False) -> 'contextlib.AbstractContextManager[object]':
        # Each change is one transaction of the service.
        return contextlib.nullcontext()

    def has_workers(self) -> bool:
        with contextlib.closing(self.store()) as store:
            return any(trial.holder for trial in store.trials())


class VizierLocation(ServiceLocation):
    """A study that a search keeps in a Vizier server; it is only read here."""

    def store(self, can_write: bool = False) -> 'StudyStore':
        from paxtune.service.vizier_server_store import VizierServerStore

        store, service = VizierServerStore(self._service), self._service
        where = f'the Vizier server at {service.endpoint} has no such study of paxtune'
        begin = store.refuse if can_write else store.connect
        return _known(store, begin, f'--study={service.study}: {where}')

    def others(self) -> 'list[StudyLocation]':
        from paxtune.service.vizier_client import VizierClient

        service = self._service
        with contextlib.closing(VizierClient(service)) as client:
            client.connect()
            names = [study.display_name for study in client.repeat(client.studies)]
        return [VizierLocation(dataclasses.replace(service, study=name)) for name in names]


def _known(store: 'StudyStore', begin: Callable[[], None], missing: str) -> 'StudyStore':
    """Returns a store after `begin`; closes it, and raises UserError, where it has no study."""
    with contextlib.ExitStack() as on_error:
        on_error.callback(store.close)
        begin()
        if store.study() is None:
            raise UserError(missing)
        on_error.pop_all()
    return store


@contextlib.contextmanager
def readable(where: object, directory: Path | None = None) -> Iterator[None]:
    """Raises UserError for errors of the store of a study.

    Args:
        where: the name of the study.
        directory: of a study that can be rebuilt where its database is damaged.
    """
    from paxtune.service.schema import RequestRejectedError
    from paxtune.storage.database import DatabaseUnavailableError
    from paxtune.storage.study_file import how_to_recover
    from paxtune.storage.vizier_store import BROKEN
    from paxtune.study.transitions import DetachedError

    try:
        yield
    except (DatabaseUnavailableError, DetachedError, RequestRejectedError, *BROKEN) as error:
        hint = how_to_recover(directory) if directory and isinstance(error, BROKEN) else ''
        reason = getattr(error, 'orig', error)
        raise UserError(f'{where}: the study cannot be read, or written: {reason}{hint}') from error


def add_flags(flags: argparse.ArgumentParser, purpose: str) -> None:
    """Adds the flags that select a study in a service; `purpose` is the help of the first."""
    flags.add_argument(FLAG, metavar='HOST:PORT', help=purpose)
    flags.add_argument(
        STORAGE_FLAG, metavar='vizier://HOST:PORT', help='Vizier server that stores the study'
    )
    flags.add_argument('--study', metavar='NAME', help='study in that server; default: as --exp')
    flags.add_argument('--token_file', metavar='FILE', help='token of the server; or PAXTUNE_TOKEN')
    flags.add_argument('--tls', action='store_true', help='connect with TLS')
    flags.add_argument('--tls_ca', metavar='FILE', help='TLS with this authority (PEM)')


def from_flags(args: argparse.Namespace, directory: str | None = None) -> StudyLocation:
    """Returns the location that flags select; raises UserError if they are invalid.

    Args:
        directory: of the trials; `args.dir`, which a study in a service has not, by default.
    """
    storage = storage_from_flags(args, args.exp)
    service = storage or service_from_flags(args, args.exp)
    if service is None:
        return DirectoryLocation(directory or args.dir)

    from trainer.runtime.directory import job_path

    trials = None if directory is None else job_path(directory)
    return (ServiceLocation if storage is None else VizierLocation)(service, trials)


def trial_number(text: str) -> int | str:
    """Type of flags for a trial of the study: its number, or best."""
    if text != 'best' and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'expected the number of a trial, or best, not {text}')
    return text if text == 'best' else int(text)


def is_apart(args: argparse.Namespace) -> bool:
    """Returns True if flags select a study in a service or a Vizier server."""
    return args.vizier_endpoint is not None or args.storage is not None


def service_from_flags(args: argparse.Namespace, name: str | None) -> 'Service | None':
    """Returns the service that flags select; None if they select none.

    Args:
        name: the study's name without --study.

    Raises:
        UserError: the flags are invalid.
    """
    if args.vizier_endpoint is not None:
        return _service(args, args.vizier_endpoint, f'{FLAG}={args.vizier_endpoint}', name)
    if args.storage is None and (named := [each for each in _SERVICE_FLAGS if getattr(args, each)]):
        raise UserError(f'--{named[0]} is for a service: give its address with {FLAG}')
    return None


def storage_from_flags(args: argparse.Namespace, name: str | None) -> 'Service | None':
    """Returns the Vizier server that --storage selects, as `service_from_flags`."""
    if args.storage is None:
        return None
    flag = f'{STORAGE_FLAG}={args.storage}'
    if args.vizier_endpoint is not None:
        raise UserError(f'{flag} and {FLAG}: give one of them')
    scheme, _, endpoint = args.storage.partition('://')
    if scheme != 'vizier':
        raise UserError(f'{flag}: expected vizier://HOST:PORT, such as vizier://tuner:28080')
    return _service(args, endpoint, flag, name)


def _service(args: argparse.Namespace, endpoint: str, flag: str, name: str | None) -> 'Service':
    from paxtune.service import tokens
    from paxtune.service.address import Service

    study = args.study or name
    if study is None:
        raise UserError(
            f'{flag}: select a study with --study=NAME. '
            f'`python -m paxtune.studies list {flag.partition("=")[0]}=…` shows them'
        )
    authority = Path(args.tls_ca) if args.tls_ca else None
    secret = tokens.secret(args.token_file)
    return Service(endpoint, study, secret, args.tls, authority)
