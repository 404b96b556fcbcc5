"""The command, as a process."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme

from paxtune import serve
from paxtune.service import schema, tokens
from paxtune.service.client import Client
from tests.paxtune.service.conftest import TOKEN, spec, trial
from tests.servers.processes import ROOT
from trainer.symbolic.errors import UserError


@contextlib.contextmanager
def served(*flags, **environment):
    """The running command, and where it serves."""
    process = subprocess.Popen(
        [sys.executable, '-m', 'paxtune.serve', *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        where = re.match(r'Serving .* at (\S+:\d+) ', line)
        assert where, line + process.stderr.read()
        yield process, where[1], line
    finally:
        process.kill()
        process.communicate()


def ended(process):
    """The exit code and the messages of a command that is asked to end."""
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    return process.returncode, messages


def refused(*flags):
    """The message of a command that is not to begin."""
    done = subprocess.run(
        [sys.executable, '-m', 'paxtune.serve', *map(str, flags)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith('error: ') and done.stderr.count('\n') == 1, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.sentinel
def test_a_study_is_there_again_when_the_service_is(tmp_path):
    database = f'--database={tmp_path}/runs/studies.db'
    with served(database, '--port=0') as (process, endpoint, line):
        token = tokens.local_file(int(endpoint.rpartition(':')[2]))
        where = f'{tmp_path}/runs/studies.db at {endpoint}'
        assert line == f'Serving {where} (no TLS, token in {token}). To join:\n'
        with Client(endpoint, 'mine') as client:
            client.connect()
            client.call(schema.CreateStudyRequest(spec=spec()))
            client.call(schema.AddRequest(trials=[trial()], suggest_lock='', worker=''))
            code, messages = ended(process)
            assert code == 0, messages
            port = endpoint.rpartition(':')[2]
            with served(database, f'--port={port}') as (process, _, _):
                assert len(client.call(schema.ChangesRequest(generation='', since=0)).trials) == 1
                assert database.partition('=')[2] in refused(database, '--port=0')
                assert 'Address already in use' in refused(
                    f'--database={tmp_path}/other.db', f'--port={port}'
                )
                process.send_signal(signal.SIGKILL)
                process.wait()
                with served(database, f'--port={port}'):
                    assert client.call(schema.StudyRequest(known='')).spec == spec()


@pytest.mark.slow
def test_other_users_of_the_machine_are_refused(tmp_path, monkeypatch):
    database = f'--database={tmp_path}/studies.db'
    with served(database, '--port=0') as (process, endpoint, _):
        with Client(endpoint, 'mine') as client:
            assert client.call(schema.StudyRequest(known='')).spec is None
        port = endpoint.rpartition(':')[2]
        with monkeypatch.context() as other:
            other.setenv('XDG_STATE_HOME', str(tmp_path / 'of another user'))
            refusal = pytest.raises(UserError, match='the service was given no token')
            with Client(endpoint, 'mine') as client, refusal:
                client.call(schema.StudyRequest(known=''))
        assert ended(process)[0] == 0
    before = tokens.local_secret(int(port))
    with served(database, f'--port={port}'):  # Its workers have the token.
        assert tokens.local_secret(int(port)) == before is not None
    with served(database, '--port=0', '--insecure') as (_, endpoint, line):
        assert '(no TLS, no token)' in line
        with Client(endpoint, 'mine') as client:
            assert client.call(schema.StudyRequest(known='')).spec is None


def test_access_from_other_machines(tmp_path):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / 'ca.pem')
    issued = ca.issue_cert('127.0.0.1')
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / 'own.pem')
    own = [f'--tls_cert={tmp_path}/own.pem', f'--tls_key={tmp_path}/own.pem']
    where = [f'--database={tmp_path}/studies.db', '--host=0.0.0.0', '--port=0']
    with served(*where, *own, '--metrics_port=0', PAXTUNE_TOKEN=TOKEN) as (process, address, line):
        assert '(TLS, with tokens)' in line
        endpoint = address.replace('0.0.0.0', '127.0.0.1')
        with Client(endpoint, 'mine', TOKEN, ca_cert=tmp_path / 'ca.pem') as client:
            assert client.call(schema.StudyRequest(known='')).spec is None
        refusal = pytest.raises(UserError, match='--token_file')
        with Client(endpoint, 'mine', ca_cert=tmp_path / 'ca.pem') as client, refusal:
            client.call(schema.StudyRequest(known=''))
        code, messages = ended(process)
    assert code == 0
    assert 'UNAUTHENTICATED: no token' in messages
    assert TOKEN not in messages


def test_it_starts_fast_and_without_what_trains(tmp_path):
    code = (
        'import contextlib, sys, types\nfrom paxtune import serve\n'
        'unwanted = {"jax", "tensorflow", "flax", "orbax", "search_spaces"}\n'
        'def wait():\n    print(*unwanted & set(sys.modules))\n'
        'serve.ended_by_signal = lambda: contextlib.nullcontext(types.SimpleNamespace(wait=wait))\n'
        f'serve.main(["--database={tmp_path}/a.db", "--port=0"])\n'
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ''
    # Alone it takes less than 2 s; other tests may run beside it.
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--host=0.0.0.0'], '--host=0.0.0.0: .*--insecure'),
        (['--host=::'], '--host=::: .*--insecure'),
        (['--host=0.0.0.0', '--token_file=TOKEN'], '--host=0.0.0.0: .*--tls_cert'),
        (['--tls_cert=x.pem'], '--tls_cert and --tls_key belong together'),
        (['--tls_cert=/none.pem', '--tls_key=/none.key'], '--tls_cert=/none.pem: No such file'),
        (['--token_file=/none'], '--token_file=/none: No such file'),
        (['--port=70000'], '--port=70000: expected 0 to 65535'),
        (['--metrics_port=-1'], '--metrics_port=-1: expected 0 to 65535'),
        (['--lease_seconds=nan'], '--lease_seconds=nan: expected 5 to 86400'),
        (['--host=192.0.2.1', '--insecure'], r'--port=0: 192\.0\.2\.1:0 is unavailable: '),
    ],
)
def test_invalid_flags_are_rejected(flags, message, tmp_path, monkeypatch):
    monkeypatch.delenv('PAXTUNE_TOKEN', raising=False)
    (tmp_path / 'token').write_text(TOKEN)
    flags = [flag.replace('TOKEN', str(tmp_path / 'token')) for flag in flags]
    with pytest.raises(UserError, match=message):
        serve.main([f'--database={tmp_path}/studies.db', '--port=0', *flags])


@pytest.mark.parametrize('where', ['/proc/none/studies.db', '{}/file/studies.db', '{}/file'])
def test_invalid_databases(where, tmp_path):
    (tmp_path / 'file').write_text('nothing that a database would hold')
    where = where.format(tmp_path)
    with pytest.raises(UserError, match=str(Path(where))):
        serve.main([f'--database={where}', '--port=0'])


def test_a_port_of_metrics_that_is_taken(tmp_path):
    with socket.create_server(('127.0.0.1', 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f'--metrics_port={port}: .*in use'):
            serve.main([f'--database={tmp_path}/a.db', '--port=0', f'--metrics_port={port}'])
