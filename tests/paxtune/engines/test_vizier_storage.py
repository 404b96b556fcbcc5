"""`--storage=vizier://…` as a command, against Vizier's own server and ours, as processes."""

import contextlib
import signal
import socket
import subprocess
import sys

import pytest

from paxtune.service.address import Service
from paxtune.service.study_location import VizierLocation
from tests.paxtune.killed import told, trials_of
from tests.paxtune.test_serve import served
from tests.processes import ROOT, command, environment, passed

pytestmark = pytest.mark.slow

_SEARCH = ['paxtune.search', '--exp=tests.paxtune.tunables.Kinds', '--num_trials=8']


@contextlib.contextmanager
def vizier_server(directory, port=0):
    """Vizier's own server, and its address."""
    arguments = ['-m', 'tests.paxtune.engines.vizier_server', f'{directory}/vizier.db', str(port)]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def own_server(directory):
    with served(f'--database={directory}/studies.db', '--port=0') as (_, where, _):
        yield where


def flags(where, directory):
    return [f'--storage=vizier://{where}', '--study=mine', f'--job_log_dir={directory}']


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp('undisturbed')
    passed(command(*_SEARCH, f'--job_log_dir={directory}'))
    found = told(trials_of(directory))
    assert len(found) == 8
    return found


def found(where):
    with VizierLocation(Service(where, 'mine')).open() as study:
        return told(study.trials)


@pytest.mark.parametrize('server', [vizier_server, own_server])
def test_a_killed_search_ends_as_a_local_one(server, tmp_path, undisturbed):
    with server(tmp_path) as where:
        search = [*_SEARCH, *flags(where, tmp_path / 'job')]
        for kill in ('copied:1', 'saved:1', 'copied:12', 'suggestion:3', 'step:20'):
            done = command(*search, kill=kill)
            assert done.returncode == -signal.SIGKILL, done.stderr
        out = passed(command(*search))
        assert found(where) == undisturbed
        assert '8 trials' in out and f'--storage=vizier://{where} --study=mine' in out
        best = ['--exp=tests.paxtune.tunables.Kinds', f'--job_log_dir={tmp_path}/best']
        at = [f'--study_dir={tmp_path}/job', *flags(where, '')[:2], '--trial=1']
        passed(command('paxtune.train', *best, *at))


def test_a_search_waits_for_its_server(tmp_path, undisturbed):
    with contextlib.ExitStack() as servers:
        where = servers.enter_context(vizier_server(tmp_path))
        search = subprocess.Popen(
            [sys.executable, '-m', *_SEARCH, *flags(where, tmp_path / 'job')],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert search.stdout is not None
        try:
            for line in search.stdout:
                if line.startswith('trial 2'):
                    break
            servers.close()
            for line in search.stdout:
                if 'does not answer' in line:
                    break
            servers.enter_context(vizier_server(tmp_path, where.rpartition(':')[2]))
            out, _ = search.communicate(timeout=300)
            assert search.returncode == 0, out
            assert found(where) == undisturbed
        finally:
            search.kill()
            search.communicate()


def test_a_server_that_is_away_is_one_message(tmp_path):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        where = f'127.0.0.1:{taken.getsockname()[1]}'
        done = command(*_SEARCH, *flags(where, tmp_path / 'job'))
        away = f'error: --storage=vizier://{where}: the service at {where} did not answer for 10 s'
        assert done.returncode == 75 and done.stderr.splitlines()[-1].startswith(away), done.stderr
        shared = command(*_SEARCH, f'--vizier_endpoint={where}', f'--job_log_dir={tmp_path}/other')
        assert shared.returncode == 75, shared.stderr


@pytest.mark.parametrize('more', ['--workers=2', '--engine=ray', '--vizier_endpoint=h:1'])
def test_several_drivers_are_refused(more, tmp_path):
    done = command(*_SEARCH, more, *flags('127.0.0.1:1', tmp_path / 'job'))
    assert done.returncode == 2 and '--storage=vizier://127.0.0.1:1' in done.stderr
    assert not (tmp_path / 'job').exists()
