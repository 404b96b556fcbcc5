"""Studies of users' classes, read where these classes are not imported."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.analysis.trade_off import front_of
from paxtune.experiment import Tunable
from paxtune.objectives.aggregation import LastStep
from paxtune.objectives.rewards import Reward
from paxtune.reports.study_tables import (
    best_of,
    best_trials,
    difference,
    history_of,
    summary,
    trials_of,
)
from paxtune.schedulers import MedianStopping
from paxtune.search_space.constraints import Constraint
from paxtune.search_space.space import Space
from paxtune.simulate.export import curves
from paxtune.storage.open_study import load_study, open_plan
from paxtune.study import export, stand_ins, transfer
from paxtune.study.plan import SearchPlan
from search_spaces.tunable_lm import Tiny
from tests.factories.studies import rename_module
from tests.factories.tunables import Rates
from trainer.layers import FeedForward, Layer, Residual
from trainer.symbolic.errors import UserError

ROOT = Path(__file__).parents[3]
GONE = 'gone_layers'


class Window(Layer):
    """A layer of a user."""

    size: int
    power: float = 1.0
    inner: Layer = FeedForward()

    def forward(self, x: jax.Array, *_: Any) -> jax.Array:
        return x


class Own(Tunable):
    """An experiment class of a user."""

    note: str = 'none'


class OwnReward(Reward):
    """A reward of a user."""

    metric: str = 'eval/log_pplx'

    def compute(self, metrics: Mapping[str, float]) -> float:
        return 2 * metrics[self.metric]


class OwnAlgorithm(RandomSearch):
    """An algorithm of a user."""


class OwnScheduler(MedianStopping):
    """A scheduler of a user."""


class OwnAggregation(LastStep):
    """An aggregation of a user."""


class OwnConstraint(Constraint):
    """A constraint of a user."""

    def require(self, experiment: Any) -> None:
        pass


OWN_SEARCH = {
    'search.objective': OwnReward('maximize'),
    'search.algorithm': OwnAlgorithm(),
    'search.scheduler': OwnScheduler(),
    'search.metric_aggregation': OwnAggregation(),
    'search.constraints': [OwnConstraint()],
}


def windows(kind: type[Tunable] = Tunable) -> Tunable:
    made = kind(**dict(Rates().sym_init_args))
    if kind is Own:
        made = made.rebind(OWN_SEARCH)
    kinds = [
        Residual(Window(pg.oneof([2, 8]))),
        Residual(Window(4, inner=FeedForward(8))),
        Window(pg.oneof([1, 3]), power=2.0),
    ]
    layers = [*made.task.model.stack.layers, pg.oneof(kinds)]
    return made.rebind({'task.model.stack.layers': layers, 'search.seed': 3})


def lose_classes(directory: Path) -> None:
    with load_study(directory, read_only=False) as study:
        rename_module(study, __name__, GONE)


@pytest.fixture(scope='module', params=[Tunable, Own])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with three trials, one of them completed."""
    directory = tmp_path_factory.mktemp('made')
    plan = SearchPlan.compile(windows(request.param), exp='mine.Windows')
    with open_plan(directory, plan) as study:
        for _ in range(3):
            trial = study.ask()
        assert trial is not None
        study.tell(trial, {'eval/log_pplx': 2.5, 'eval/loss': 1.5})
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_all_tables_are_the_same_without_the_classes(directory: Path) -> None:
    def shown() -> list[Any]:
        with load_study(directory) as study:
            facts = [summary(study).data, trials_of(study).data, export.export(study)['trials']]
            facts += [best_of(study, best_trials(study), '').data, curves(study)]
            facts += [front_of(study, 'eval/loss', None), study.best and study.best.scores]
            return [*facts, [trial.directory for trial in study.trials], study.space.paths]

    known = shown()
    lose_classes(directory)
    assert shown() == known
    assert known[0]['experiment'] == 'mine.Windows'
    names = {json.dumps(trial['decisions']) for trial in known[2]}
    assert any('Window' in name for name in names)


