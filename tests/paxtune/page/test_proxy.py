"""The study page below a path of a proxy: one that keeps the path, and one that removes it."""

import contextlib
import http.client
import http.server
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from paxtune.page import access
from paxtune.page.access import access_rule
from paxtune.page.front import serving
from paxtune.page.live import LiveStudy
from paxtune.page.views import VIEWS, overview
from tests.factories.page_searches import HOST, TOKEN, call, client, page_app
from tests.servers import threads as servers
from trainer.symbolic.errors import UserError

BASE = '/tuner/'
NAME = 'tuner.example.com'
BEHIND = access_rule('127.0.0.1', TOKEN, False, BASE, NAME)
VERSION = {'version.data': ''}


def at_proxy(live: LiveStudy) -> FlaskClient:
    """A client of the page behind a proxy, with the token."""
    page = client(live, BEHIND)
    opened = page.get(f'/tuner/trials?token={TOKEN}&sort=-loss', base_url=HOST)
    assert opened.location == '/tuner/trials?sort=-loss'  # The rest of the address stays.
    return page


def test_links_begin_with_the_base_path(live: LiveStudy) -> None:
    page = at_proxy(live)
    text = page.get('/tuner/', base_url=HOST).text
    assets = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert assets and all(each.startswith('/tuner/') for each in assets), assets
    place = {'url.pathname': '/tuner/trials', 'url.search': ''}
    reply = call(page, 'nav.children', place, {}, BASE)
    links = reply.json['response']['nav']['children']
    shown = {each['props']['href']: each['props']['className'] for each in links}
    assert list(shown) == [f'/tuner{view.path}' for view in VIEWS if view.title]
    assert shown['/tuner/trials'] == 'current' and shown['/tuner/'] == ''
    # The overview is computed before the first request.
    overview.prepare(live, page.application, BASE)
    for part, link in (('live', '3'), ('best', '3'), ('running', '5')):
        shown = call(page, f'overview-{part}.children', VERSION, {}, BASE).json
        assert f"'/tuner/trial/{link}'" in str(shown), part
    trial = {'url.pathname': '/tuner/trial/4'}
    assert "'/tuner/compare?trials=4,best'" in str(
        call(page, 'view.children', trial, {'url.search': ''}, BASE).json
    )
    assert 'infeasible' in call(page, 'trial-live.children', VERSION, trial, BASE).text
    click = {'figure-history.clickData': {'points': [{'customdata': [2]}]}}
    found = page.get('/tuner/_dash-dependencies', base_url=HOST).json
    assert isinstance(found, list)
    [output] = [each['output'] for each in found if each['inputs'][0]['id'] == 'figure-history']
    assert "'/tuner/trial/2'" in str(call(page, output, click, {}, BASE).json)


@pytest.mark.parametrize('path', ['/tuner/trials', '/trials'])
def test_the_token_goes_to_a_cookie_of_the_base_path(live: LiveStudy, path: str) -> None:
    page = client(live, BEHIND)
    headers = {'Host': NAME, 'X-Forwarded-Proto': 'https'}
    assert page.get(path, base_url=HOST, headers=headers).status_code == 403
    answer = page.get(f'{path}?token={TOKEN}', base_url=HOST, headers=headers)
    assert (answer.status_code, answer.headers['Location']) == (302, '/tuner/trials')
    cookie = answer.headers['Set-Cookie']
    assert 'Path=/tuner/' in cookie and 'Secure' in cookie
    assert 'Secure' not in page.get(f'/?token={TOKEN}', base_url=HOST).headers['Set-Cookie']


