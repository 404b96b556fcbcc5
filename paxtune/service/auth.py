"""Authentication: tokens, certificates and addresses."""

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
"""Environment variable with the token, used without --token_file."""

_MIN_TOKEN = 16


def token(file: str | os.PathLike[str] | None) -> str | None:
    """Reads the token of --token_file or of the environment; None if neither is given.

    Raises:
        UserError: the file cannot be read, or its content is no valid token.
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
    """Returns the `authorization` header of a call."""
    return f'Bearer {secret}'


def is_authorized(given: Iterable[Any], secret: str | None) -> bool:
    """Returns True if the `authorization` values match the secret.

    Args:
        given: text or bytes; more than one value is rejected.
        secret: None to accept every caller.

    Example:
        >>> is_authorized(['Bearer tiger'], 'tiger'), is_authorized([], 'tiger')
        (True, False)
    """
    if secret is None:
        return True
    values = [each if isinstance(each, bytes) else str(each).encode() for each in given]
    # The comparison takes constant time.
    return len(values) == 1 and hmac.compare_digest(values[0], header(secret).encode())


def is_loopback(host: str) -> bool:
    """Returns True if only this machine can reach an address.

    Example:
        >>> is_loopback('localhost'), is_loopback('::1'), is_loopback('0.0.0.0')
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == 'localhost'


def address(host: str, port: int) -> str:
    """Joins host and port.

    Example:
        >>> address('::1', 8470)
        '[::1]:8470'
    """
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def check_endpoint(endpoint: str) -> str:
    """Returns the host of an endpoint; raises UserError unless it is host:port.

    Example:
        >>> check_endpoint('[::1]:8470')
        '::1'
    """
    parts = re.fullmatch(r'(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})', endpoint)
    if parts is None or not 0 < int(parts[2]) < 2**16:
        raise UserError(f'--vizier_endpoint={endpoint}: expected host:port, such as tuner:8470')
    return parts[1].strip('[]')


def read(file: str | os.PathLike[str], flag: str) -> bytes:
    """Reads a small file; raises UserError if that fails."""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UserError(f'{flag}={file}: {error.strerror}') from error


def certificate(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Reads a certificate chain and its key; raises UserError if they do not belong together."""
    content = read(cert, '--tls_cert'), read(key, '--tls_key')
    try:
        # Without a password, OpenSSL asks for the passphrase of a key at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password='')
    except (OSError, ValueError) as error:
        raise UserError(
            f'--tls_cert={cert} --tls_key={key}: expected a certificate and its key without a '
            f'passphrase, both PEM: {error}'
        ) from error
    return content


def authority(file: Path) -> bytes:
    """Reads the certificates that a client trusts; raises UserError if the file has none."""
    content = read(file, '--tls_ca')
    try:
        ssl.create_default_context(cadata=content.decode('ascii'))
    except (OSError, ValueError) as error:
        raise UserError(f'--tls_ca={file}: expected certificates, PEM: {error}') from error
    return content
