"""Real studies whose training is read from a table: `paxtune.simulate --processes`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from paxtune import Budget, tune
from paxtune.algorithms import RandomSearch
from paxtune.config.search import Search
from paxtune.running.runner import Running
from paxtune.running.tuner import Paused
from paxtune.schedulers import PopulationBasedTraining, PromotingAsha
from paxtune.simulate import simulator
from paxtune.simulate.__main__ import main as simulate_main
from paxtune.simulate.files import read, write
from paxtune.simulate.replay_workload import RecordedTrials, State, TableRunner, load, newest, save
from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main as studies_main
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial_paths import trial_directory
from tests.factories.curve_tables import write_curves
from trainer.checkpoints.checkpoint import saved_checkpoints
from trainer.symbolic.errors import UserError


@pytest.fixture(scope='module')
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_curves(tmp_path_factory.mktemp('table') / 'curves.json', steps=6)


def flags(
    table: Path, directory: Path, scheduler: str = 'PromotingAsha(min_resource=2)'
) -> list[str]:
    given = [f'--table={table}', f'--scheduler={scheduler}', '--num_trials=5', '--processes']
    return [*given, f'--job_log_dir={directory}']


def recorded(table: Path, scheduler: Any, num_trials: int = 6, **fields: Any) -> RecordedTrials:
    reward = read(str(table)).reward
    search = Search(reward, Budget(num_trials), RandomSearch(), scheduler, **fields)
    return RecordedTrials.of(str(table), search)


@pytest.mark.parametrize(
    'scheduler',
    [
        None,
        PromotingAsha(min_resource=1, reduction_factor=2),
        PromotingAsha(min_resource=0.15, max_resource=0.6, unit='seconds'),
        PopulationBasedTraining(population_size=3, interval=2),
    ],
    ids=['full', 'asha', 'seconds', 'population'],
)
@pytest.mark.fast(2)
def test_the_simulator_makes_the_decisions_of_a_real_study(
    scheduler: Any, table: Path, tmp_path: Path
) -> None:
    simulated = simulator.simulate(read(str(table)), scheduler, RandomSearch(), num_trials=6)
    with tune(recorded(table, scheduler), job_log_dir=tmp_path) as study:
        for real, other in zip(study.trials, (t.trial for t in simulated.trials), strict=True):
            assert (real.status, real.reward) == (other.status, other.reward)
            assert list(real.decisions.values()) == list(study.space.readable(real.by_id).values())
            assert real.record.pauses == other.record.pauses
            for name in ('forked_from', 'replaces'):
                assert getattr(real.lineage, name) == getattr(other.lineage, name)
            measured = [(each.step, each.reward) for each in real.measurements]
            assert measured == [(each.step, each.reward) for each in other.measurements]


def test_the_same_command_resumes(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate_main(flags(table, tmp_path)) == 0
    assert 'The study is done: it has all of its 5 trials' in capsys.readouterr().out
    assert simulate_main(flags(table, tmp_path)) == 0
    assert 'trial 1: step' not in capsys.readouterr().out
    assert studies_main(['show', str(tmp_path)]) == 0
    assert 'RecordedTrials' in capsys.readouterr().out


def test_an_interrupted_trial_goes_on_from_its_checkpoint(table: Path, tmp_path: Path) -> None:
    asked = iter([False, False, True])
    what = recorded(table, None, 1)
    with pytest.raises(Paused):
        tune(what, job_log_dir=tmp_path, should_interrupt=lambda: next(asked, True))
    with tune(what, job_log_dir=tmp_path) as study:
        (trial,) = study.trials
        directory = Path(trial_directory(study.directory, trial))
        assert json.loads((directory / 'trial.json').read_text())['resumed_from'] != []
        assert [each.step for each in trial.measurements] == [1, 2, 3, 4, 5, 6]
        state, _ = newest(directory)
        assert state.trace == tuple((1, step) for step in range(1, 7))
        names = sorted(
            each.name for each in saved_checkpoints(epath.Path(directory / 'checkpoints'))
        )
        assert names == ['5', '6']


def test_a_promoted_trial_without_its_checkpoint_fails(table: Path, tmp_path: Path) -> None:
    what = recorded(table, PromotingAsha(min_resource=2, reduction_factor=2), 2)
    with open_study(tmp_path, what, what.data()) as study:
        from paxtune.running.tuner import Tuner

        class Vandal(TableRunner):
            """Loses what a trial has come to when that is promoted."""

            def prepare(self, study: Study, trial: RunningTrial) -> Running:
                if trial.view.record.pauses:
                    directory = Path(trial_directory(study.directory, trial.view))
                    shutil.rmtree(directory / 'checkpoints')
                return super().prepare(study, trial)

        Tuner(study, Vandal(what.curves, what.speedup)).run()
        (failed, *_) = [trial for trial in study.trials if trial.is_failed]
        assert failed.reason is not None and 'resumes from step 2' in failed.reason


def test_rows_that_diverge_are_infeasible_and_ends_are_the_recorded_ones(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {'ended': 'completed', 'end': 0.5, 'rewards': [3.0, 1.0], 'steps': [1.0, 2.0]},
        {'ended': 'completed', 'end': 2.0, 'rewards': [4.0, 2.0], 'steps': [1.0, 2.0]},
        {'ended': 'infeasible', 'end': None, 'rewards': [9.0], 'steps': [1.0, 2.0]},
    ]
    for i, row in enumerate(rows):
        row['decisions'] = {'x': float(i), 'kind': 'ab'[i % 2]}
    path = tmp_path / 'curves.json'
    path.write_text(write(rows, 'minimize', 'loss'))
    with tune(recorded(path, None, 3), job_log_dir=tmp_path / 'study') as study:
        assert sorted(trial.reward or 9.0 for trial in study.trials) == [0.5, 2.0, 9.0]
        (diverged,) = [trial for trial in study.trials if trial.status == 'infeasible']
        assert diverged.reason == 'it diverged, as was recorded' and not diverged.is_failed


def test_checkpoints_are_whole_and_only_two_are_kept(tmp_path: Path) -> None:
    state = State()
    for step in (2, 4, 6):
        state = state.after(7, step, {'reward': step / 2})
        path = save(state, tmp_path)
        assert load(Path(path)) == state
    names = sorted(each.name for each in saved_checkpoints(epath.Path(tmp_path / 'checkpoints')))
    assert names == ['4', '6']
    assert newest(tmp_path) == (state, path)


def test_another_table_is_refused(table: Path, tmp_path: Path) -> None:
    own = tmp_path / 'curves.json'
    shutil.copy(table, own)
    assert simulate_main(flags(own, tmp_path / 'study')) == 0
    own.write_text(own.read_text().replace('"metric": "loss"', '"metric": "other"'))
    with pytest.raises(UserError, match='study of other data'):
        simulate_main(flags(own, tmp_path / 'study'))


@pytest.mark.parametrize(
    ('given', 'match'),
    [
        (['--job_log_dir=x'], '--job_log_dir is for a study with real processes'),
        (['--speedup=2'], '--speedup is for a study with real processes'),
        (['--seed=2'], '--seed is for a study with real processes'),
        (['--processes'], 'give its directory, --job_log_dir=DIR'),
        (['--processes', '--job_log_dir=x', '--seeds=3'], 'runs one study: give --seed=N'),
        (['--processes', '--job_log_dir=x', '--scheduler=none,asha'], 'choose one --scheduler of'),
        (
            ['--processes', '--job_log_dir=x', '--scheduler=none', '--num_trials=999'],
            'has 40 of them',
        ),
        (
            ['--processes', '--job_log_dir=x', "--scheduler=Asha(min_resource=1, unit='flops')"],
            'counts resources in flops',
        ),
    ],
)
def test_flags_that_do_not_fit(given: list[str], match: str, table: Path) -> None:
    with pytest.raises(UserError, match=match):
        simulate_main([f'--table={table}', *given])


@pytest.mark.parametrize('flag', ['--speedup=0', '--speedup=inf', '--speedup=x', '--workers=0'])
def test_invalid_numbers_are_refused(flag: str, table: Path) -> None:
    with pytest.raises(SystemExit) as error:
        simulate_main([*flags(table, Path('x')), flag])
    assert error.value.code == 2
