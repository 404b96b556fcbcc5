"""Message schema of the service: structs for the request and the reply of each method.

A message is a MessagePack map with exactly the fields of its struct. Trials and specifications of
studies are serialized protocol buffers of Vizier. Decoding executes nothing.
"""

import enum
import functools
import re
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

SERVICE = 'paxtune.v1.Studies'
"""The gRPC service of the methods."""

REJECTED = 'paxtune-rejected'
"""Key of the trailing metadata with the code of a `RequestRejectedError`."""

MAX_BYTES = 64 * 2**20
"""Size limit of a message."""

MAX_ITEMS = 50_000
"""Size limit of a list or a map in a message."""

_STUDY = r'\A(?=.*[^.])[A-Za-z0-9._-]{1,200}\Z'
# No control characters, line separators, invisible characters or changes of direction.
_PRINTABLE = r'\A[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*\Z'

Name: TypeAlias = Annotated[str, Meta(max_length=200, pattern=_PRINTABLE)]
"""A short text on one line, which is safe in logs: a worker, a hash."""

RequestId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PRINTABLE)]
"""Identifies a call that a client repeats; the client draws one if it is ''."""

TrialId: TypeAlias = Annotated[int, Meta(gt=0, lt=2**31)]
"""The number of a trial."""

Reason: TypeAlias = Annotated[str, Meta(max_length=100_000)]
"""A text for people."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A number of attempts, steps or revisions."""

Serialized: TypeAlias = Annotated[list[bytes], Meta(max_length=MAX_ITEMS)]
"""Serialized trials."""

TrialIds: TypeAlias = Annotated[list[TrialId], Meta(max_length=MAX_ITEMS)]
Names: TypeAlias = Annotated[list[Name], Meta(max_length=MAX_ITEMS)]


class RequestRejectedError(Exception):
    """The service rejects a request, and has changed nothing.

    Attributes:
        code: 'fenced', the caller does not own the trial; 'missing', there is no such thing;
            'conflict', another caller was faster; 'invalid', the request is invalid.
        message: explains the code.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class MalformedError(ValueError):
    """A message that does not fit the schema."""


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request or a reply."""


Reply = TypeVar('Reply', bound=Message)


class Request(Message, Generic[Reply], kw_only=True):
    """A request. The client sets the study."""

    study: Annotated[str, Meta(pattern=_STUDY)] = ''


class Write(Request[Reply], Generic[Reply], kw_only=True):
    """A request that the service executes once, even if the client repeats it."""

    request_id: RequestId = ''


class WorkerOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Limits of a worker's trials.

    Attributes:
        trial_timeout: seconds that a step may take; 0 for no limit.
        max_attempts: attempts that a trial may have.
    """

    trial_timeout: Annotated[float, Meta(ge=0.0)]
    max_attempts: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class EmptyReply(Message):
    """Confirms that a request was executed."""


class DoneReply(Message):
    """Says if a request has changed anything."""

    done: bool


class StudiesReply(Message):
    names: Names


class StudiesRequest(Request[StudiesReply]):
    """Lists all studies of the service."""


class TrialsReply(Message):
    trials: Serialized


class StudyReply(Message):
    lease_seconds: Annotated[float, Meta(ge=0.0)]
    spec: bytes | None
    version: Name
    created: Annotated[float, Meta(ge=0.0)] | None


class StudyRequest(Request[StudyReply]):
    known: Name


class CreateStudyRequest(Request[DoneReply]):
    spec: bytes


class UpdateStudyRequest(Write[DoneReply]):
    """Changes requests and notes of a study."""

    expected: Name
    spec: bytes


class RedefineStudyRequest(UpdateStudyRequest):
    """Changes budgets of a study, too."""


class DeleteStudyRequest(Request[EmptyReply]):
    """Deletes a study that no worker runs."""


class ChangesReply(Message):
    generation: Name
    revision: Count
    reset: bool
    more: bool
    deleted: TrialIds
    trials: Serialized


class ChangesRequest(Request[ChangesReply]):
    generation: Name
    since: Count


class AddRequest(Write[TrialsReply]):
    trials: Serialized
    suggest_lock: Name
    worker: Name
    after: Count | None = None


class UpdateReply(Message):
    done: bool
    trial: bytes


class UpdateRequest(Write[UpdateReply]):
    id: TrialId
    expected: Name
    trial: bytes
    worker: Name
    attempt: Count


class DeleteRequest(Request[EmptyReply]):
    id: TrialId
    created: Name = ''


class ClaimReply(Message):
    trial: bytes | None


class ClaimRequest(Request[ClaimReply]):
    worker: Name
    options: WorkerOptions | None


class SuggestLockReply(Message):
    suggest_lock: Name


class AcquireSuggestLockRequest(Request[SuggestLockReply]):
    worker: Name


class ReleaseSuggestLockRequest(Request[EmptyReply]):
    suggest_lock: Name


class HeartbeatReply(Message):
    held: bool
    reason: str


class HeartbeatRequest(Request[HeartbeatReply]):
    worker: Name
    id: TrialId
    attempt: Count
    progress: Count
    options: WorkerOptions | None


class LoseReply(Message):
    trial: TrialId | None
    state: Name


class LoseRequest(Request[LoseReply]):
    worker: Name
    reason: Reason
    counts: bool
    is_dead: bool
    max_attempts: Count


class RevokedReply(Message):
    workers: Names


class RevokedRequest(Request[RevokedReply]):
    workers: Names


class Role(enum.IntEnum):
    """The rights of a caller. Each role includes the rights of all lower roles."""

    READ = 1
    WORK = 2
    ADMIN = 3


class Method(NamedTuple):
    """A method of the service and of `StudyCoordinator`: its messages, and the role it needs."""

    request: type[Request[Any]]
    reply: type[Any]
    role: Role


METHODS = {
    'studies': Method(StudiesRequest, StudiesReply, Role.READ),
    'study': Method(StudyRequest, StudyReply, Role.READ),
    'create_study': Method(CreateStudyRequest, DoneReply, Role.ADMIN),
    'update_study': Method(UpdateStudyRequest, DoneReply, Role.WORK),
    'redefine_study': Method(RedefineStudyRequest, DoneReply, Role.ADMIN),
    'delete_study': Method(DeleteStudyRequest, EmptyReply, Role.ADMIN),
    'changes': Method(ChangesRequest, ChangesReply, Role.READ),
    'add': Method(AddRequest, TrialsReply, Role.WORK),
    'update': Method(UpdateRequest, UpdateReply, Role.WORK),
    'delete': Method(DeleteRequest, EmptyReply, Role.ADMIN),
    'claim': Method(ClaimRequest, ClaimReply, Role.WORK),
    'acquire_suggest_lock': Method(AcquireSuggestLockRequest, SuggestLockReply, Role.WORK),
    'release_suggest_lock': Method(ReleaseSuggestLockRequest, EmptyReply, Role.WORK),
    'heartbeat': Method(HeartbeatRequest, HeartbeatReply, Role.WORK),
    'lose': Method(LoseRequest, LoseReply, Role.WORK),
    'revoked': Method(RevokedRequest, RevokedReply, Role.WORK),
}
"""The methods of the service."""

NAMES = {method.request: name for name, method in METHODS.items()}
"""The method of each kind of request."""


def path(method: str) -> str:
    """Returns gRPC's name of a method.

    Example:
        >>> path('claim')
        '/paxtune.v1.Studies/claim'
    """
    return f'/{SERVICE}/{method}'


def encode(message: Message) -> bytes:
    r"""Serializes a request or a reply.

    Raises:
        MalformedError: a text cannot be encoded.

    Example:
        >>> encode(ReleaseSuggestLockRequest(study='mine', suggest_lock=''))
        b'\x82\xacsuggest_lock\xa0\xa5study\xa4mine'
    """
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError as error:
        raise MalformedError(f'the text cannot be encoded: {error.reason}') from error


_M = TypeVar('_M', bound=Message)


def decode(kind: type[_M], data: bytes) -> _M:
    """Parses and validates a request or a reply.

    Raises:
        MalformedError: the bytes do not fit the schema.

    Example:
        >>> decode(DeleteRequest, encode(DeleteRequest(study='mine', id=3))).id
        3
    """
    try:
        message: _M = _decoder(kind).decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedError(ascii(str(error)[:200])[1:-1]) from error
    # The decoder accepts a repeated field, and a request without its study.
    fields = kind.__struct_fields__
    if data[0] != 0x80 | len(fields):
        raise MalformedError(f'expected each field once: {", ".join(fields)}')
    return message


@functools.cache
def _decoder(kind: type[Any]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def check_study(name: str) -> str:
    """Validates the name of a study, which is safe in file names, labels and logs.

    Raises:
        MalformedError: the name is invalid.

    Example:
        >>> check_study('lm.StdlibTunable-2')
        'lm.StdlibTunable-2'
        >>> check_study('../other')
        Traceback (most recent call last):
        paxtune.service.schema.MalformedError: study: expected 1 to 200 of A-Z a-z 0-9 . _ -, ...
    """
    if not re.search(_STUDY, name):
        raise MalformedError(
            'study: expected 1 to 200 of A-Z a-z 0-9 . _ -, and not only dots; '
            f'not {shortened(name)}'
        )
    return name


def shortened(text: str) -> str:
    """Quotes an untrusted text for a message or a log.

    Example:
        >>> shortened('two\\nlines')
        "'two\\\\nlines'"
    """
    return ascii(text if len(text) <= 60 else f'{text[:60]}…')
