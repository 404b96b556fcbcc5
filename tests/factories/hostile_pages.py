"""A study with hostile text, and its page without a browser."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyglove as pg
from flask.testing import FlaskClient

from paxtune import Budget, MetricReward, Search
from paxtune.page.access import Access
from paxtune.page.commands import StudyCommands
from paxtune.page.live import LiveStudy
from paxtune.page.server import access_rule, make_app
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import open_study

SCRIPT = '<script>alert(1)</script>'
HOST = 'http://127.0.0.1:8471'
SPACE = pg.Dict(rate=pg.floatv(1e-4, 1e-1, 'log'), kind=pg.oneof(['plain', SCRIPT]))
SEARCH = Search(MetricReward('minimize', 'loss'), Budget(100))


def make_study(directory: Path, count: int = 4) -> None:
    """Makes a study: the last trial is infeasible, and one more runs."""
    with open_study(directory, SPACE, search=SEARCH) as study:
        for number in range(1, count + 1):
            trial = study.ask()
            assert trial is not None
            if number == count:
                study.tell(trial, infeasible=f'{SCRIPT} failed')
            else:
                trial.report(1, {'loss': 1.0 / number, 'size': number})
                study.tell(trial)
        trial = study.ask()
        assert trial is not None
        trial.report(1, {'loss': 0.5, 'size': 0})


def opened(directory: Path) -> LiveStudy:
    """Opens the study of a directory for a page."""
    return LiveStudy(DirectoryLocation(str(directory)), [str(directory)])


def client(live: LiveStudy, access: Access | None = None) -> FlaskClient:
    """Makes a client of the page of a study, on loopback by default."""
    commands = StudyCommands([str(live.where)])
    app = make_app(live, commands, access or access_rule('127.0.0.1', None, False))
    return app.server.test_client()


def call(
    client: FlaskClient,
    output: str | tuple[str, ...],
    inputs: Mapping[str, Any],
    states: Mapping[str, Any] = {},
) -> Any:
    """Calls a callback as the page does, and returns the reply.

    Args:
        client: of the page.
        output: `id.property`, or several of a callback that has several.
        inputs: by `id.property`.
        states: likewise.
    """

    def entries(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        parts = [(*key.rsplit('.', 1), value) for key, value in values.items()]
        return [{'id': id_, 'property': name, 'value': value} for id_, name, value in parts]

    def named(each: str) -> dict[str, str]:
        id_, _, name = each.rpartition('.')
        return {'id': id_, 'property': name.partition('@')[0]}

    body = {
        'output': output if isinstance(output, str) else f'..{"...".join(output)}..',
        'outputs': named(output) if isinstance(output, str) else [*map(named, output)],
        'inputs': entries(inputs),
        'state': entries(states),
        'changedPropIds': list(inputs),
    }
    reply = client.post(
        '/_dash-update-component',
        base_url=HOST,
        data=json.dumps(body),
        content_type='application/json',
        headers={'Origin': HOST, 'Sec-Fetch-Site': 'same-origin'},
    )
    assert reply.status_code == 200, reply.text
    return reply
