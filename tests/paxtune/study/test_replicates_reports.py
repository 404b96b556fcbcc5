"""Commands and messages that show replicates."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.api import tune
from paxtune.command_line import summary, tunable_for
from paxtune.config.budget import Budget
from paxtune.search import parser
from paxtune.study.running_trial import RunningTrial
from paxtune.terminal.progress import Progress
from tests.factories.studies import confirmable, opened, ran


def test_commands_show_means_and_how_sure_they_are(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with opened(tmp_path, replicates=3, budget=Budget(6)) as study:
        ran(study, 1.0, 9.0, 8.0, 4.0, 5.0, 3.0)
        assert 'Mean of its replicates (trials 4, 5, 6): 4 ± 0.58' in summary(study, 'x')
    table = shown('show', tmp_path)
    assert 'mean loss' in table
    assert '0.577' in table
    found = json.loads(shown('best', tmp_path, '--top=2', '--format=json'))['trials']
    assert [each['trial'] for each in found] == [4, 3]
    assert [each['mean loss'] for each in found] == [4.0, 6.0]
    assert [each['num_replicates'] for each in found] == [3, 3]
    (row,) = json.loads(shown('list', tmp_path, '--format=json'))
    assert row['best'] == 4.0
    assert 'replicate_of' in shown('trials', tmp_path, '--format=csv')


def test_a_command_confirms(tmp_path: Path, shown: Callable[..., str]) -> None:
    confirmable(tmp_path).close()
    assert 'mean' not in shown('best', tmp_path)
    said = shown('confirm', tmp_path, '--top=1', '--replicates=2')
    assert 'trial 7: replicate 2 of trial 3' in said
    assert 'Nothing was added' in shown('confirm', tmp_path, '--top=1', '--replicates=2')


def test_progress_prints_replicates(capsys: pytest.CaptureFixture[str]) -> None:
    tune(
        lambda values: float(values.x),
        space={'x': pg.oneof([4, 2])},
        objective='minimize',
        replicates=2,
        callbacks=[Progress()],
    )
    out = capsys.readouterr().out
    assert 'trial 2/4: x=' in out
    assert '(replicate 2)' in out
    assert 'objective=2 ± 0, the mean of 2 trials' in out


def test_a_function_can_ask_which_repeat_it_is() -> None:
    def noisy(values: Any, trial: RunningTrial) -> float:
        return values.x + random.Random(trial.lineage.replicate).random()

    study = tune(
        noisy, space={'x': pg.oneof([0, 5])}, num_trials=6, objective='minimize', replicates=3
    )
    by_decision: dict[int, list[float]] = {}
    for trial in study.trials:
        x = trial.decisions['x']
        by_decision.setdefault(x, []).append(trial.rewards[0] - x)
    assert by_decision[0] == pytest.approx(by_decision[5])
    assert len({*by_decision[0]}) == 3


def test_the_flag() -> None:
    args = parser().parse_args(['--exp=tests.factories.tunables.Rates', '--replicates=3'])
    assert tunable_for(args).search.replicates == 3
