"""Names of other tuners: messages name the argument or the flag to write."""

from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget, tune
from paxtune.command_line import search_parser
from paxtune.config import other_names
from paxtune.running.trial_errors import StudyStoppedError
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('n_trials', 'Write num_trials=20'),
        ('direction', "Write objective='minimize'"),
        ('max_hours', 'Write timeout=3600'),
        ('n_jobs', 'Write workers=2'),
        ('pruner', "Write scheduler='median'"),
        ('sampler', "Write algorithm='tpe'"),
        ('verbose', 'Write quiet=True'),
        ('num_trial', r'Did you mean num_trials'),
    ],
)
def test_an_argument_of_another_tuner_is_translated(name: str, words: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(UserError, match=f"a search has no '{name}'. {words}"):
        tune(lambda x: x, space={'x': pg.floatv(0.0, 1.0)}, objective='minimize', **given)


def test_a_flag_of_another_tuner_is_translated() -> None:
    for name, words in (('n_trials', 'num_trials=20'), ('n-jobs', 'workers=2'), ('timeout', 'max')):
        with pytest.raises(UserError, match=f'unrecognized.*Write --{words}'):
            search_parser(None).parse_args(['--exp=x', f'--{name}=3'])


def test_all_proposed_flags_exist() -> None:
    known = search_parser(None).format_help()
    for flag in {*other_names.FLAGS.values()}:
        assert flag.partition('=')[0].split()[0] in known


def test_a_budget_of_hours_goes_with_a_number_of_trials() -> None:
    space, budget = {'x': pg.floatv(0.0, 1.0)}, Budget(hours=1.0)
    study = tune(lambda x: x, space=space, objective='minimize', num_trials=2, budget=budget)
    assert (study.search.budget.trials, study.search.budget.hours) == (2, 1.0)


@pytest.mark.parametrize('name', ['Asha', 'asha', 'Hyperband'])
def test_the_first_hint_of_a_scheduler_works(name: str) -> None:
    space = {'x': pg.floatv(0.0, 1.0)}
    with pytest.raises(UserError, match=r'\(min_resource=…, max_resource=…\)') as refused:
        tune(lambda x: x, space=space, objective='minimize', num_trials=2, scheduler=name)
    text = str(refused.value).partition("write '")[2].rstrip("'")
    written = text.replace('min_resource=…', 'min_resource=1').replace('…', '9')
    study = tune(lambda x: x, space=space, objective='minimize', num_trials=2, scheduler=written)
    assert len(study.trials) == 2


def test_the_error_of_a_study_in_memory_names_python() -> None:
    def failing(x: float) -> float:
        raise RuntimeError('always')

    with pytest.raises(StudyStoppedError) as stopped:
        tune(failing, space={'x': pg.floatv(0.0, 1.0)}, objective='minimize', num_trials=9)
    text = str(stopped.value)
    assert 'study=error.study' in text and 'faults=paxtune.Faults(' in text
    assert 'python -m' not in text and 'search.faults' not in text
