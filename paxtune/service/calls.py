"""Answers calls, from bytes to bytes: authenticates, decodes, calls the coordinator, encodes."""

import logging
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
import msgspec

from paxtune.service import monitoring, schema
from paxtune.service.bounded_log import BoundedLog
from paxtune.service.tokens import Token, matching
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.vizier_service import service as vizier
from paxtune.vizier_service.errors import VizierError
from trainer.symbolic.errors import is_disk_full

_LOG = logging.getLogger(__name__)

_CODES = {
    'fenced': grpc.StatusCode.FAILED_PRECONDITION,
    'missing': grpc.StatusCode.NOT_FOUND,
    'conflict': grpc.StatusCode.ABORTED,
    'invalid': grpc.StatusCode.INVALID_ARGUMENT,
}

_LEVELS = {
    grpc.StatusCode.INTERNAL: logging.ERROR,
    # Races between workers.
    grpc.StatusCode.ABORTED: logging.DEBUG,
    grpc.StatusCode.NOT_FOUND: logging.DEBUG,
}

_VIZIER = f'{vizier.SERVICE}/'

Metadata = Iterable[tuple[str, str | bytes]]


class CallError(Exception):
    """A call that fails.

    Attributes:
        code: of gRPC.
        rejection: the code of a `RequestRejectedError`; '' for other failures.
    """

    def __init__(self, code: grpc.StatusCode, message: str, rejection: str = '') -> None:
        super().__init__(message)
        self.code, self.rejection = code, rejection


class Calls:
    """Answers calls to the methods of `schema.METHODS`, and of Vizier if they are served.

    Thread-safe; knows no connection.
    """

    def __init__(
        self,
        registry: Callable[[str], Any],
        tokens: Sequence[Token] = (),
        metrics: monitoring.Metrics | None = None,
        vizier_service: vizier.VizierService | None = None,
    ) -> None:
        """Prepares to answer.

        Args:
            registry: returns the coordinator of a study, which has the methods of `schema.METHODS`.
            tokens: rights of callers; every caller may do everything if there are none.
            vizier_service: answers calls of Vizier's clients, which are unknown methods without it.
        """
        self._registry, self._tokens, self._vizier = registry, tokens, vizier_service
        self._metrics = metrics or monitoring.Metrics()
        self.log = BoundedLog(_LOG)

    def check(self, path: str, metadata: Metadata) -> list[Token]:
        """Returns the caller's rights, before its request is read.

        Raises:
            CallError: the caller has no valid token, no right to the method, or there is none.
        """
        values = [value for key, value in metadata if key == 'authorization']
        granted = matching(values, self._tokens) if self._tokens else [Token('')]
        if not granted:
            what = 'a wrong token' if values else 'no token'
            raise CallError(grpc.StatusCode.UNAUTHENTICATED, what)
        name, role = _name(path), self._role(path)
        if role is None:
            what = f'there is no method {schema.shortened(path)}'
            raise CallError(grpc.StatusCode.UNIMPLEMENTED, what)
        if not (able := [each for each in granted if each.role >= role]):
            own = max(each.role for each in granted).name.lower()
            raise _denied(f'{name} needs the role {role.name.lower()}, and the token has {own}')
        return able

    def _role(self, path: str) -> schema.Role | None:
        """Returns the role that a method needs; None if there is no such method."""
        if (name := _name(path)) in schema.METHODS:
            return schema.METHODS[name].role
        method = vizier.METHODS.get(name.removeprefix(_VIZIER))
        is_served = self._vizier is not None and is_of_vizier(path) and method is not None
        return schema.Role[method.role] if method is not None and is_served else None

    def answer(self, path: str, metadata: Metadata, data: bytes, peer: str = '') -> bytes:
        """Executes a request, and returns the reply; raises CallError."""
        began = time.perf_counter()
        try:
            reply = self._reply(path, self.check(path, metadata), data)
        except Exception as error:
            raise self.failed(path, peer, error, began) from error
        self._count(path, grpc.StatusCode.OK, began)
        return reply

    def failed(self, path: str, peer: str, error: Exception, began: float) -> CallError:
        """Logs and counts a call that has failed. Returns the error for the caller."""
        status = _status(error)
        name = _name(path)
        what = f'{schema.shortened(name)} of {peer}: {status.code.name}: {error}'
        trace = error if status.code is grpc.StatusCode.INTERNAL else None
        self.log.write(status.code, _LEVELS.get(status.code, logging.WARNING), what, trace)
        self._count(path, status.code, began)
        return status

    def _reply(self, path: str, rights: Sequence[Token], data: bytes) -> bytes:
        name = _name(path)
        prefixes = tuple(each.prefix for each in rights)
        if self._vizier is not None and is_of_vizier(path):
            may_use = operator.methodcaller('startswith', prefixes)
            return self._vizier.answer(name.removeprefix(_VIZIER), data, may_use)
        request = schema.decode(schema.METHODS[name].request, data)
        fields = msgspec.structs.asdict(request)
        study = fields.pop('study')
        if name == 'studies':
            names = self._registry(study).studies().names
            return schema.encode(
                schema.StudiesReply(names=[each for each in names if each.startswith(prefixes)])
            )
        if not study.startswith(prefixes):
            wanted = ' or '.join(f'{each}…' for each in prefixes)
            raise _denied(f'the token is for studies named {wanted}, not for {study}')
        return schema.encode(getattr(self._registry(study), name)(**fields))

    def _count(self, path: str, code: grpc.StatusCode, began: float) -> None:
        known = 'unknown' if self._role(path) is None else _name(path)
        self._metrics.count(known, code.name, time.perf_counter() - began)


def is_of_vizier(path: str) -> bool:
    """Returns True for the gRPC name of a method of Vizier's service.

    Example:
        >>> is_of_vizier('/vizier.VizierService/GetStudy')
        True
    """
    return path.startswith(f'/{_VIZIER}')


def _name(path: str) -> str:
    """Names a method: `claim`, or `vizier.VizierService/GetStudy`."""
    return path[1:] if is_of_vizier(path) else path.removeprefix(f'/{schema.SERVICE}/')


def _denied(message: str) -> CallError:
    return CallError(grpc.StatusCode.PERMISSION_DENIED, message)


def _status(error: Exception) -> CallError:
    """Returns the error that a caller sees."""
    match error:
        case CallError():
            return error
        case VizierError():
            return CallError(error.code, str(error))
        case schema.MalformedError():
            return CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error), 'invalid')
        case schema.RequestRejectedError():
            return CallError(_CODES[error.code], str(error), error.code)
        case DatabaseUnavailableError():
            full = ': the disk is full' if is_disk_full(error) else ''
            return CallError(grpc.StatusCode.UNAVAILABLE, f'the database is unavailable{full}')
    # The message of an unexpected error may contain secrets.
    return CallError(grpc.StatusCode.INTERNAL, type(error).__name__)
