"""Our studies in Optuna's dashboard: its own server, which a client asks as a browser does."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage
from optuna_dashboard import wsgi

from tests.factories.toys import OBJECTIVES
from tests.paxtune.study.test_optuna_study import conditional
from tests.servers import threads

pytestmark = pytest.mark.slow


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(storage: str | BaseStorage) -> Iterator[str]:
    """Serves the dashboard of a storage at a free port of the loopback device."""
    with threads.serving(make_server('127.0.0.1', 0, wsgi(storage), handler_class=Quiet)) as port:
        yield f'http://127.0.0.1:{port}'


def read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        text = reply.read().decode()
    return json.loads(text) if '/api/' in url else text


@pytest.mark.filterwarnings('ignore')  # Its plots are experimental parts of Optuna.
@pytest.mark.parametrize('is_database', [True, False])
def test_the_dashboard_shows_the_trials_of_a_study(tmp_path: Path, is_database: bool) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = conditional()
    study.add({'rate': 0.01, 'layer': None})
    storage = f'sqlite:///{tmp_path}/optuna.db' if is_database else InMemoryStorage()
    made = study.to_optuna(storage, 'toy')
    conditional(objective=OBJECTIVES).to_optuna(storage, 'two')
    with served(storage) as where:
        assert '<html' in read(f'{where}/dashboard')
        found = {
            each['study_name']: each['study_id']
            for each in read(f'{where}/api/studies')['study_summaries']
        }
        assert set(found) == {'toy', 'two'}
        one, two = (f'{where}/api/studies/{found[name]}' for name in ('toy', 'two'))
        shown = read(one)
        assert [each['state'] for each in shown['trials']] == [
            *['Complete'] * 13, 'Pruned', 'Fail', 'Running', 'Waiting',
        ]  # fmt: skip
        for ours, theirs in zip(study.trials, shown['trials'], strict=True):
            key = 'fixed_params' if theirs['state'] == 'Waiting' else 'params'
            given = {each['name']: each['param_external_value'] for each in theirs[key]}
            assert given == {name: str(value) for name, value in ours.decisions.items()}
            assert theirs.get('values', []) == list(ours.rewards)
            values = [(each['step'], each['value']) for each in theirs['intermediate_values']]
            assert values == [(each.step, each.reward) for each in ours.measurements]
        assert [each['number'] for each in shown['best_trials']] == [made.best_trial.number]
        union = {each['name'] for each in shown['union_search_space']}
        assert union == {'rate', 'layer', 'layer.heads', 'layer.width', 'widths[0]', 'widths[1]'}
        (importances,) = read(f'{one}/param_importances')['param_importances']
        assert {each['name'] for each in importances} == union
        assert all(len(each['values']) == 2 for each in read(two)['best_trials'])
        assert len(read(f'{two}/param_importances')['param_importances']) == 2
        for kind in ('contour', 'slice', 'parallel_coordinate', 'rank', 'edf', 'timeline'):
            assert read(f'{one}/plot/{kind}')['data'], kind
        assert len(read(f'{where}/csv/{found["toy"]}').splitlines()) == len(study.trials) + 1
