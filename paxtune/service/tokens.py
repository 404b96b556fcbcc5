"""Tokens: the rights of clients to the studies of a service."""

import hmac
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paxtune.service.schema import Role
from trainer.runtime.home import expanded
from trainer.symbolic.errors import UserError

VARIABLE = 'PAXTUNE_TOKEN'
"""Environment variable with the token, used without --token_file."""

_TOKEN = re.compile(
    r'(?P<secret>[!-~]{16,})(\s+(?P<role>read|work|admin)(\s+(?P<prefix>[A-Za-z0-9._-]+(/[A-Za-z0-9._-]*)?))?)?'
)


class Token(NamedTuple):
    """The rights of who has a secret: a role in the studies whose names have a prefix."""

    secret: str
    role: Role = Role.ADMIN
    prefix: str = ''


def parse(text: str, where: str) -> tuple[Token, ...]:
    """Parses lines of a token, its role (admin by default) and the prefix of its studies.

    Raises:
        UserError: a line is invalid, or there is none.

    Example:
        >>> parse('# Of a group\\n0123456789abcdef work alice-\\n', '--token_file=tokens')
        (Token(secret='0123456789abcdef', role=<Role.WORK: 2>, prefix='alice-'),)
    """
    lines = [line.strip() for line in text.splitlines()]
    found = [_TOKEN.fullmatch(line) for line in lines if line and not line.startswith('#')]
    tokens = [
        Token(each['secret'], Role[(each['role'] or 'admin').upper()], each['prefix'] or '')
        for each in found
        if each is not None
    ]
    if not tokens or None in found:
        raise UserError(
            f'{where}: expected lines of TOKEN [ROLE [PREFIX]]: a token of at least 16 letters, '
            'digits and signs (openssl rand -hex 32), its role (read, work or admin; admin by '
            'default), and the prefix of the studies that it may use'
        )
    return tuple(tokens)


def given(file: str | os.PathLike[str] | None) -> tuple[Token, ...]:
    """Reads the tokens of --token_file or of the environment; none if neither is given.

    Raises:
        UserError: the file cannot be read, or its content is invalid.
    """
    if file is None:
        text = os.environ.get(VARIABLE)
        return () if text is None else parse(text, VARIABLE)
    return parse(read(file, '--token_file').decode(errors='replace'), f'--token_file={file}')


def secret(file: str | os.PathLike[str] | None) -> str | None:
    """Returns the secret of a client: see `given`; UserError if there are several."""
    found = given(file)
    if len(found) > 1:
        raise UserError(
            f'{VARIABLE if file is None else file}: expected one token, not {len(found)}. The '
            'service has the file of all tokens; each client has a file with one'
        )
    return found[0].secret if found else None


def read(file: str | os.PathLike[str], flag: str) -> bytes:
    """Reads a small file; raises UserError if that fails."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f'{flag}={file}: {error.strerror}') from error


def header(secret: str) -> str:
    """Returns the `authorization` header of a call."""
    return f'Bearer {secret}'


def matching(values: Iterable[Any], tokens: Sequence[Token]) -> list[Token]:
    """Returns the tokens that `authorization` values, text or bytes, have the secret of.

    Example:
        >>> matching(['Bearer tiger'], [Token('tiger'), Token('lion')])
        [Token(secret='tiger', role=<Role.ADMIN: 3>, prefix='')]
    """
    found = [each if isinstance(each, bytes) else str(each).encode() for each in values]
    if len(found) != 1:
        return []
    # The comparison takes constant time.
    return [each for each in tokens if hmac.compare_digest(found[0], header(each.secret).encode())]


# The token of a service, or of a study page, that only its user can reach.


def local_file(port: int, kind: str = '') -> Path:
    """Returns the file with the token of this user's service at a port of this machine.

    Args:
        port: of the service.
        kind: 'page-' for the study page at a port.
    """
    state = os.environ.get('XDG_STATE_HOME') or '~/.local/state'
    return Path(expanded(state)) / 'paxtune' / 'tokens' / f'{kind}{port}'


def local_secret(port: int, kind: str = '') -> str | None:
    """Reads `local_file`; None if it is missing, or others could have read it."""
    try:
        return read_private(local_file(port, kind))
    except UserError:  # Without a home.
        return None


def keep_local(port: int, secret: str, kind: str = '') -> Path:
    """Writes `local_file`, which only its user can read; raises UserError if that fails."""
    try:
        path = local_file(port, kind)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, secret)
    except (OSError, UserError) as error:
        raise UserError(
            f'a token for clients of this user cannot be kept: {error}. Give --token_file, or '
            '--insecure if every user of this machine may change the studies'
        ) from error
    return path


def read_private(path: Path) -> str | None:
    """Reads a file; None if it is missing or empty, or others could have read it."""
    try:
        with open(path) as file:
            status = os.fstat(file.fileno())
            is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            return file.read().strip() or None if is_own else None
    except (OSError, ValueError):  # ValueError: damaged.
        return None


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its user can read; raises OSError."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent)  # Mode 0600.
    with open(descriptor, 'w') as file:
        file.write(text)
    os.replace(partial, path)
