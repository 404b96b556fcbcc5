"""The table of trials without a browser: blocks of rows, and addresses that describe it."""

import json
from typing import Any

import pytest

from paxtune.page.links import MAX_SELECTED, Link, selected
from paxtune.page.live import LiveStudy
from paxtune.page.views import trials
from tests.factories.page_searches import SCRIPT, call, client
from trainer.symbolic.errors import UserError

OUTPUTS = ('trials.getRowsResponse', 'trials-label.children', 'trials-problem.children')
REQUEST = {'startRow': 0, 'endRow': 100, 'sortModel': [], 'filterModel': {}}
COLUMNS = ['trial', 'state', 'loss', 'decisions.kind', 'reason']


def asked(
    live: LiveStudy, request: Any, text: Any = '', columns: Any = COLUMNS, search: Any = ''
) -> tuple[list[dict[str, Any]], str]:
    """Asks for rows as the grid does; returns them, and the message in their place."""
    states = {'filter.value': text, 'columns.value': columns, 'url.search': search}
    reply = call(client(live), OUTPUTS, {'trials.getRowsRequest': request}, states)
    found = reply.json['response']
    made: list[dict[str, Any]] = found['trials']['getRowsResponse']['rowData']
    return made, json.dumps(found['trials-problem']['children'])


def test_rows_are_those_of_the_request_with_texts(live: LiveStudy) -> None:
    made, _ = asked(live, REQUEST)
    assert [row['trial'] for row in made] == [5, 4, 3, 2, 1]
    assert made[3]['loss'] == '0.5000' and made[1]['reason'] == f'{SCRIPT} failed'
    assert {*made[0]} == {'id', 'chosen', *COLUMNS}
    order = [{'colId': 'loss', 'sort': 'asc'}]
    made, _ = asked(live, REQUEST | {'sortModel': order, 'startRow': 1, 'endRow': 3})
    assert [row['trial'] for row in made] == [2, 1]
    where = {'loss': {'filterType': 'number', 'type': 'lessThan', 'filter': 1}}
    made, _ = asked(live, REQUEST | {'filterModel': where}, 'size>2')
    assert [row['trial'] for row in made] == [3]


def test_rows_know_which_trials_the_address_selects(live: LiveStudy) -> None:
    made, _ = asked(live, REQUEST, search='?trials=1,best')
    assert [row['trial'] for row in made if row['chosen']] == [3, 1]


@pytest.mark.parametrize(
    ('request_', 'text', 'columns', 'search'),
    [
        ({}, '', COLUMNS, ''),
        (REQUEST | {'startRow': -1}, '', COLUMNS, ''),
        (REQUEST | {'startRow': 'x'}, '', COLUMNS, ''),
        (REQUEST | {'sortModel': 'x'}, '', COLUMNS, ''),
        (REQUEST | {'sortModel': [{'colId': 'x', 'sort': 'asc'}]}, '', COLUMNS, ''),
        (REQUEST | {'filterModel': [1]}, '', COLUMNS, ''),
        (REQUEST, 'nothing=1', COLUMNS, ''),
        (REQUEST, '', COLUMNS, '?trials=x'),
    ],
)
def test_an_odd_request_for_rows_gets_one_line(
    live: LiveStudy, request_: Any, text: Any, columns: Any, search: Any
) -> None:
    made, problem = asked(live, request_, text, columns, search)
    assert made == [] and '"className": "problem"' in problem and '\\n' not in problem


def test_odd_columns_and_texts_are_no_columns_and_no_filter(live: LiveStudy) -> None:
    odd: list[Any] = [None, 7, [[]], ['nothing']]
    for columns in odd:
        made, _ = asked(live, REQUEST, {'a': 1}, columns)
        assert {*made[0]} == {'id', 'trial', 'chosen'} and len(made) == 5


def test_an_address_describes_the_table(live: LiveStudy) -> None:
    where = json.dumps({'loss': {'filterType': 'number', 'type': 'lessThan', 'filter': 1}})
    link = Link({'sort': ['-loss'], 'where': [where], 'filter': ['size>1'], 'columns': ['loss']})
    made = json.dumps([each.to_plotly_json() for each in trials.layout(live, link)], default=vars)
    assert '"size>1"' in made and '"sort": "desc"' in made and '"lessThan"' in made


@pytest.mark.parametrize(
    'search',
    ['?sort=-nothing', '?where={', '?where=7', '?where={"loss":1}', f'?where={"[" * 9000}'],
)
def test_an_odd_address_gets_one_line(live: LiveStudy, search: str) -> None:
    inputs = {'url.pathname': '/trials'}
    reply = call(client(live), 'view.children', inputs, {'url.search': search})
    problem = reply.json['response']['view']['children']
    assert problem['props']['className'] == 'problem'
    assert '\n' not in problem['props']['children']


def test_selected_trials_are_numbers_or_the_best() -> None:
    assert selected(' 3,7  best,3') == [3, 7, 'best'] and selected('') == []
    many = ','.join(map(str, range(MAX_SELECTED + 1)))
    for odd in ('x', '-1', '1.5', '٣', '1' * 12, many):
        with pytest.raises(UserError):
            selected(odd)
    with pytest.raises(UserError, match='too long'):
        Link.parse('?' + 'a' * 60_000)
    assert Link.parse(None).with_selected([]) == ''
