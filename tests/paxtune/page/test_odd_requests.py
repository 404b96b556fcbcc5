"""Requests that no view of the study page makes: one line for each, and a bounded log."""

import json
import logging
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from paxtune.page import failures
from paxtune.page.live import LiveStudy
from tests.factories.page_searches import HOST, client

NAV: dict[str, Any] = {
    'output': 'nav.children',
    'outputs': {'id': 'nav', 'property': 'children'},
    'inputs': [
        {'id': 'url', 'property': 'pathname', 'value': '/trials'},
        {'id': 'url', 'property': 'search', 'value': ''},
    ],
    'changedPropIds': ['url.pathname'],
}
DOWNLOAD = {
    'output': '..csv.data...csv-problem.children..',
    'outputs': [{'id': 'csv', 'property': 'data'}, {'id': 'csv-problem', 'property': 'children'}],
    'inputs': [{'id': 'download', 'property': 'n_clicks', 'value': 1}],
    'state': [
        {'id': 'trials', 'property': 'getRowsRequest', 'value': 'no request'},
        {'id': 'filter', 'property': 'value', 'value': ''},
    ],
}


def _of_path(value: Any) -> dict[str, Any]:
    return {**NAV, 'inputs': [{**NAV['inputs'][0], 'value': value}, NAV['inputs'][1]]}


def posted(page: FlaskClient, body: Any) -> TestResponse:
    data = body if isinstance(body, str) else json.dumps(body)
    return page.post(
        '/_dash-update-component',
        base_url=HOST,
        data=data,
        content_type='application/json',
        headers={'Origin': HOST},
    )


def _one_line(answer: TestResponse) -> bool:
    return answer.text.startswith('Refused: ') and answer.text.count('\n') == 1


def test_a_request_of_a_view_is_answered(live: LiveStudy) -> None:
    assert posted(client(live), NAV).status_code == 200


@pytest.mark.parametrize(
    'body',
    [
        {}, None, [], 7, 'text', '', '{', '[' * 100_000, {'output': {}},
        {'output': 'nowhere.children'}, {'output': 'nav.children'}, {**NAV, 'inputs': {}},
        {**NAV, 'inputs': [None]},
        {**NAV, 'inputs': [[NAV['inputs']]]}, {**NAV, 'inputs': NAV['inputs'] * 2},
        {**NAV, 'state': 'x'}, _of_path({}), _of_path(None), _of_path(7), _of_path(['/trials']),
    ],
    ids=lambda body: json.dumps(body)[:60],
)  # fmt: skip
def test_an_odd_callback_is_refused_in_one_line(
    live: LiveStudy, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = posted(client(live), body)
    assert answer.status_code == 400 and _one_line(answer), answer.text
    assert not caplog.records


def test_a_giant_request_is_refused_in_one_line(live: LiveStudy) -> None:
    answer = posted(client(live), json.dumps('x' * 2**23))
    assert answer.status_code == 413 and _one_line(answer)


def test_a_callback_that_fails_logs_a_line_and_no_traceback(
    live: LiveStudy, caplog: pytest.LogCaptureFixture
) -> None:
    page = client(live)
    answers = [posted(page, DOWNLOAD) for _ in range(60)]
    assert {each.status_code for each in answers} == {500} and all(map(_one_line, answers))
    lines = [record.getMessage() for record in caplog.records]
    assert 20 <= len(lines) < 40  # A burst, and then one a second.
    assert all('AttributeError' in line and '\n' not in line for line in lines)
    assert not any(record.exc_info for record in caplog.records)


def test_tracebacks_of_the_web_server_become_lines(caplog: pytest.LogCaptureFixture) -> None:
    failures.log_lines_of('test.werkzeug')
    for _ in range(60):
        logging.getLogger('test.werkzeug').error('Error on request:\nTraceback\n\x1b[2J: broken')
    lines = {record.getMessage() for record in caplog.records}
    assert lines == {'The page: \\x1b[2J: broken'} and len(caplog.records) < 40
