"""The page of all studies below a directory: its list, its addresses, its comparison."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from paxtune import Budget, MetricReward, Search
from paxtune.page import live_studies
from paxtune.page.access import access_rule
from paxtune.page.front import protected
from paxtune.page.live_studies import LiveStudies, key_of
from paxtune.page.server import study_app
from paxtune.page.studies import StudiesPage
from paxtune.storage.open_study import open_study
from tests.factories.page_searches import HOST, SCRIPT, SEARCH, SPACE, TOKEN, call, make_study

VERSION = {'version.data': ''}
RULE = access_rule('127.0.0.1', TOKEN, False)


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies, one with markup in its name, and a damaged one."""
    directory = tmp_path_factory.mktemp('runs')
    make_study(directory / 'lm' / 'first')
    shutil.copytree(directory / 'lm' / 'first', directory / '<b>bold</b>')
    (directory / 'broken').mkdir()
    (directory / 'broken' / 'study.db').write_text('no database')
    return directory


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[Client, LiveStudies, Clock]]:
    """A client, with the token, of the page of a directory."""
    clock = Clock()
    with contextlib.closing(LiveStudies(str(root), '/', study_app, clock=clock)) as studies:
        page = Client(protected(StudiesPage(studies), RULE))
        page.get(f'/?token={TOKEN}', base_url=HOST)
        yield page, studies, clock


@pytest.fixture(scope='module')
def page(root: Path) -> Iterator[Client]:
    """The same, for tests that change nothing."""
    with served(root) as (page, _, _):
        yield page


def _listed(page: Client) -> str:
    return str(call(page, 'studies-live.children', VERSION).json)


def test_list_has_a_link_for_each_study_and_the_reason_of_a_damaged_one(page: Client) -> None:
    text = _listed(page)
    for expected in ('/study/lm:first/', '4 of 100', 'lm/first', 'broken', 'damaged'):
        assert expected in text
    assert 'no database' in text or 'not a database' in text
    assert '/study/broken' not in text


def test_each_study_is_below_an_address_of_its_own(page: Client) -> None:
    assert 'first' in page.get('/study/lm:first/trials', base_url=HOST).text
    base = '/study/lm:first/'
    place = {'url.pathname': f'{base}trials', 'url.search': ''}
    links = call(page, 'nav.children', place, {}, base).json['response']['nav']['children']
    assert f'{base}trials' in [link['props']['href'] for link in links]
    best = str(call(page, 'overview-live.children', VERSION, {}, base).json)
    assert f'{base}trial/3' in best
    layout = page.get(f'{base}_dash-layout', base_url=HOST).text
    assert 'All studies' in layout and '"first"' in layout


@pytest.mark.parametrize(
    'path',
    [
        '/study/..%2f..%2fetc/', '/study/../', '/study/lm/first/', '/study/broken/', '/study//',
        '/study/lm:first:..:first/', '/study/%00/', f'/study/{"x" * 5000}/',
    ],
)  # fmt: skip
def test_other_names_open_nothing(page: Client, path: str) -> None:
    answer = page.get(path, base_url=HOST)
    assert answer.status_code == 404, answer.text
    assert answer.text.startswith('Refused: ') and answer.text.count('\n') == 1


def test_markup_in_a_name_is_text(page: Client) -> None:
    answer = call(page, 'studies-live.children', VERSION)
    assert answer.mimetype == 'application/json' and '<b>bold</b>' in str(answer.json)
    key = key_of('<b>bold</b>')
    assert key == '~3Cb~3Ebold~3C:b~3E'
    shown = page.get(f'/study/{key}/', base_url=HOST).text
    assert '<b>bold' not in shown and SCRIPT not in shown


def test_a_name_that_is_no_utf_8_is_a_row_with_the_reason(tmp_path: Path) -> None:
    make_study(tmp_path / 'plain')
    os.rename(tmp_path / 'plain', os.fsencode(tmp_path) + b'/a\xff')
    with served(tmp_path) as (page, _, _):
        assert 'damaged' in _listed(page)
        answer = page.get('/study/a~FF/', base_url=HOST)
        assert answer.status_code == 404 and answer.text.count('\n') == 1


def test_keys_differ_for_all_names() -> None:
    names = ['a/b', 'a:b', 'a~2Fb', 'a b', 'a~20b', '.', '~', 'ä', 'a', 'A']
    assert len({*map(key_of, names)}) == len(names)


def test_every_study_needs_the_token_and_the_host(root: Path) -> None:
    with contextlib.closing(LiveStudies(str(root), '/', study_app)) as studies:
        page = Client(protected(StudiesPage(studies), RULE))
        for path in ('/', '/compare', '/study/lm:first/', '/study/nothing/', '/study/broken/'):
            assert page.get(path, base_url=HOST).status_code == 403, path
            foreign = page.get(f'{path}?token={TOKEN}', base_url='http://evil.example')
            assert foreign.status_code == 403
        moved = page.get(f'/study/lm:first/trials?token={TOKEN}&sort=loss', base_url=HOST)
        assert moved.headers['Location'] == '/study/lm:first/trials?sort=loss'
        assert 'Path=/;' in moved.headers['Set-Cookie']
        refused = page.post('/study/lm:first/_dash-update-component', base_url=HOST, json={})
        assert refused.status_code == 403


