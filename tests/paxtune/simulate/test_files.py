"""Tables in files, whole and damaged ones."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paxtune import Budget, MetricReward, Search
from paxtune.algorithms import RandomSearch
from paxtune.simulate.export import curves
from paxtune.simulate.files import read
from paxtune.storage.open_study import open_study
from tests.factories import toys
from tests.factories.studies import run_all_kinds
from trainer.symbolic.errors import UserError

NAMES = np.array(['rate', 'beta1'])
HP = np.array([[1e-4, 0.9], [1e-2, 0.99], [1e-3, 0.5]])
LOSS = np.array([[3.0, 2.0, 1.0], [3.0, math.nan, 5.0], [4.0, 3.0, 2.5]], np.float32)


def arrays(path: Path, **changes: Any) -> str:
    file = path / 'table.npz'
    given = {'hp_names': NAMES, 'hp': HP, 'loss': LOSS} | changes
    np.savez(file, **{name: each for name, each in given.items() if each is not None})
    return str(file)


def exported(path: Path) -> dict[str, Any]:
    """The curves of a study with a trial of each kind."""
    with open_study(None, toys.toy()) as study:
        run_all_kinds(study)
        trial = study.ask()
        assert trial is not None
        trial.report(10, {'loss': 1.0, 'accuracy': 0.5})
        trial.report(20, {'loss': 0.5, 'accuracy': 0.5})
        trial.complete()
        content: dict[str, Any] = json.loads(curves(study))
    return content


def written(path: Path, content: Any) -> str:
    file = path / 'table.json'
    file.write_text(json.dumps(content))
    return str(file)


def test_arrays_are_read(tmp_path: Path) -> None:
    table = read(arrays(tmp_path), 'loss', 'minimize')
    assert [row.end for row in table.rows] == [1.0, None, 2.5]
    first, diverging, _ = table.rows
    assert first.decisions == {'rate': 1e-4, 'one_minus_beta1': pytest.approx(0.1)}
    assert [(each.step, each.reward) for each in first.measurements] == [
        (1, 3.0),
        (2, 2.0),
        (3, 1.0),
    ]
    # What it did until it diverged has been paid for.
    assert len(diverging.measurements) == 1 and diverging.resources['steps'] == [1.0, 2.0]
    assert (table.goal, table.metric, table.unit, table.best) == ('minimize', 'loss', 'steps', 1.0)


def test_the_curves_of_a_study_are_read_back(tmp_path: Path) -> None:
    content = exported(tmp_path)
    assert [each['ended'] for each in content['trials']] == [
        'completed',
        'stopped',
        'infeasible',
        'completed',
    ]
    table = read(written(tmp_path, content))
    assert (table.goal, table.metric, table.left_out) == ('minimize', 'loss', 1)
    completed, infeasible, last = table.rows
    assert completed.decisions == content['trials'][0]['decisions']
    assert [each.step for each in last.measurements] == [10, 20]
    assert last.measurements[-1].reward == last.end == 0.5
    assert infeasible.end is None and not infeasible.measurements


def test_spent_resources_are_exported_where_measured(tmp_path: Path) -> None:
    with open_study(None, toys.toy()) as study:
        for number in range(3):
            trial = study.ask()
            assert trial is not None
            for step in (10, 20):
                measured = {'spent_tokens': 8.0 * step, 'spent_seconds': 0.5 * step}
                trial.report(step, {'loss': 1.0 / step + number} | measured)
            if number == 2:
                trial.fail('it diverged')
            else:
                trial.complete()
        path = written(tmp_path, json.loads(curves(study)))
    table = read(path)
    assert (table.units, table.unit) == (['steps', 'tokens', 'seconds'], 'seconds')
    assert table.rows[0].resources['tokens'] == [80.0, 160.0]
    assert table.rows[2].resources['seconds'] == [5.0, 10.0, 15.0]


def test_a_study_of_several_objectives_has_no_curves() -> None:
    search = Search(None, budget=Budget(2), algorithm=RandomSearch())
    study = open_study(None, toys.toy(search=search))
    with study, pytest.raises(UserError, match='one reward'):
        curves(study)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'hp': None}, "expected an array 'hp'"),
        ({'loss': None}, "expected an array 'loss'"),
        ({'hp_names': np.array(['rate'])}, r'hp: expected finite numbers \[n, d\]'),
        ({'hp_names': np.array(['x', 'x'])}, 'hp_names: expected names that differ'),
        ({'hp_names': np.array([1, 2])}, 'hp_names: expected texts'),
        ({'hp': HP * math.nan}, 'hp: expected finite numbers'),
        ({'loss': LOSS[0]}, r'loss: expected numbers \[n, t\]'),
        ({'loss': LOSS[:2]}, r'loss: expected numbers \[n, t\]'),
        ({'loss': LOSS[:, :0]}, r'loss: expected numbers \[n, t\]'),
        ({'hp': np.array([[object()] * 2] * 3)}, 'expected arrays of numbers'),
    ],
)
def test_damaged_arrays_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = arrays(tmp_path, **changes)
    with pytest.raises(UserError, match=message) as raised:
        read(path, 'loss', 'minimize')
    assert str(raised.value).startswith(path)


@pytest.mark.parametrize('share', [0.0, 0.3, 0.9])
def test_truncated_files_are_refused(share: float, tmp_path: Path) -> None:
    path = Path(arrays(tmp_path))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match='expected arrays of numbers'):
        read(str(path), 'loss', 'minimize')


def test_a_single_array_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / 'table.npz'
    with path.open('wb') as file:
        np.save(file, HP)
    with pytest.raises(UserError, match=f'^{path}: '):
        read(str(path), 'loss', 'minimize')


def changed(content: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    inner: Any = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return content


@pytest.mark.parametrize(
    ('path', 'to', 'message'),
    [
        (('format',), 'other', 'with the format'),
        (('goal',), 'up', r'`\$\.goal`'),
        (('metric',), None, r'`\$\.metric`'),
        (('trials',), {}, r'`\$\.trials`'),
        (('trials', 0), 1, r'`\$\.trials\[0\]`'),
        (('trials', 0, 'ended'), 'lost', r'`\$\.trials\[0\]\.ended`'),
        (('trials', 0, 'end'), None, r'trials\[0\].end: '),
        (('trials', 0, 'decisions'), [1], r'`\$\.trials\[0\]\.decisions`'),
        (('trials', 0, 'decisions'), {'x': [1]}, r'`\$\.trials\[0\]\.decisions\[\.\.\.\]`'),
        (('trials', 0, 'rewards'), [], r'trials\[0\].rewards: expected at least one'),
        (('trials', 0, 'rewards'), ['1'] * 2, r'`\$\.trials\[0\]\.rewards\[0\]`'),
        (('trials', 0, 'rewards'), [math.nan] * 2, r'`\$\.trials\[0\]\.rewards\[0\]`'),
        (('trials', 0, 'steps'), None, r'`\$\.trials\[0\]\.steps`'),
        (('trials', 0, 'steps'), [10], r'trials\[0\].steps: expected 2 numbers'),
        (('trials', 0, 'steps'), [20, 10], r'trials\[0\].steps: '),
        (('trials', 0, 'steps'), [10, 10], r'trials\[0\].steps: '),
        (('trials', 0, 'steps'), [1e400, 10], r'`\$\.trials\[0\]\.steps\[0\]`'),
        (('trials', 0, 'seconds'), [-1, 2], r'`\$\.trials\[0\]\.seconds\[0\]`'),
    ],
)
def test_damaged_curves_are_refused(
    path: tuple[Any, ...], to: Any, message: str, tmp_path: Path
) -> None:
    file = written(tmp_path, changed(exported(tmp_path), *path, to=to))
    with pytest.raises(UserError, match=message) as raised:
        read(file)
    assert str(raised.value).startswith(file)


def test_flags_must_suit_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='--metric=NAME and --goal'):
        read(arrays(tmp_path))
    with pytest.raises(UserError, match='leave out --metric and --goal'):
        read(written(tmp_path, exported(tmp_path)), 'loss')
    with pytest.raises(UserError, match=r'expected an \.npz file'):
        read('table.csv')
    with pytest.raises(UserError, match=r'/nowhere\.npz'):
        read('/nowhere.npz', 'loss', 'minimize')
    with pytest.raises(UserError, match=r'/nowhere\.json'):
        read('/nowhere.json')


def test_rewards_keep_their_goal() -> None:
    search = Search(MetricReward('maximize', 'accuracy'), Budget(4), RandomSearch())
    with open_study(None, toys.toy(search=search)) as study:
        run_all_kinds(study)
        assert json.loads(curves(study))['goal'] == 'maximize'
