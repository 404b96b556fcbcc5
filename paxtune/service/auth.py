"""Certificates and addresses."""

import ipaddress
import re
import ssl
from pathlib import Path

from paxtune.service.tokens import read
from trainer.symbolic.errors import UserError


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


def check_endpoint(endpoint: str, flag: str = '--vizier_endpoint=') -> str:
    """Returns the host of an endpoint that a flag names; raises UserError unless it is host:port.

    Example:
        >>> check_endpoint('[::1]:8470')
        '::1'
    """
    parts = re.fullmatch(r'(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})', endpoint)
    if parts is None or not 0 < int(parts[2]) < 2**16:
        raise UserError(f'{flag}{endpoint}: expected host:port, such as tuner:8470')
    return parts[1].strip('[]')


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
