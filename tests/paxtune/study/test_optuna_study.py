"""Studies as studies of Optuna."""

import datetime
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optuna
import pyglove as pg
import pytest
from matplotlib import pyplot
from optuna import visualization as plots
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.terminator import BestValueStagnationEvaluator
from optuna.trial import TrialState

from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, run_all_kinds
from tests.factories.toys import OBJECTIVES, Block, Dense, search, toy
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def conditional(**fields: Any) -> Study:
    """A study with conditional parameters, and trials of every state."""
    layer = pg.oneof([Block(pg.oneof([1, 2, 4])), Dense(intv(2, 64, 'log')), None])
    study = open_study(None, toy(layer=layer, search=search(budget=Budget(40), **fields)))
    for _ in range(12):
        finish(ask(study))
    run_all_kinds(study)
    return study


def test_trials_keep_their_states_parameters_values_and_times() -> None:
    study = conditional()
    study.set_metadata({'owner': 'me'})
    made = study.to_optuna(name='toy')
    assert made.study_name == 'toy'
    assert made.user_attrs == {'owner': 'me'}
    assert made.direction is optuna.study.StudyDirection.MINIMIZE
    assert made.metric_names == ['loss']
    assert [trial.state.name for trial in made.trials] == [
        *['COMPLETE'] * 13, 'PRUNED', 'FAIL', 'RUNNING',
    ]  # fmt: skip
    assert study.best is not None and made.best_trial.user_attrs['trial'] == study.best.id
    for ours, theirs in zip(study.trials, made.trials, strict=True):
        assert theirs.params == ours.decisions
        assert theirs.values == (list(ours.rewards) or None)
        assert theirs.intermediate_values == {m.step: m.reward for m in ours.measurements}
        assert theirs.datetime_start is not None
        assert abs(theirs.datetime_start.astimezone() - ours.created) < datetime.timedelta(
            minutes=1
        )
        assert (theirs.datetime_complete is None) == (ours.completed is None)
    completed, _, failed, running = made.trials[-4:]
    assert completed.user_attrs['metrics.accuracy'] == study.trials[12].metrics['accuracy']
    assert failed.user_attrs['reason'] == 'no memory'
    assert running.intermediate_values == {10: 3.0}


def test_distributions_are_those_of_the_decisions() -> None:
    found = conditional().to_optuna().trials
    domains = {name: each for trial in found for name, each in trial.distributions.items()}
    assert domains == {
        'rate': FloatDistribution(1e-4, 1e-1, log=True),
        'layer': CategoricalDistribution(['Block', 'Dense', None]),
        'layer.heads': CategoricalDistribution([1, 2, 4]),
        'layer.width': IntDistribution(2, 64, log=True),
        'widths[0]': CategoricalDistribution([1, 2, 3, 4]),
        'widths[1]': CategoricalDistribution([1, 2, 3, 4]),
    }


def test_equal_paths_of_different_decisions_are_distinguished() -> None:
    space = pg.Dict(
        layer=pg.oneof([pg.Dict(n=pg.oneof([1, 2])), pg.Dict(n=pg.oneof([3, 4]))]),
        flag=pg.oneof([True, 1]),
    )
    with open_study(None, space, search=search(budget=Budget(8))) as study:
        while (trial := study.ask()) is not None:
            study.tell(trial, {'loss': 1.0})
        found = study.to_optuna().trials
    names = {name for trial in found for name in trial.params}
    assert names == {'layer', 'layer[=0/2].n', 'layer[=1/2].n', 'flag'}
    assert {trial.params['flag'] for trial in found} == {'True', '1'}


PLOTS = {name for name in plots.__all__ if name.startswith('plot_')}
OF_MANY = {'plot_hypervolume_history', 'plot_pareto_front'}
# Optuna's trials have intermediate values of one objective alone.
OF_ONE = {'plot_intermediate_values', 'plot_terminator_improvement'}
with warnings.catch_warnings():
    warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
    STAGNATION = BestValueStagnationEvaluator(5)
