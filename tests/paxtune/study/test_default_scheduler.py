"""The scheduler of a search that names none."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import command_line, search, tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.schedulers import Adaptive, MedianStopping
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study
from paxtune.study.default_scheduler import default_scheduler
from paxtune.study.plan import SearchPlan
from tests.factories.tunables import REWARD, Rates

MODULE = 'tests.paxtune.study.test_default_scheduler'
"""Its experiment is named by it."""


def chosen(**changes: Any) -> tuple[Any, str]:
    """The default scheduler of 17 trials of six steps, evaluated every two, and the reason."""
    made = Rates()
    made.rebind({'search.budget.trials': 17} | changes)
    return default_scheduler(made.search, Space(made))


def Many() -> Any:
    """18 trials of six steps, evaluated every two."""
    made = Rates()
    made.rebind({'search.budget.trials': 18})
    return made


def test_many_trials_with_evaluations_before_their_ends_are_promoted() -> None:
    scheduler, why = chosen()
    assert pg.eq(scheduler, Adaptive(min_resource=2))
    assert why == '17 trials of 6 steps, evaluated every 2'


def test_the_lowest_rung_is_an_evaluation_from_a_27th_of_the_steps_on() -> None:
    steps = {'train.num_train_steps': 5400, 'train.evaluation.every': 150}
    assert chosen(**steps)[0].min_resource == 300


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'search.budget.trials': 16}, '16 trials'),
        ({'train.evaluation.every': 6}, 'without evaluations before their ends'),
        ({'train.num_train_steps': pg.oneof([6, 8])}, 'searched lengths'),
        ({'train.checkpoints': None}, 'cannot pause'),
        ({'search.replicates': 2}, 'replicates'),
        ({'search.objective': None}, '0 rewards'),
        (
            {'search.objective': Objectives([REWARD, MetricReward('minimize', 'num_params')])},
            '2 rewards',
        ),
    ],
)
def test_other_searches_train_all_trials_to_their_ends(changes: Any, reason: str) -> None:
    scheduler, why = chosen(**changes)
    assert scheduler is None
    assert reason in why


def test_functions_are_not_paused_without_their_consent() -> None:
    plan = SearchPlan.compile(pg.Dict(x=pg.floatv(0.0, 1.0)), Search(REWARD, Budget(64)))
    assert plan.scheduler is None


@pytest.mark.parametrize('own', [None, MedianStopping()])
def test_an_own_scheduler_comes_first(own: Any) -> None:
    made = Many()
    made.rebind({'search.scheduler': own})
    assert pg.eq(SearchPlan.compile(made).scheduler, own)


@pytest.mark.parametrize(('word', 'scheduler'), [('none', None), ('default', 'default')])
def test_flags_and_functions_name_the_default_and_none(word: str, scheduler: str | None) -> None:
    args = search.parser().parse_args([f'--exp={MODULE}.Many', f'--scheduler={word}'])
    assert command_line.tunable_for(args).search.scheduler == scheduler
    space = {'x': pg.floatv(0.0, 1.0)}
    study = tune(abs, space=space, num_trials=1, objective='minimize', scheduler=word)
    assert study.search.scheduler == scheduler


def run(directory: Path, *flags: str) -> list[Any]:
    args = [f'--exp={MODULE}.Many', f'--job_log_dir={directory}', *flags]
    assert search.main(args) == 0
    with load_study(directory) as study:
        return list(study.trials)


@pytest.mark.slow
def test_a_search_of_many_trials_pauses_most_of_them_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = run(tmp_path)
    output = capsys.readouterr().out
    assert 'scheduler: Adaptive (default for 18 trials of 6 steps, evaluated every 2)' in output
    assert '--scheduler=none' in output
    full = [trial for trial in trials if trial.status == 'completed']
    assert 1 <= len(full) < 10
    assert min(full, key=lambda trial: trial.reward).measurements[-1].step == 6


@pytest.mark.slow
def test_a_study_goes_on_with_the_scheduler_of_its_new_number_of_trials(tmp_path: Path) -> None:
    few = run(tmp_path, '--num_trials=4')
    assert [trial.status for trial in few] == ['completed'] * 4
    more = run(tmp_path, '--num_trials=20')
    assert {trial.status for trial in more} == {'completed', 'stopped'}
    assert [trial.reward for trial in more[:4]] == [trial.reward for trial in few]