def test_the_public_host_is_a_host_and_an_origin_of_the_page() -> None:
    def refusal(host: str, origin: str | None, method: str = 'POST') -> str | None:
        headers = {'Host': host} if origin is None else {'Host': host, 'Origin': origin}
        return BEHIND.refusal(method, headers, TOKEN)

    assert refusal(NAME, None, 'GET') is None
    for host in (NAME, f'{NAME}:8443', '127.0.0.1:8471'):
        assert refusal(host, f'https://{NAME}') is None
        assert refusal(host, f'http://{NAME}') is None
        for origin in ('https://evil.example', 'null', f'https://{NAME}.evil.example', None):
            assert 'another origin' in (refusal(host, origin) or ''), (host, origin)
    assert refusal(f'{NAME}:8443', f'https://{NAME}:8443') is None
    assert refusal('127.0.0.1:8471', f'https://{NAME}:9999') is not None
    assert 'no host evil.example' in (refusal('evil.example', f'https://{NAME}') or '')
    bare = access_rule('127.0.0.1', TOKEN, False)
    assert '--public_host=NAME' in (bare.refusal('GET', {'Host': NAME}, TOKEN) or '')


def test_a_dispatcher_may_remove_the_base_path(live: LiveStudy) -> None:
    app = page_app(live, BEHIND)

    def other(environ: object, start_response: object) -> list[bytes]:
        raise AssertionError('the request is of the page')

    page = Client(DispatcherMiddleware(other, {'/tuner': app.server}))
    page.get(f'/tuner/?token={TOKEN}', base_url=HOST)
    answer = page.get('/tuner/_dash-layout', base_url=HOST)
    assert answer.status_code == 200 and '/tuner/trials' in str(answer.json), answer.text


@contextlib.contextmanager
def proxied(port: int, removes_prefix: bool) -> Iterator[int]:
    """Forwards requests below /tuner/ to a port, with the host of the proxy; yields its port."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._forward()

        def do_POST(self) -> None:
            self._forward()

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
            path = self.path.removeprefix('/tuner') if removes_prefix else self.path
            upstream = http.client.HTTPConnection('127.0.0.1', port)
            upstream.request(self.command, path, body, dict(self.headers))
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name not in ('Connection', 'Server', 'Date'):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())
            upstream.close()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with servers.serving(http.server.ThreadingHTTPServer(('127.0.0.1', 0), Proxy)) as front:
        yield front


@pytest.mark.parametrize('removes_prefix', [False, True])
def test_a_proxy_shows_the_page_below_its_path(live: LiveStudy, removes_prefix: bool) -> None:
    app = page_app(live, BEHIND)
    with serving(app.server, '127.0.0.1', 0) as port, proxied(port, removes_prefix) as front:
        connection = http.client.HTTPConnection('127.0.0.1', front)

        def got(path: str, cookie: str = '') -> http.client.HTTPResponse:
            connection.request('GET', path, headers={'Host': NAME, 'Cookie': cookie})
            return connection.getresponse()

        refused = got('/tuner/')
        assert refused.status == 403 and b'token is missing' in refused.read()
        moved = got(f'/tuner/?token={TOKEN}')
        moved.read()
        assert (moved.status, moved.headers['Location']) == (302, '/tuner/')
        cookie = moved.headers['Set-Cookie'].partition(';')[0]
        shown = got('/tuner/', cookie)
        text = shown.read().decode()
        assert shown.status == 200
        for path in re.findall(r'(?:href|src)="([^"?]*\.(?:css|js))', text)[:2]:
            asset = got(path, cookie)
            assert asset.status == 200 and asset.read(), path
        connection.close()


@pytest.mark.parametrize(
    'given', ['tuner', '/a/../b/', '//evil.example/', '/a b/', '/?x/', '/a//b']
)
def test_a_base_path_that_is_no_path_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r'^--base_path=.*: expected the path'):
        access.base_path(given)


@pytest.mark.parametrize('given', ['http://tuner', 'tuner/x', 'a b', '*', 'tuner:x', '.a'])
def test_a_public_host_that_is_no_host_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r'^--public_host=.*: expected the host'):
        access.public_host(given)


def test_a_base_path_ends_with_a_slash(tmp_path: Path) -> None:
    assert access.base_path('/user/a@b.example/proxy/8471') == '/user/a@b.example/proxy/8471/'
