"""`python -m paxtune.studies`: what it shows of rungs and lineages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import RandomSearch
from paxtune.command_line import summary
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.schedulers import Adaptive, MedianStopping, Pause, PromotingAsha, Scheduler
from paxtune.schedulers.pbt import PopulationBasedTraining
from paxtune.storage.open_study import load_study, open_study
from tests.factories.studies import ask, finish, read_csv, run
from tests.factories.toys import LOSS, search, toy

SPACE = pg.Dict(x=pg.floatv(0.0, 1.0))
ASHA = PromotingAsha(min_resource=1, max_resource=9, reduction_factor=3)

Loss = Callable[[float, int], float]


def steady(x: float, step: int) -> float:
    return x + 1 / step


def crossing(x: float, step: int) -> float:
    """Curves that cross: good at step 1, bad from step 2 on, and the reverse."""
    return x if step == 1 else 1.0 - x


def train(
    directory: Path, scheduler: Scheduler | None, loss: Loss = steady, num_trials: int = 15
) -> None:
    """A study of trials of nine steps, from its begin to its end."""
    made = Search(LOSS, budget=Budget(num_trials), algorithm=RandomSearch(), scheduler=scheduler)
    with open_study(directory, SPACE, search=made) as study:
        while (trial := study.ask()) is not None:
            x = trial.materialize().x
            for step in range(trial.view.record.paused_at or trial.step + 1, 10):
                trial.report(step, {'loss': loss(x, step)})
                decision = study.decide(trial) if step < 9 else None
                if isinstance(decision, Pause):
                    trial.pause(step, decision.reason)
                    break
                if decision is not None:
                    trial.stop(decision.reason)
                    break
            else:
                trial.complete()


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies, made once; tests leave them as they are."""
    root = tmp_path_factory.mktemp('schedulers')
    train(root / 'asha', ASHA, num_trials=9)
    train(root / 'crossing', ASHA, crossing)
    train(root / 'median', MedianStopping(min_trials=2), num_trials=2)
    train(root / 'plain', None, num_trials=2)
    train(root / 'population', PopulationBasedTraining(population_size=4, interval=3), num_trials=6)
    return root


# --- Rungs ---


@pytest.mark.slow
def test_show_has_the_rungs(made: Path, shown: Callable[..., str]) -> None:
    low, high = json.loads(shown('show', made / 'asha', '--format=json'))['rungs']
    assert (low['resource'], low['trials'], low['next']) == (1.0, 9, pytest.approx(1.0))
    assert (high['resource'], high['trials']) == (3.0, low['beyond'])
    assert low['beyond'] + low['stopped'] == 9 and low['paused'] == 0
    assert high['beyond'] + high['stopped'] == high['trials']
    fields = {
        row['field']: row['value'] for row in read_csv(shown('show', made / 'asha', '--format=csv'))
    }
    assert json.loads(fields['rungs']) == [low, high]
    text = shown('show', made / 'asha')
    assert 'Rungs, and the rank correlation' in text
    assert 'Warning' not in text


def test_where_curves_cross_people_are_warned(made: Path, shown: Callable[..., str]) -> None:
    text = shown('show', made / 'crossing')
    assert 'Warning: early ranks were misleading' in text
    assert 'at 1 steps with those at the next rung is -1.00' in text
    with load_study(made / 'crossing') as study:
        assert 'Warning: early ranks were misleading' in summary(study, 'x')
    with load_study(made / 'asha') as study:
        told = summary(study, 'x')
    assert 'Rungs, and the rank correlation' in told and 'Warning' not in told
    assert told.splitlines()[-2] == 'To train it:'


