"""`python -m paxtune.studies ask|tell`: trials that are computed outside."""

import json
from collections.abc import Callable
from pathlib import Path

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.storage.open_study import load_study, open_study
from paxtune.studies.__main__ import main
from tests.factories.function_studies import OBJECTIVE, PARALLEL, search
from trainer.symbolic.errors import UserError


@pytest.fixture
def asked(tmp_path: Path, shown: Callable[..., str]) -> Path:
    """A study with four trials, two of which were asked for."""
    how = search(objective=OBJECTIVE, budget=Budget(4), algorithm=RandomSearch())
    open_study(tmp_path, pg.Dict(PARALLEL['space']), search=how).close()
    lines = [json.loads(line) for line in shown('ask', tmp_path, '--count=2').splitlines()]
    assert [line['trial'] for line in lines] == [1, 2]
    assert all(0 <= line['decisions']['x'] <= 1 for line in lines)
    return tmp_path


def test_a_trial_is_handed_out_once_and_reported(asked: Path, shown: Callable[..., str]) -> None:
    assert json.loads(shown('ask', asked))['trial'] == 3
    told = json.loads(shown('tell', asked, 2, 0.25))
    assert told == {'trial': 2, 'state': 'completed', 'rewards': {'objective': 0.25}}
    shown('tell', asked, 3, 'objective=0.5', 'seconds=7')
    assert json.loads(shown('tell', asked, 1, '--infeasible=no memory'))['state'] == 'infeasible'
    with load_study(asked) as study:
        assert [trial.reward for trial in study.trials] == [None, 0.25, 0.5]
        assert study.trials[2].metrics['seconds'] == 7
        assert study.trials[0].reason == 'no memory'


def test_a_result_comes_after_what_was_measured(asked: Path, shown: Callable[..., str]) -> None:
    with load_study(asked, read_only=False) as study:
        study.open_trial(1).report(3, {'objective': 0.75})
    assert json.loads(shown('tell', asked, 1, 0.25))['rewards'] == {'objective': 0.25}
    with load_study(asked) as study:
        assert [each.step for each in study.trials[0].measurements] == [3, 4]


def test_asking_ends_with_the_study(
    asked: Path, shown: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [
        json.loads(line)['trial'] for line in shown('ask', asked, '--count=9').splitlines()
    ] == [
        3,
        4,
    ]
    main(['ask', str(asked)])
    out, error = capsys.readouterr()
    assert (out, error) == ('', 'No more trials: other trials must end first\n')


def test_a_search_leaves_asked_trials_alone(asked: Path, shown: Callable[..., str]) -> None:
    ran = []

    def function(x: float) -> float:
        ran.append(x)
        if len(ran) == 2:
            for number in (1, 2):  # The search waits for these.
                shown('tell', asked, number, 0.5)
        return x

    with tune(function, job_log_dir=asked, **PARALLEL) as study:
        assert study.is_done
        assert ran == [trial.decisions['x'] for trial in study.trials[2:]]


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('1',), '^`tell`: give metrics'),
        (('1', '0.5', '--infeasible=x'), '^`tell`: give metrics'),
        (('1', '0.5', 'y=1'), '^`tell`: give one number, or name each metric: 0.5 y=1'),
        (('1', 'y=high'), '^`tell`: expected METRIC=VALUE: could not convert'),
        (('1', 'y=1'), 'objective'),
        (('3', '1'), 'has no trial 3'),
    ],
)
def test_unfit_metrics_are_refused_and_the_trial_stays_open(
    asked: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        main(['tell', str(asked), *arguments])
    with load_study(asked) as study:
        assert [trial.state for trial in study.trials] == ['ACTIVE', 'ACTIVE']


def test_only_an_asked_trial_is_reported(asked: Path, shown: Callable[..., str]) -> None:
    shown('tell', asked, 1, 0.5)
    with pytest.raises(UserError, match='trial 1 is completed: report a trial of `ask`'):
        main(['tell', str(asked), '1', '0.5'])
    with load_study(asked, read_only=False) as study:
        (held,) = study.ask(1)
        with pytest.raises(UserError, match=rf'trial {held.id} is active by .*: report a trial'):
            main(['tell', str(asked), str(held.id), '0.5'])
