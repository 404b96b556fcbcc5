"""Where a study is that a command is about: in a directory, or in the hands of a service."""

import abc
import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.service.address import Service
    from paxtune.study.study import Study, StudyStore
    from trainer.runtime.directory import JobPath

FLAG = '--vizier_endpoint'

_ABOUT_A_SERVICE = ('study', 'token_file', 'tls', 'tls_ca')


class Whereabouts(abc.ABC):
    """Where one study is kept. As text, for people."""

    @property
    def directory(self) -> 'JobPath | None':
        """Where its trials write; None where only its workers know."""
        return None

    @abc.abstractmethod
    def store(self, can_write: bool = False) -> 'StudyStore':
        """Opens what the study is kept in, which works without the classes of its experiment.

        Raises:
            UserError: there is no such study.
        """

    def open(self, can_write: bool = False) -> 'Study':
        """Opens the study.

        Raises:
            UserError: there is no such study, or its experiment cannot be rebuilt.
        """
        from paxtune.study.study import Study

        return Study.join(self.store(can_write), self.directory)

    @abc.abstractmethod
    def held(self) -> 'contextlib.AbstractContextManager[object]':
        """Entered, it keeps out whoever would come between what is read there and what is written.

        Raises:
            UserError: a search works there.
        """

    @abc.abstractmethod
    def is_worked_on(self) -> bool:
        """Whether somebody runs its trials now."""


class InDirectory(Whereabouts):
    """In the --job_log_dir of a search."""

    def __init__(self, directory: str) -> None:
        """Looks nowhere yet."""
        self._given = directory

    def __str__(self) -> str:
        return self._given

    @property
    def directory(self) -> Path:
        """Where the study is, and its trials write.

        Raises:
            UserError: there is no study: nothing is made there.
        """
        return self._database().parent

    def store(self, can_write: bool = False) -> 'StudyStore':
        from paxtune.storage.database import Database
        from paxtune.storage.local_store import LocalStore

        return LocalStore(Database(self._database(), read_only=not can_write))

    def held(self) -> 'contextlib.AbstractContextManager[object]':
        from trainer.runtime.directory import locked

        return locked(self.directory)

    def is_worked_on(self) -> bool:
        try:
            with self.held():
                return False
        except UserError:
            return True

    def _database(self) -> Path:
        from paxtune.storage.vizier_store import database

        path = database(self._given)
        if not path.exists():
            raise UserError(
                f'There is no study in {path.parent}: {path.name} is missing. '
                f'Where a service keeps it: {FLAG}=HOST:PORT --study=NAME'
            )
        return path


class InService(Whereabouts):
    """With `python -m paxtune.serve`, which many workers work with at once."""

    def __init__(self, service: 'Service', directory: 'JobPath | None' = None) -> None:
        """Calls nobody yet.

        Args:
            service: that keeps it.
            directory: where its trials write, if that is known.
        """
        self._service, self._directory = service, directory

    @property
    def directory(self) -> 'JobPath | None':
        return self._directory

    def __str__(self) -> str:
        return f'{self._service.endpoint}/{self._service.study}'

    def store(self, can_write: bool = False) -> 'StudyStore':
        from paxtune.service.remote_store import RemoteStore

        service = self._service
        client = service.client()
        with contextlib.ExitStack() as on_error:
            on_error.callback(client.close)
            client.connect()
            store = RemoteStore(client)
            if store.study() is None:
                raise UserError(
                    f'--study={service.study}: the service at {service.endpoint} has no such study'
                )
            on_error.pop_all()
        return store

    def held(self) -> 'contextlib.AbstractContextManager[object]':
        # Each change is one transaction of the service, whoever else works with it.
        return contextlib.nullcontext()

    def is_worked_on(self) -> bool:
        from paxtune.study import trial_state

        with contextlib.closing(self.store()) as store:
            return any(trial_state.holder(trial) for trial in store.trials())


def add_flags(flags: argparse.ArgumentParser, told: str) -> None:
    """Adds the flags that say which service keeps a study.

    Args:
        flags: of a command.
        told: what it does with the service.
    """
    flags.add_argument(FLAG, metavar='HOST:PORT', help=told)
    flags.add_argument('--study', metavar='NAME', help='its name there; that of --exp by default')
    flags.add_argument(
        '--token_file', metavar='FILE', help='its token; PAXTUNE_TOKEN in the environment does, too'
    )
    flags.add_argument('--tls', action='store_true', help='speak TLS with the service')
    flags.add_argument('--tls_ca', metavar='FILE', help='the same, and trust this authority, PEM')


def given(args: argparse.Namespace) -> Whereabouts:
    """Where the study is that flags name.

    Args:
        args: `dir`, or what `add_flags` has added; `exp`.

    Raises:
        UserError: they make no sense.
    """
    service = service_of(args, args.exp)
    return InDirectory(args.dir) if service is None else InService(service)


def service_of(args: argparse.Namespace, name: str | None) -> 'Service | None':
    """The service that flags name; None where they name none.

    Args:
        args: what `add_flags` has added.
        name: that of the study where --study is not given.

    Raises:
        UserError: they make no sense.
    """
    if args.vizier_endpoint is None:
        if named := [name for name in _ABOUT_A_SERVICE if getattr(args, name)]:
            raise UserError(f'--{named[0]} is for a service: say where it is, {FLAG}')
        return None

    from paxtune.service import auth
    from paxtune.service.address import Service

    study = args.study or name
    if study is None:
        raise UserError(
            f'{FLAG}={args.vizier_endpoint}: say which of its studies, --study=NAME: a service '
            'does not list them'
        )
    authority = Path(args.tls_ca) if args.tls_ca else None
    secret = auth.token(args.token_file)
    return Service(args.vizier_endpoint, study, secret, args.tls, authority)
