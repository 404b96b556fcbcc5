"""Who may speak to a service, and where it is: tokens, certificates, addresses."""

import hmac
import ipaddress
import os
import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.symbolic.errors import UserError

TOKEN_VARIABLE = 'PAXTUNE_TOKEN'
"""The environment variable that holds the token where there is no --token_file."""

_MIN_TOKEN = 16


def token(file: str | os.PathLike[str] | None) -> str | None:
    """The token of --token_file, or of the environment; None where there is neither.

    Raises:
        UserError: it cannot be read, or is too short or strange for a token.
    """
    if file is None:
        text, where = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if text is None:
            return None
    else:
        text, where = read(file, '--token_file').decode(errors='replace'), f'--token_file={file}'
    text = text.strip()
    if len(text) < _MIN_TOKEN or not re.fullmatch(r'[!-~]+', text):
        raise UserError(
            f'{where}: expected a token of at least {_MIN_TOKEN} letters, digits and signs, '
            'without spaces, as `openssl rand -hex 32` writes it'
        )
    return text


def header(secret: str) -> str:
    """The `authorization` that goes with each call."""
    return f'Bearer {secret}'


def is_authorized(given: Iterable[Any], secret: str | None) -> bool:
    """Whether one who gives these values of `authorization` knows the secret.

    Args:
        given: text or bytes; more than one value is refused.
        secret: None where there is none to know.

    Example:
        >>> is_authorized(['Bearer tiger'], 'tiger'), is_authorized([], 'tiger')
        (True, False)
    """
    if secret is None:
        return True
    values = [each if isinstance(each, bytes) else str(each).encode() for each in given]
    # How long it takes says nothing of how much of it is right.
    return len(values) == 1 and hmac.compare_digest(values[0], header(secret).encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Example:
        >>> is_loopback('localhost'), is_loopback('::1'), is_loopback('0.0.0.0')
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost'


def address(host: str, port: int) -> str:
    """Host and port as one text.

    Example:
        >>> address('::1', 8470)
        '[::1]:8470'
    """
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def check_endpoint(endpoint: str) -> str:
    """The host of an endpoint.

    Raises:
        UserError: it is not host:port.

    Example:
        >>> check_endpoint('[::1]:8470')
        '::1'
    """
    parts = re.fullmatch(r'(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})', endpoint)
    if parts is None or not 0 < int(parts[2]) < 2**16:
        raise UserError(f'--vizier_endpoint={endpoint}: expected host:port, such as tuner:8470')
    return parts[1].strip('[]')


def read(file: str | os.PathLike[str], flag: str) -> bytes:
    """The content of a small file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f'{flag}={file}: {error.strerror}') from error


def certificate(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """A certificate, with those that it is signed by, and its key.

    Raises:
        UserError: they cannot be read, or do not belong together.
    """
    content = read(cert, '--tls_cert'), read(key, '--tls_key')
    server_context(cert, key)
    return content


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """What Python's own servers speak TLS with.

    Raises:
        UserError: certificate and key cannot be read, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without it, OpenSSL asks whoever sits at the terminal for the passphrase of a key.
        context.load_cert_chain(cert, key, password='')
    except (OSError, ValueError) as error:
        raise UserError(
            f'--tls_cert={cert} --tls_key={key}: expected a certificate and its key without a '
            f'passphrase, both PEM: {error}'
        ) from error
    return context


def authority(file: Path) -> bytes:
    """The certificates that a client trusts.

    Raises:
        UserError: the file cannot be read, or holds none.
    """
    content = read(file, '--tls_ca')
    try:
        ssl.create_default_context(cadata=content.decode('ascii'))
    except (OSError, ValueError) as error:
        raise UserError(f'--tls_ca={file}: expected certificates, PEM: {error}') from error
    return content
