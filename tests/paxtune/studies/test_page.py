"""`paxtune.studies page`: its address, its token, and flags that it refuses."""

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from paxtune.service import tokens
from tests.factories.page_searches import make_study
from tests.servers.processes import command, environment
from tools.servers.ports import unused_port


@contextlib.contextmanager
def served(directory: Path, *flags: str) -> Iterator[str]:
    """Runs the command while entered; yields the address that it prints."""
    line = [sys.executable, '-m', 'paxtune.studies', 'page', str(directory), '--json', *flags]
    with subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())['url']
        finally:
            process.terminate()


@pytest.mark.slow
def test_page_on_loopback_has_a_token_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    make_study(tmp_path / 'study')
    port = unused_port()
    flags = [f'--port={port}', '--base_path=/tuner']
    with served(tmp_path / 'study', *flags) as url:
        base, _, token = url.partition('?token=')
        assert base == f'http://127.0.0.1:{port}/tuner/' and len(token) >= 32
        assert tokens.local_secret(port, 'page-') == token
        with pytest.raises(urllib.error.HTTPError, match='403'):
            urllib.request.urlopen(base)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert opener.open(url).url == base
    with served(tmp_path / 'study', *flags) as again:
        assert again == url
        assert opener.open(base).status == 200  # An open browser goes on.


@pytest.mark.parametrize(
    ('flag', 'message'),
    [
        ('--base_path=tuner', '--base_path=tuner: expected the path below which'),
        ('--public_host=http://a', '--public_host=http://a: expected the host'),
        ('--host=0.0.0.0', '--host=0.0.0.0: the token and the study would cross the network'),
    ],
)
@pytest.mark.slow
def test_page_refuses_flags_before_it_reads_the_study(
    tmp_path: Path, flag: str, message: str
) -> None:
    done = command('paxtune.studies', 'page', str(tmp_path), flag)
    assert done.returncode == 2 and message in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.slow
def test_page_of_a_directory_has_all_its_studies(tmp_path: Path) -> None:
    make_study(tmp_path / 'runs' / 'first')
    with served(tmp_path / 'runs', '--port=0') as url:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b'Studies in runs' in opener.open(url).read()
        base = url.partition('?')[0]
        assert b'<title>first</title>' in opener.open(f'{base}study/first/trials').read()


@pytest.mark.slow
def test_page_without_a_directory_ends_with_a_message(tmp_path: Path) -> None:
    done = command('paxtune.studies', 'page', str(tmp_path / 'missing'))
    assert done.returncode == 2 and 'There is no study in' in done.stderr
    (tmp_path / 'study.db').write_text('no database')
    done = command('paxtune.studies', 'page', str(tmp_path), '--port=0')
    assert done.returncode == 2 and 'Traceback' not in done.stderr
    assert 'cannot be read' in done.stderr or 'not a database' in done.stderr, done.stderr
