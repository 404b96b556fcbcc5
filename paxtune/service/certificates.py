"""Certificates that a service makes for itself, where only its own workers call it."""

import datetime
import ipaddress

from trainer.symbolic import extras

_VALID_DAYS = 3650  # A study may be continued years later, with the certificate in its directory.


def self_signed(host: str) -> tuple[bytes, bytes]:
    """Makes a certificate for a host, which is its own authority, and its key.

    Args:
        host: the name or the address by which clients reach the service.

    Returns:
        The certificate and the key, PEM.

    Raises:
        UserError: the package cryptography is missing.

    Example:
        >>> certificate, key = self_signed('127.0.0.1')
        >>> certificate.splitlines()[0], key.splitlines()[0]
        (b'-----BEGIN CERTIFICATE-----', b'-----BEGIN PRIVATE KEY-----')
    """
    with extras.needed('ray or slurm', 'a certificate for workers on other machines'):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

    try:
        name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'paxtune')])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # Clocks differ.
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