def test_experiments_need_the_classes_whose_module_is_named(directory: Path) -> None:
    lose_classes(directory)
    missing = rf'{GONE}\..* not imported: pass --exp=mine.Windows, or import {GONE}'
    with load_study(directory) as study:
        with pytest.raises(UserError, match=missing):
            study.trials[0].materialize()
        assert any(f'import {GONE}' in text for text in history_of(study, 1).remark.split('\n'))
    with pytest.raises(UserError, match=missing):
        load_study(directory, read_only=False)


def test_classes_of_a_script_or_notebook_cannot_be_imported(directory: Path) -> None:
    with load_study(directory, read_only=False) as study:
        rename_module(study, __name__, '__main__')
    with pytest.raises(UserError, match='open the study in the script or notebook'):
        load_study(directory, read_only=False)


def test_an_exported_study_names_the_classes(directory: Path) -> None:
    lose_classes(directory)
    with load_study(directory) as study:
        found = export.export(study)
        assert f'{GONE}.Window' in json.dumps(found['experiment'])
        assert found['search'] == found['experiment']['search']
        assert 'StandIn' not in json.dumps(found)


def test_the_decisions_of_two_trials_are_compared_without_the_classes(directory: Path) -> None:
    lose_classes(directory)
    with load_study(directory) as study:
        before, after = (study.trial(number).decisions for number in (1, 2))
        found = difference(study, 1, 2)
        paths = {path for path in before | after if before.get(path) != after.get(path)}
        assert {row['path'] for row in found.data['differences']} == paths != set()
        assert f'import {GONE}' in found.remark


def test_defaults_of_users_classes_are_stored_and_no_others() -> None:
    found = stand_ins.defaults(windows())
    assert {*found} == {f'{__name__}.Window', 'tests.factories.tiny.CountingInput'}
    assert found[f'{__name__}.Window']['power'] == 1.0
    assert 'size' not in found[f'{__name__}.Window']
    assert stand_ins.defaults(Tiny()) == {}


@pytest.mark.parametrize('name', ['type', 'function', 'not a.name', 'a..b', ''])
def test_names_that_are_no_class_have_no_stand_in(name: str) -> None:
    text = json.dumps({'_type': 'paxtune.Tunable', 'task': {'_type': name, 'value': 'os.system'}})
    assert stand_ins.missing_classes(text) == []
    assert stand_ins.with_stand_ins(text, {}) == text


def test_a_prior_study_needs_its_classes_where_their_values_are_read(directory: Path) -> None:
    lose_classes(directory)
    with load_study(directory) as source:
        assert len(list(transfer.carried(source, source.space))) == 1
        with pytest.raises(UserError, match=f'import {GONE}'):
            list(transfer.carried(source, Space(pg.Dict(other=pg.oneof([1, 2])))))


MODULE = """
import sys

from tests.paxtune.study.test_stand_ins import create
from trainer.layers import FeedForward


class Mine(FeedForward):
    extra: int = 3


if __name__ == '__main__':
    from mine import Mine

    create(sys.argv[1], Mine(8))
"""


def create(directory: str, layer: Layer) -> None:
    experiment = Rates().rebind({'task.model.stack.layers': [Residual(layer)]})
    plan = SearchPlan.compile(experiment, exp='mine.Exp')
    with open_plan(directory, plan) as study:
        study.add({})


@pytest.mark.slow
def test_commands_show_a_study_where_its_module_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text(MODULE)
    (tmp_path / 'elsewhere').mkdir()

    def run(folder: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path / folder,
            env=os.environ | {'PYTHONPATH': str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
        )

    made = run('.', 'mine.py', 'study')
    assert made.returncode == 0, made.stderr
    shown = run('elsewhere', '-m', 'paxtune.studies', 'show', '../study')
    assert 'mine.Exp' in shown.stdout, shown.stderr
    for flags in (
        ('paxtune.studies', 'retry', '../study', '1'),
        ('paxtune.train', '--study_dir=../study', '--trial=1', '--job_log_dir=again'),
    ):
        refused = run('elsewhere', '-m', *flags)
        assert 'the classes mine.Mine' in refused.stderr
        assert 'pass --exp=mine.Exp, or import mine' in refused.stderr
        assert refused.returncode == 2