ARGUMENTS: dict[str, Any] = {
    'plot_contour': {'params': ['rate', 'layer', 'layer.width']},
    'plot_hypervolume_history': {'reference_point': [1.0, -1.0]},
    'plot_terminator_improvement': {'improvement_evaluator': STAGNATION},
}
BACKENDS = pytest.mark.parametrize('backend', [plots, plots.matplotlib])


def has_data(figure: Any) -> bool:
    """Says if a figure of Plotly, or axes of Matplotlib, show something."""
    if hasattr(figure, 'data'):
        return bool(figure.data)
    found = any(axes.has_data() for axes in np.ravel(figure))
    pyplot.close('all')
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@BACKENDS
def test_each_plot_of_optuna_shows_a_study(backend: ModuleType) -> None:
    assert {name for name in backend.__all__ if name.startswith('plot_')} == PLOTS
    made = conditional().to_optuna()
    for name in PLOTS - OF_MANY:
        assert has_data(getattr(backend, name)(made, **ARGUMENTS.get(name, {}))), name


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@BACKENDS
def test_each_plot_of_optuna_for_two_objectives_shows_a_study(backend: ModuleType) -> None:
    made = conditional(objective=OBJECTIVES).to_optuna()
    assert [each.name for each in made.directions] == ['MINIMIZE', 'MAXIMIZE']
    assert made.best_trials
    for name in PLOTS - OF_ONE:
        more = ARGUMENTS.get(name, {})
        if name not in OF_MANY and name != 'plot_timeline':
            more = more | {'target': lambda trial: trial.values[1]}
        assert has_data(getattr(backend, name)(made, **more)), name


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['sqlite', 'journal', 'memory'])
def test_each_storage_of_optuna_reads_a_study_as_it_is(tmp_path: Path, kind: str) -> None:
    study = conditional()
    study.add({'rate': 0.01, 'layer': None})
    expected = study.to_optuna(name='first')
    storages: dict[str, Callable[[], str | BaseStorage]] = {
        'sqlite': lambda: f'sqlite:///{tmp_path}/optuna.db',
        'journal': lambda: JournalStorage(JournalFileBackend(f'{tmp_path}/journal')),
        'memory': InMemoryStorage,
    }
    storage = storages[kind]()
    made = study.to_optuna(storage, 'first')
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        study.to_optuna(storage, 'first')
    again = storage if kind == 'memory' else storages[kind]()
    optuna.copy_study(
        from_study_name='first', from_storage=again, to_storage=again, to_study_name='2'
    )
    for name in ('first', '2'):
        loaded = optuna.load_study(study_name=name, storage=again)
        read = optuna.storages.get_storage(again)
        id_ = read.get_study_id_from_name(name)
        assert read.get_study_name_from_id(id_) == name
        assert read.get_study_directions(id_) == expected.directions
        assert loaded.metric_names == expected.metric_names
        assert list(map(content, loaded.trials)) == list(map(content, expected.trials))
        assert content(read.get_best_trial(id_)) == content(expected.best_trial)
        for trial in loaded.trials:
            number = trial.number
            trial_id = read.get_trial_id_from_study_id_trial_number(id_, number)
            assert read.get_trial_number_from_id(trial_id) == number
            assert read.get_trial_params(trial_id) == trial.params
            for key, value in trial.distributions.items():
                internal = read.get_trial_param(trial_id, key)
                assert value.to_external_repr(internal) == trial.params[key]
        for state in TrialState:
            count = sum(trial.state is state for trial in expected.trials)
            assert read.get_n_trials(id_, state) == count == (13 if count > 1 else 1)
    assert len(made.trials) == len(expected.trials)


def content(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    """All that a trial has, but its number in a storage."""
    return {key: value for key, value in vars(trial).items() if key != '_trial_id'}


def test_a_requested_trial_waits_and_runs_with_its_parameters() -> None:
    study = conditional()
    study.add({'rate': 0.01, 'layer': None})
    made = study.to_optuna()
    assert made.trials[-1].state is TrialState.WAITING
    asked = made.ask()
    assert asked.suggest_float('rate', 1e-4, 1e-1, log=True) == 0.01


def test_a_study_without_rewards_is_refused() -> None:
    study = open_study(None, toy(search=search(objective=None)))
    with pytest.raises(UserError, match='needs an objective'):
        study.to_optuna()