def test_a_base_path_is_before_the_address_of_a_study(root: Path) -> None:
    rule = access_rule('127.0.0.1', TOKEN, False, '/tuner/')
    with contextlib.closing(LiveStudies(str(root), '/tuner/', study_app)) as studies:
        page = Client(protected(StudiesPage(studies), rule))
        page.get(f'/tuner/?token={TOKEN}', base_url=HOST)
        text = page.get('/tuner/study/lm:first/', base_url=HOST).text
        assert '"/tuner/study/lm:first/assets/page.js"' in text
        listed = str(call(page, 'studies-live.children', VERSION, {}, '/tuner/').json)
        assert '/tuner/study/lm:first/' in listed


def test_studies_that_appear_later_appear(tmp_path: Path) -> None:
    with served(tmp_path) as (page, studies, clock):
        assert 'no studies' in _listed(page)
        before = studies.version()
        make_study(tmp_path / 'new')
        clock.now += 1.0
        assert studies.version() != before
        assert '/study/new/' in _listed(page)
        assert page.get('/study/new/', base_url=HOST).status_code == 200
        shutil.rmtree(tmp_path / 'new')
        clock.now += 1.0
        assert page.get('/study/new/', base_url=HOST).status_code == 404


def _grow(directory: Path) -> None:
    """Adds a trial; the study hands out the open ones before."""
    with open_study(directory, SPACE, search=SEARCH) as study:
        before = len(study.trials)
        while len(study.trials) == before:
            study.ask()


def test_the_list_follows_a_study(tmp_path: Path) -> None:
    make_study(tmp_path / 'one')
    with served(tmp_path) as (page, studies, clock):
        assert studies.rows()['one']['trials'] == 5
        _grow(tmp_path / 'one')
        clock.now += 1.0
        assert studies.rows()['one']['trials'] == 6
        page.get('/study/one/', base_url=HOST)  # An open study is read no second time.
        _grow(tmp_path / 'one')
        clock.now += 1.0
        assert studies.rows()['one']['trials'] == 7


def test_at_most_twelve_studies_are_open(tmp_path: Path) -> None:
    make_study(tmp_path / '0')
    for number in range(1, live_studies.MAX_OPEN + 2):
        shutil.copytree(tmp_path / '0', tmp_path / str(number))
    with served(tmp_path) as (page, studies, _):
        for number in range(live_studies.MAX_OPEN + 2):
            assert page.get(f'/study/{number}/', base_url=HOST).status_code == 200
        assert studies.num_open == live_studies.MAX_OPEN
        assert page.get('/study/0/', base_url=HOST).status_code == 200


def _compared(page: Client, name: str, keys: Any) -> Any:
    outputs = (f'figure-{name}.figure', f'drawn-{name}.data')
    inputs = {**VERSION, 'compared.value': keys}
    reply = call(page, outputs, inputs, {f'drawn-{name}.data': None})
    return reply.json['response'][f'figure-{name}']['figure']


def test_studies_are_compared_by_trials_and_by_time(page: Client) -> None:
    keys = ['lm:first', key_of('<b>bold</b>')]
    by_trials, by_hours = (
        _compared(page, name, keys) for name in ('best-by-trials', 'best-by-hours')
    )
    for made in (by_trials, by_hours):
        assert [each['name'] for each in made['data']] == ['lm/first', '&lt;b&gt;bold&lt;/b&gt;']
    assert by_trials['data'][0]['x'] != by_hours['data'][0]['x']
    assert by_hours['layout']['xaxis']['title']['text'] == 'hours'


@pytest.mark.parametrize('keys', [None, [], ['nothing'], ['../..'], 7, [None, {}], ['broken']])
def test_an_odd_choice_of_studies_is_a_line_of_text(page: Client, keys: Any) -> None:
    assert not _compared(page, 'best-by-trials', keys)['data']
    answer = call(page, 'compared-remark.children', {**VERSION, 'compared.value': keys})
    assert 'Traceback' not in answer.text


def test_studies_of_another_reward_are_left_out(tmp_path: Path) -> None:
    make_study(tmp_path / 'first')
    other = Search(MetricReward('maximize', 'accuracy'), Budget(100))
    with open_study(tmp_path / 'second', SPACE, search=other) as study:
        trial = study.ask()
        assert trial is not None
        trial.report(1, {'accuracy': 0.5})
        study.tell(trial)
    with served(tmp_path) as (page, _, _):
        keys = ['first', 'second']
        assert len(_compared(page, 'best-by-trials', keys)['data']) == 1
        text = call(page, 'compared-remark.children', {**VERSION, 'compared.value': keys}).text
        assert 'second is left out: it has accuracy' in text


def test_the_choice_of_studies_is_in_the_address(page: Client) -> None:
    key = key_of('<b>bold</b>')
    reply = call(page, 'url.search', {'compared.value': ['lm:first', key]}, {'url.search': ''})
    search = reply.json['response']['url']['search']
    assert search == f'?studies=lm:first,{key}'
    both = ('compared.options', 'compared.value')
    states = {'compared.value': None, 'url.search': search}
    chosen = call(page, both, VERSION, states).json['response']['compared']
    assert chosen['value'] == ['lm:first', key]
    assert 'broken' not in [each['label'] for each in chosen['options']]
