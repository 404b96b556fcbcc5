"""Requests that the study page refuses."""

import gzip

import pytest
from werkzeug.test import Client

from paxtune.page.access import COOKIE, access_rule
from paxtune.page.front import Application, Lazy, protected
from paxtune.page.live import LiveStudy
from paxtune.plots.script import script
from tests.factories.page_searches import HOST, client
from trainer.symbolic.errors import UserError

SECRET = '0123456789abcdef'
LOCAL = access_rule('127.0.0.1', SECRET, False)
OWN = {'Host': '127.0.0.1:8471', 'Origin': HOST, 'Sec-Fetch-Site': 'same-origin'}


@pytest.mark.parametrize(
    'host', ['127.0.0.1:8471', 'localhost:9000', '[::1]:8471', 'localhost', '127.0.0.2']
)
def test_access_accepts_names_and_addresses_of_loopback(host: str) -> None:
    assert LOCAL.refusal('GET', {'Host': host}, SECRET) is None


@pytest.mark.parametrize(
    'host', ['evil.example', 'localhost.evil.example:8471', '192.168.0.7:8471', '', '[::1', 'a@b:1']
)
def test_access_refuses_other_hosts_on_loopback(host: str) -> None:
    refusal = LOCAL.refusal('GET', {'Host': host}, SECRET)
    assert refusal is not None and 'no host' in refusal


def test_access_off_loopback_refuses_names_of_other_machines() -> None:
    rule = access_rule('0.0.0.0', SECRET, False)
    assert rule.refusal('GET', {'Host': '192.168.0.7:8471'}, SECRET) is None
    assert rule.refusal('GET', {'Host': 'rebound.example:8471'}, SECRET) is not None


@pytest.mark.parametrize(
    'changed',
    [
        {'Origin': 'http://evil.example'},
        {'Origin': 'http://127.0.0.1:9999'},
        {'Origin': 'https://127.0.0.1:8471'},
        {'Origin': 'null'},
        {'Origin': ''},
        {'Sec-Fetch-Site': 'cross-site'},
        {'Sec-Fetch-Site': 'same-site'},
    ],
)
@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE'])
def test_access_refuses_changes_from_another_origin(method: str, changed: dict[str, str]) -> None:
    rule = LOCAL
    assert rule.refusal(method, OWN, SECRET) is None
    assert rule.refusal(method, OWN | changed, SECRET) is not None


def test_access_refuses_reads_by_other_pages_except_links() -> None:
    rule = LOCAL
    foreign = {'Host': 'localhost:8471', 'Sec-Fetch-Site': 'cross-site'}
    link = {'Sec-Fetch-Mode': 'navigate', 'Sec-Fetch-Dest': 'document'}
    assert rule.refusal('GET', foreign, SECRET) is not None
    assert rule.refusal('GET', foreign | link | {'Sec-Fetch-Dest': 'iframe'}, SECRET) is not None
    assert rule.refusal('GET', foreign | link, SECRET) is None


def test_page_refuses_posts_of_another_origin(live: LiveStudy) -> None:
    page = client(live)
    for path in ('/_dash-update-component', '/', '/anything'):
        for headers in ({'Origin': 'http://evil.example'}, {}):
            reply = page.post(path, base_url=HOST, json={}, headers=headers)
            assert reply.status_code == 403, (path, headers)
    assert page.get('/', base_url='http://evil.example:8471').status_code == 403


@pytest.mark.parametrize('host', ['0.0.0.0', '127.0.0.1', 'localhost'])
def test_page_needs_its_token(live: LiveStudy, host: str) -> None:
    page = client(live, access_rule(host, SECRET, False))
    for path in ('/', '/_dash-layout', '/_dash-dependencies', '/assets/page.css'):
        assert page.get(path, base_url=HOST).status_code == 403
    assert page.get(f'/?token={SECRET}x', base_url=HOST).status_code == 403
    answer = page.get(f'/?token={SECRET}', base_url=HOST)
    assert (answer.status_code, answer.headers['Location']) == (302, '/')
    cookie = answer.headers['Set-Cookie']
    assert cookie.startswith(COOKIE) and f'={SECRET};' in cookie
    assert 'HttpOnly' in cookie and 'SameSite=Strict' in cookie
    assert page.get('/', base_url=HOST).status_code == 200  # The client kept the cookie.


def test_page_names_only_itself_as_a_source(live: LiveStudy) -> None:
    answer = client(live).get('/', base_url=HOST)
    policy = answer.headers['Content-Security-Policy']
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert 'unsafe-eval' not in policy and "script-src 'self' 'unsafe-inline'" not in policy
    assert '//' not in answer.text.partition('<footer>')[0]


def test_page_has_the_small_bundle_of_plotly_for_those_with_its_token(live: LiveStudy) -> None:
    page = client(live, access_rule('0.0.0.0', SECRET, False))
    path = '/_dash-component-suites/plotly/package_data/plotly.min.js'
    assert page.get(path, base_url=HOST).status_code == 403
    page.get(f'/?token={SECRET}', base_url=HOST)
    answer = page.get(path, base_url=HOST)
    assert gzip.decompress(answer.data).decode() == script().text
    assert answer.headers['Content-Encoding'] == 'gzip'


def test_a_page_that_cannot_be_made_says_why_to_those_with_its_token() -> None:
    def broken() -> Application:
        raise UserError('the study is gone')

    page = Client(protected(Lazy(broken), LOCAL))
    assert 'gone' not in page.get('/', base_url=HOST).text
    page.get(f'/?token={SECRET}', base_url=HOST)
    answer = page.get('/trials', base_url=HOST)
    assert (answer.status_code, answer.text) == (503, 'Refused: the study is gone.\n')
    assert "default-src 'self'" in answer.headers['Content-Security-Policy']
