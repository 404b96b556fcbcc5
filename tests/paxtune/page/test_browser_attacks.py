"""A real Chromium at the page of a hostile study, and at hostile pages."""

import contextlib
import dataclasses
import http.server
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from paxtune.page.access import COOKIE
from paxtune.storage.open_study import load_study
from paxtune.study import notes
from paxtune.study.trial_paths import trial_directory
from tests.factories.page_searches import SCRIPT, make_study
from tests.servers import chromium, threads
from tests.servers.study_page import address_of, draw_all, served, views, visit

pytestmark = pytest.mark.slow

IMAGE = '<img src=x onerror="window.isOurs = true; alert(2)">'
ATTACK = f'{SCRIPT}{IMAGE}'

MARKDOWN = f"""{ATTACK}

[one](javascript:alert(3)) [two](JaVaScRiPt:alert(4)) [three](data:text/html,{SCRIPT})
<javascript:alert(5)>
[four](vbscript:alert(6)) <a href="javascript:alert(7)">five</a> <dccMarkdown>six</dccMarkdown>
"""

_REQUESTS = {'': 'GET', '_dash-layout': 'GET', '_dash-update-component': 'POST'}


@pytest.fixture(scope='module')
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose name, decisions, reasons and notes are markup."""
    directory = tmp_path_factory.mktemp('hostile') / 'study'
    make_study(directory)
    with load_study(directory, read_only=False) as study:
        study.store.update_study(lambda record: dataclasses.replace(record, exp=ATTACK))
        notes.write_note(study.store, 1, ATTACK)
        notes.write_study_note(study.store, MARKDOWN)
        folder = Path(trial_directory(directory, study.trial(1)))
    folder.mkdir(parents=True)
    (folder / IMAGE).write_text(ATTACK)
    (folder / 'drawing.svg').write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{SCRIPT}</svg>')
    return directory


def test_tab_reports_scripts_dialogs_errors_and_requests(browser: Browser) -> None:
    with chromium.tab(browser) as tab:
        tab.page.set_content('<p>')
        tab.page.evaluate(
            """async () => {
                alert(1);
                console.error('failed');
                setTimeout(() => { throw new Error('broken') });
                await fetch('http://localhost:9/').catch(() => null);
            }"""
        )
        kinds = {problem.partition(':')[0] for problem in tab.problems}
        assert kinds == {'dialog', 'console', 'script', 'request'}, tab.problems


def test_browser_runs_no_script_of_a_hostile_study(browser: Browser, hostile: Path) -> None:
    with served(hostile) as url, chromium.tab(browser) as tab:
        page = tab.page
        visit(page, url)
        expect(page.locator('h1')).to_have_text(ATTACK)
        assert page.title() == f'Overview · {ATTACK}'
        for path in [*views(page).values(), '/trial/1', '/trial/4', '/compare?trials=1,4']:
            visit(page, address_of(url, path))
            draw_all(page)
            assert page.evaluate('window.isOurs') is None, path
            assert page.locator('img').count() == 0, path
        visit(page, address_of(url, 'trial/4'))
        expect(page.locator('#trial-live')).to_contain_text(f'{SCRIPT} failed')
        visit(page, address_of(url, 'trial/1'))
        expect(page.locator('#note')).to_have_value(ATTACK)
        expect(page.locator('#note-shown')).to_contain_text(ATTACK)
        page.get_by_role('button', name=IMAGE).click()
        expect(page.locator('#file-shown')).to_contain_text(f'{IMAGE}{ATTACK}')
        visit(page, url)
        links = page.locator('#note-shown a')
        expect(links.first).to_have_text('one')
        for link in links.all():
            address = link.evaluate('each => each.href')
            assert address.startswith(('http:', 'javascript:void(0)')), address
            link.click(modifiers=['Alt'], no_wait_after=True)
        assert page.locator('img').count() == 0
        # What the links had was replaced by `javascript:void(0)`, which the policy blocks, too.
        assert not [each for each in tab.problems if 'The action has been blocked' not in each]


def test_browser_loads_no_image_of_a_note_from_elsewhere(browser: Browser, tmp_path: Path) -> None:
    directory = tmp_path / 'study'
    make_study(directory)
    other = socket.create_server(('127.0.0.1', 0))
    other.setblocking(False)
    port = other.getsockname()[1]
    with load_study(directory, read_only=False) as study:
        notes.write_study_note(study.store, f'![seen](http://127.0.0.1:{port}/seen.png)')
    with served(directory) as url, chromium.tab(browser) as tab:
        visit(tab.page, url)
        expect(tab.page.locator('#note-shown img')).to_have_count(1)
        # There is one for each drawing of the note.
        assert tab.problems
        for problem in tab.problems:
            assert 'violates the following Content Security Policy' in problem
    with other, pytest.raises(BlockingIOError):
        other.accept()


def test_browser_reads_and_changes_nothing_from_another_origin(
    browser: Browser, hostile: Path
) -> None:
    with served(hostile) as printed, _other_site() as other, chromium.tab(browser) as tab:
        page, url = tab.page, printed.partition('?')[0]
        visit(page, printed)  # The browser has the token.
        answers: list[tuple[str, int]] = []
        page.goto(other)
        page.on('response', lambda answer: answers.append((answer.url, answer.status)))
        for path, method in _REQUESTS.items():
            body = {'body': '{}'} if method == 'POST' else {}
            for mode in ('cors', 'no-cors'):
                read = page.evaluate(
                    '([url, init]) => fetch(url, init).then(answer => answer.text(), () => null)',
                    [url + path, {'method': method, 'mode': mode, **body}],
                )
                assert not read, (method, path, mode)
        # Chromium reports no answers that it keeps from the page.
        assert answers and {status for _, status in answers} == {403}, answers
        # A form needs no permission of the browser, and goes there.
        with page.expect_navigation():
            page.evaluate(
                """url => {
                    const form = document.createElement('form');
                    form.method = 'post';
                    form.action = url;
                    document.body.append(form);
                    form.submit();
                }""",
                f'{url}_dash-update-component',
            )
        expect(page.locator('body')).to_contain_text('comes from a page of another origin')
        page.goto(other)
        page.evaluate(
            """url => new Promise(resolve => {
                const frame = document.createElement('iframe');
                frame.onload = resolve;
                frame.src = url;
                document.body.append(frame);
            })""",
            url,
        )
        assert not any(frame.query_selector('#view') for frame in page.frames)
        # A link leads there.
        page.evaluate('url => { location.href = url }', url)
        expect(page.locator('h1')).to_have_text(ATTACK)


@pytest.mark.parametrize('flags', [['--host=0.0.0.0', '--insecure'], []])
def test_browser_needs_the_token(browser: Browser, hostile: Path, flags: list[str]) -> None:
    with served(hostile, *flags) as printed, chromium.tab(browser) as tab:
        parts, page = urlsplit(printed), tab.page
        url = f'http://127.0.0.1:{parts.port}/'
        answer = page.goto(url)
        assert answer is not None and answer.status == 403
        expect(page.locator('body')).to_contain_text('a token is missing')
        visit(page, f'{url}?{parts.query}')
        assert page.url == url  # The token is in a cookie.
        visit(page, f'{url}trials')
        assert COOKIE not in page.evaluate('document.cookie')


@contextlib.contextmanager
def _other_site() -> Iterator[str]:
    """Serves an empty page at another port of loopback while entered; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header('Content-Type', 'text/html')
            self.end_headers()
            self.wfile.write(b'<!doctype html><title>Other</title><link rel="icon" href="data:,">')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with threads.serving(http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)) as port:
        yield f'http://127.0.0.1:{port}/'