def test_the_survival_of_winners_at_rungs_is_shown(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    scheduler = Adaptive(min_resource=3, max_resource=9)
    train(tmp_path / 'adaptive', scheduler, num_trials=42)
    text = ' '.join(shown('show', tmp_path / 'adaptive').split())
    assert 'of the trials go on from the rung of 3 steps, where ' in text
    with load_study(tmp_path / 'adaptive') as study:
        assert scheduler.findings(study.curves(), study.rewards[0])[0] in summary(study, 'x')


def test_a_scheduler_without_rungs_has_those_of_shares(
    made: Path, shown: Callable[..., str]
) -> None:
    rungs = json.loads(shown('show', made / 'median', '--format=json'))['rungs']
    assert [rung['resource'] for rung in rungs] == [0.9, 2.25, 4.5]
    rows = json.loads(shown('trials', made / 'median', '--format=json'))
    assert not any('rung' in row for row in rows)


def test_without_a_scheduler_nothing_is_said_of_rungs(
    made: Path, shown: Callable[..., str]
) -> None:
    assert 'rungs' not in json.loads(shown('show', made / 'plain', '--format=json'))
    assert 'rung' not in shown('trials', made / 'plain', '--format=csv').splitlines()[0]
    with load_study(made / 'plain') as study:
        assert 'ung' not in summary(study, 'x')


def test_several_objectives_have_no_rungs(tmp_path: Path, shown: Callable[..., str]) -> None:
    from paxtune.schedulers import ThresholdStopping

    scheduler = ThresholdStopping(milestones=[[10, 0.5]], metric='loss', goal='minimize')
    reward = Objectives([LOSS, MetricReward('maximize', 'accuracy')])
    with open_study(tmp_path, toy(search=search(objective=reward, scheduler=scheduler))) as study:
        run(study)
    assert json.loads(shown('show', tmp_path, '--format=json'))['rungs'] == []
    assert 'rung' not in shown('trials', tmp_path, '--format=csv').splitlines()[0]


def test_trials_have_the_rung_that_they_came_to(made: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('trials', made / 'asha', '--format=json'))
    with load_study(made / 'asha') as study:
        ends = {
            trial.id: 3.0 if trial.measurements[-1].step >= 3 else 1.0 for trial in study.trials
        }
    assert {row['trial']: row['rung'] for row in rows} == ends
    assert {*ends.values()} == {1.0, 3.0}
    ordered = json.loads(shown('trials', made / 'asha', '--sort=-rung', '--format=json'))
    assert [row['rung'] for row in ordered] == sorted(ends.values(), reverse=True)
    head, first = shown('trials', made / 'asha', '--limit=1').splitlines()
    assert head.split()[:4] == ['trial', 'state', 'rung', 'loss']
    assert first.split()[2] == f'{ends[1]:.0f}'


# --- Lineages ---


def test_forks_hang_below_their_parents(made: Path, shown: Callable[..., str]) -> None:
    rows = json.loads(shown('lineage', made / 'population', '--format=json'))
    assert [row['trial'] for row in rows] == [1, 2, 3, 4, 5, 6]
    forks = [row for row in rows if row['parent'] is not None]
    assert [row['trial'] for row in forks] == [5, 6]
    with load_study(made / 'population') as study:
        for row in forks:
            trial = study.trial(row['trial'])
            parent = study.trial(row['parent'])
            assert (row['parent'], row['from_step']) == trial.lineage.forked_from
            assert row['replaces'] == trial.lineage.replaces
            assert row['loss'] == trial.reward
            assert row['changes'] == {'x': [parent.decisions['x'], trial.decisions['x']]}
    lines = shown('lineage', made / 'population').splitlines()
    for row in forks:
        before, after = row['changes']['x']
        (line,) = [line for line in lines if f'─ {row["trial"]} ' in line]
        assert line.endswith(
            f'from step {row["from_step"]} of trial {row["parent"]}, '
            f'replaces trial {row["replaces"]}, x {before:.6g} → {after:.6g}'
        )
        above = lines[: lines.index(line)]
        assert any(each.lstrip('│├└─ ').startswith(f'{row["parent"]} ') for each in above)
    as_csv = read_csv(shown('lineage', made / 'population', '--format=csv'))
    assert [json.loads(row['changes']) for row in as_csv] == [row['changes'] for row in rows]
    assert {tuple(row) for row in as_csv} == {tuple(row) for row in rows}


def test_warm_starts_are_lineage_too(tmp_path: Path, shown: Callable[..., str]) -> None:
    with open_study(tmp_path, toy(search=search(budget=Budget(4)))) as study:
        finish(ask(study))
        trial = ask(study)
        trial.set_warm_start(1, 20)
        trial.report(10, {'loss': 0.25})
        trial.stop('worse than others')
        ask(study).set_warm_start(2)
        study.add({})
    first, second, third = shown('lineage', tmp_path).splitlines()[:3]
    assert first.startswith('1 completed, loss=')
    assert second.startswith('└── 2 stopped, loss=0.25, from step 20 of trial 1, rate ')
    assert third.startswith('    └── 3 active, from trial 2, rate ')
    assert '1 other trial started from scratch and has no children.' in shown('lineage', tmp_path)
    row: dict[str, Any] = json.loads(shown('lineage', tmp_path, '--format=json'))[2]
    assert (row['parent'], row['from_step'], row['replaces']) == (2, None, None)
    assert row['inherited_steps'] is None
    with load_study(tmp_path, read_only=False) as study:
        study.delete_trial(1)
    assert (
        shown('lineage', tmp_path)
        .splitlines()[0]
        .startswith('2 stopped, loss=0.25, from step 20 of trial 1')
    )


def test_inherited_steps_are_those_of_all_ancestors(
    tmp_path: Path, shown: Callable[..., str]
) -> None:
    with open_study(tmp_path, toy(search=search(budget=Budget(4)))) as study:
        finish(ask(study))
        for parent, step in ((1, 20), (2, 10)):
            trial = ask(study)
            trial.set_warm_start(parent, step)
            finish(trial)
    rows = json.loads(shown('lineage', tmp_path, '--format=json'))
    assert [row['inherited_steps'] for row in rows] == [0, 20, 30]
    assert 'from step 10 of trial 2, 30 inherited steps, ' in shown('lineage', tmp_path)


def test_a_study_without_lineage(made: Path, tmp_path: Path, shown: Callable[..., str]) -> None:
    assert shown('lineage', made / 'plain') == (
        '2 trials started from scratch and have no children.\n'
    )
    with open_study(tmp_path, toy()):
        pass
    assert shown('lineage', tmp_path) == 'There are no trials yet.\n'
    assert json.loads(shown('lineage', tmp_path, '--format=json')) == []


def test_impossible_lineages_are_no_loop(tmp_path: Path, shown: Callable[..., str]) -> None:
    with open_study(tmp_path, toy()) as study:
        ask(study).set_warm_start(1)
    (line,) = shown('lineage', tmp_path).splitlines()
    assert line == '1 active, from trial 1'


def test_a_long_line_of_descent(tmp_path: Path, shown: Callable[..., str]) -> None:
    with open_study(tmp_path, toy(search=search(budget=Budget(9)))) as study:
        finish(ask(study))
        for number in range(2, 10):
            trial = ask(study)
            trial.set_warm_start(number - 1)
            finish(trial)
    lines = shown('lineage', tmp_path).splitlines()
    assert len(lines) == 9
    assert lines[-1].startswith(' ' * 4 * 7 + '└── 9 completed')
