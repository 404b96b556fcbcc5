"""`--storage=vizier://…` as a command, against Vizier's own server and ours, as processes."""

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import time

import pytest

from paxtune.service.address import Service
from paxtune.service.study_location import VizierLocation
from tests.factories.searches import told, trials_of
from tests.factories.vizier_searches import tuned
from tests.paxtune.test_serve import served
from tests.servers.processes import ROOT, command, environment, passed

pytestmark = pytest.mark.slow

_SEARCH = ['paxtune.search', '--exp=tests.factories.tunables.Kinds', '--num_trials=3']


@contextlib.contextmanager
def vizier_server(directory, port=0):
    """Vizier's own server, and its address."""
    arguments = ['-m', 'tests.servers.vizier', f'{directory}/vizier.db', str(port)]
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


def found(where):
    with VizierLocation(Service(where, 'mine')).open() as study:
        return told(study.trials)


@pytest.mark.parametrize('server', [vizier_server, own_server])
@pytest.mark.timeout(1500)
def test_a_killed_search_ends_as_a_local_one(server, tmp_path):
    with tuned(tmp_path / 'local') as study:
        undisturbed = told(study.trials)
    states = [state for _, state, *_ in undisturbed]
    assert len(states) == 8 and {*states} == {'COMPLETED', 'INFEASIBLE'}
    with server(tmp_path) as where:
        search = ['tests.factories.vizier_searches', str(tmp_path / 'job'), where]
        for kill in ('copied:1', 'suggestion:2', 'copied:12'):
            done = command(*search, kill=kill)
            assert done.returncode == -signal.SIGKILL, done.stderr
        passed(command(*search))
        assert found(where) == undisturbed


@pytest.mark.timeout(1500)
def test_a_search_waits_for_its_server(tmp_path):
    passed(command(*_SEARCH, f'--job_log_dir={tmp_path}/local'))
    with contextlib.ExitStack() as servers:
        where = servers.enter_context(vizier_server(tmp_path))
        search = [*_SEARCH, *flags(where, tmp_path / 'job')]
        assert command(*search, kill='saved:1').returncode == -signal.SIGKILL
        process = subprocess.Popen(
            [sys.executable, '-m', *search],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            while len(found(where)) < 2:
                time.sleep(0.1)
                assert process.poll() is None
            servers.close()
            heard = list(itertools.takewhile(lambda line: 'not answer' not in line, process.stdout))
            servers.enter_context(vizier_server(tmp_path, where.rpartition(':')[2]))
            rest, _ = process.communicate(timeout=900)
            out = ''.join([*heard, rest])
            assert process.returncode == 0 and 'trial 1: resumed from step 2' in out, out
            assert f'--storage=vizier://{where} --study=mine' in out
            assert found(where) == told(trials_of(tmp_path / 'local'))
        finally:
            process.kill()
            process.communicate()


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
