"""Studies as studies of Optuna."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pyglove as pg
import pytest
from optuna import visualization as plots
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.terminator import BestValueStagnationEvaluator
from optuna.trial import TrialState

from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.paxtune.studies import ask, finish, run_all_kinds
from tests.paxtune.toys import OBJECTIVES, Block, Dense, search, toy
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


PLOTS: dict[str, Callable[[optuna.Study], Any]] = {
    'contour': lambda study: plots.plot_contour(study, params=['rate', 'layer', 'layer.width']),
    'edf': plots.plot_edf,
    'intermediate_values': plots.plot_intermediate_values,
    'optimization_history': plots.plot_optimization_history,
    'parallel_coordinate': plots.plot_parallel_coordinate,
    'param_importances': plots.plot_param_importances,
    'rank': plots.plot_rank,
    'slice': plots.plot_slice,
    'terminator_improvement': lambda study: plots.plot_terminator_improvement(
        study, improvement_evaluator=BestValueStagnationEvaluator(5)
    ),
    'timeline': plots.plot_timeline,
}
OF_TWO: dict[str, Callable[[optuna.Study], Any]] = {
    'hypervolume_history': lambda study: plots.plot_hypervolume_history(study, [1.0, -1.0]),
    'pareto_front': plots.plot_pareto_front,
    'timeline': plots.plot_timeline,
    'slice': lambda study: plots.plot_slice(study, target=lambda trial: trial.values[0]),
}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', PLOTS)
def test_each_plot_of_optuna_shows_a_study(name: str) -> None:
    assert PLOTS[name](conditional().to_optuna()).data


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', OF_TWO)
def test_each_plot_of_optuna_for_two_objectives_shows_a_study(name: str) -> None:
    made = conditional(objective=OBJECTIVES).to_optuna()
    assert [each.name for each in made.directions] == ['MINIMIZE', 'MAXIMIZE']
    assert made.best_trials
    assert OF_TWO[name](made).data


@pytest.mark.slow
def test_a_study_survives_a_database_of_optuna(tmp_path: Path) -> None:
    study = conditional()
    url = f'sqlite:///{tmp_path}/optuna.db'
    made = study.to_optuna(url, 'first')
    optuna.copy_study(from_study_name='first', from_storage=url, to_storage=url, to_study_name='2')
    for name in ('first', '2'):
        loaded = optuna.load_study(study_name=name, storage=url)
        assert [trial.params for trial in loaded.trials] == [trial.params for trial in made.trials]
        assert [trial.state for trial in loaded.trials] == [trial.state for trial in made.trials]
        assert loaded.best_trial.user_attrs == made.best_trial.user_attrs
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        study.to_optuna(url, 'first')


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
