"""TLS: trusted and untrusted certificates, and the messages."""

import contextlib
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest
import trustme

from paxtune.service import auth, monitoring, schema
from paxtune.service.client import Client
from paxtune.service.registry import StudyRegistry
from paxtune.service.server import Server
from tests.paxtune.service.conftest import TOKEN, client_of
from trainer.symbolic.errors import UserError


class Studies:
    def delete(self, id, created):
        return schema.EmptyReply()


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A certificate of 127.0.0.1, one of another host, and who has signed both; and a stranger."""
    directory: Path = tmp_path_factory.mktemp('tls')
    ca = trustme.CA()
    ca.cert_pem.write_to_path(directory / 'ca.pem')
    trustme.CA().cert_pem.write_to_path(directory / 'stranger.pem')
    for name, host in (('here', '127.0.0.1'), ('elsewhere', 'elsewhere.example')):
        issued = ca.issue_cert(host)
        issued.cert_chain_pems[0].write_to_path(directory / f'{name}.pem')
        issued.private_key_pem.write_to_path(directory / f'{name}.key')
    return directory


def serving(files, name):
    tls = None if name is None else (files / f'{name}.pem', files / f'{name}.key')
    return Server(StudyRegistry(lambda study: Studies()), tls=tls)


def test_a_trusted_authority(files):
    with serving(files, 'here') as server, client_of(server, ca_cert=files / 'ca.pem') as client:
        client.connect()
        assert client.call(schema.DeleteRequest(id=1)) == schema.EmptyReply()


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('here', {'ca_cert': 'stranger.pem'}, 'not trusted.*--tls_ca'),
        ('here', {'tls': True}, 'not trusted.*--tls_ca'),
        ('elsewhere', {'ca_cert': 'ca.pem'}, 'for another host'),
        (None, {'ca_cert': 'ca.pem'}, 'does not use TLS'),
    ],
)
def test_untrusted_certificates_are_rejected(files, name, options, message):
    if 'ca_cert' in options:
        options = {'ca_cert': files / options['ca_cert']}
    with (
        serving(files, name) as server,
        client_of(server, **options) as client,
        pytest.raises(UserError, match=message),
    ):
        client.call(schema.DeleteRequest(id=1))


def test_metrics_use_tls_and_silent_or_plain_clients_do_no_harm(files, capfd):
    tls = files / 'here.pem', files / 'here.key'
    trusting = ssl.create_default_context(cafile=files / 'ca.pem')
    with (
        monitoring.serve(monitoring.Metrics(), '127.0.0.1', 0, tls=tls) as port,
        socket.create_connection(('127.0.0.1', port), 20),
        socket.create_connection(('127.0.0.1', port), 20) as plain,
    ):
        plain.sendall(b'GET /metrics HTTP/1.1\r\n\r\n')
        while plain.recv(1000):
            pass
        url = f'https://127.0.0.1:{port}/metrics'
        with urllib.request.urlopen(url, timeout=20, context=trusting) as answer:
            assert b'paxtune_leases' in answer.read()
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize(
    ('cert', 'key', 'message'),
    [
        ('none.pem', 'here.key', '--tls_cert=.*none.pem: No such file'),
        ('here.pem', 'none.key', '--tls_key=.*none.key: No such file'),
        ('here.pem', 'elsewhere.key', 'a certificate and its key'),
        ('here.key', 'here.pem', 'a certificate and its key'),
    ],
)
def test_invalid_certificates(files, cert, key, message):
    with pytest.raises(UserError, match=message):
        Server(StudyRegistry(lambda study: Studies()), tls=(files / cert, files / key)).start()


@pytest.mark.parametrize(('name', 'message'), [('none', 'No such file'), ('here.key', 'PEM')])
def test_invalid_authorities(files, name, message):
    with pytest.raises(UserError, match=f'--tls_ca=.*{message}'):
        auth.authority(files / name)


@pytest.mark.parametrize('how', [{}, {'tls': True}])
def test_a_token_leaves_the_machine_only_over_tls(how):
    expected = pytest.raises(UserError, match='the token could be intercepted: give --tls')
    with contextlib.nullcontext() if how else expected:
        Client('tuner.example:8470', 'mine', TOKEN, **how).close()
    Client('127.0.0.1:8470', 'mine', TOKEN).close()
