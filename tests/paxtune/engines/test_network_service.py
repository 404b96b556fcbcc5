import contextlib
import datetime
import os
import socket

import pytest
from cryptography import x509

from paxtune.engines.network_service import FOLDER, network_service
from paxtune.service import schema
from tests.paxtune.service.conftest import spec
from trainer.symbolic.errors import UserError


def created(service):
    with contextlib.closing(service.client()) as client:
        client.connect()
        return client.call(schema.CreateStudyRequest(spec=spec())).done


def test_only_holders_of_the_token_reach_the_study_of_a_directory(tmp_path):
    with network_service(tmp_path / 'run', host='127.0.0.1') as service:
        assert created(service)
        for file in (tmp_path / 'run' / FOLDER).iterdir():
            assert file.stat().st_mode & 0o077 == 0, file
        stranger = service.__class__(service.endpoint, 'study', 'x' * 32, True, service.tls_ca)
        with pytest.raises(UserError, match='a wrong token'):
            created(stranger)
        second = network_service(tmp_path / 'run', host='127.0.0.1')
        with pytest.raises(UserError, match='another service, or a search'), second:
            raise AssertionError('two services have one study')


def test_a_service_that_starts_again_is_the_same_to_its_workers(tmp_path):
    with network_service(tmp_path, host='127.0.0.1') as first:
        assert created(first)
    with network_service(tmp_path, host='127.0.0.1') as second:
        assert second == first
        assert not created(first)
        certificate = x509.load_pem_x509_certificate(
            (tmp_path / FOLDER / 'certificate.pem').read_bytes()
        )
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=5 * 365)  # The directory may be used again by then.


def test_a_port_that_another_process_has_meanwhile_is_replaced(tmp_path):
    with network_service(tmp_path, host='127.0.0.1') as first:
        port = int(first.endpoint.rpartition(':')[2])
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', port))
        taken.listen()
        with network_service(tmp_path, host='127.0.0.1') as second:
            assert second.endpoint != first.endpoint
            assert created(second)
            assert (tmp_path / FOLDER / 'endpoint').read_text() == second.endpoint


def test_a_token_that_others_could_read_is_replaced(tmp_path):
    with network_service(tmp_path, host='127.0.0.1') as first:
        pass
    os.chmod(tmp_path / FOLDER / 'token', 0o644)
    with network_service(tmp_path, host='127.0.0.1') as second:
        assert second.token != first.token


def test_a_certificate_is_for_the_name_of_the_host(tmp_path):
    with network_service(tmp_path, host='localhost') as service:
        assert created(service)
