"""TensorBoard's HParams tab compares the trials of a study."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest
from etils import epath

import paxtune
from paxtune.config.budget import Budget
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Paused, Tuner
from paxtune.schedulers import ThresholdStopping
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.function_studies import PARALLEL, SPACE, process_of, search, two
from tests.factories.tunables import Rates
from tests.servers.tensorboard import Row, hparams_tab, multiplexer_of

KINDS = pg.Dict(
    rate=pg.floatv(0.25, 1.0),
    steps=paxtune.intv(1, 3),
    big=pg.oneof([True, False]),
    size=pg.oneof([16, 32]),
    kind=pg.oneof(['plain', pg.Dict(power=pg.floatv(1.0, 2.0))]),
    mixed=pg.oneof([None, 1]),
)


def row_of(directory: Path, number: int) -> Row:
    (row,) = (r for n, r in hparams_tab(directory).trials.items() if f'/{number:04d}-' in n)
    return row


def search_in(directory: Path, function: Callable[..., Any], **fields: Any) -> Study:
    study = open_study(directory, SPACE, search=search(**fields))
    Tuner(study, FunctionRunner(function)).run()
    return study


def killed_at_the_end(session: Any, trial: Any) -> None:
    """Leaves what was flushed."""
    session._file.close()


@pytest.mark.contract
def test_hparams_list_decisions_and_final_values_of_each_trial(tmp_path: Path) -> None:
    def score(values: Any) -> dict[str, float]:
        return {'objective': values.rate, 'cost (s)': 2.0}

    study = paxtune.tune(
        score, space=KINDS, objective='maximize', num_trials=6, job_log_dir=tmp_path, callbacks=[]
    )
    tab = hparams_tab(tmp_path)
    assert tab.domains == {
        'rate': (0.25, 1.0),
        'steps': (1.0, 3.0),
        'big': [True, False],
        'size': [16.0, 32.0],
        'kind': ['plain', '{power}'],
        'kind.power': (1.0, 2.0),
        'mixed': ['None', '1'],
    }
    assert tab.metrics == {
        'reward/objective': 'reward',
        'trial/cost__s_': 'cost (s)',
        'trial/objective': 'objective',
    }
    assert len(tab.trials) == 6
    conditional = []
    for trial, (name, row) in zip(study.trials, sorted(tab.trials.items()), strict=True):
        assert trial.directory == tmp_path / name
        shown = trial.decisions | {'mixed': str(trial.decisions['mixed'])}
        assert row.hparams == shown
        conditional.append('kind.power' in row.hparams)
        rate = pytest.approx(trial.decisions['rate'])
        assert row.metrics == {
            'reward/objective': rate,
            'trial/objective': rate,
            'trial/cost__s_': 2.0,
        }
        assert row.statuses == ['STATUS_SUCCESS']
    assert set(conditional) == {True, False}


def test_hparams_have_the_status_of_each_end(tmp_path: Path) -> None:
    def ends(values: Any) -> Iterator[dict[str, float]]:
        if values.x == 5:
            raise ValueError('no')
        yield {'loss': float(values.x)}
        yield {'loss': values.x + 10.0}

    scheduler = ThresholdStopping(milestones=[[1, 1.5]])
    study = search_in(tmp_path, ends, scheduler=scheduler, budget=Budget(6))
    seen = set()
    for trial in study.trials:
        row, last = row_of(tmp_path, trial.id), trial.decisions['x']
        seen.add(trial.status)
        if trial.status == 'infeasible':
            assert row.statuses == ['STATUS_FAILURE']
            assert row.metrics == {}
        else:
            final = last + 10.0 if trial.status == 'completed' else last
            assert row.statuses == ['STATUS_SUCCESS']
            assert row.metrics == {'reward/loss': final, 'trial/loss': final}
    assert seen == {'completed', 'stopped', 'infeasible'}


def test_hparams_of_a_resumed_trial_are_one_session(tmp_path: Path) -> None:
    begun: list[Any] = []

    def noted(values: Any) -> Iterator[dict[str, float]]:
        begun.append(values)
        yield from two(values)

    with pytest.raises(Paused):
        paxtune.tune(
            noted,
            space=SPACE,
            objective=search().objective,
            num_trials=1,
            job_log_dir=tmp_path,
            should_interrupt=lambda: bool(begun),
            callbacks=[],
        )
    running = row_of(tmp_path, 1)
    assert running.statuses == ['STATUS_UNKNOWN']
    assert running.metrics == {'reward/loss': 2.0, 'trial/loss': 2.0}
    search_in(tmp_path, two, budget=Budget(1))
    (directory,) = (tmp_path / 'trials').iterdir()
    starts = [b'session_start_info' in f.read_bytes() for f in directory.glob('*tfevents*')]
    assert sorted(starts) == [False, False, True]
    assert row_of(tmp_path, 1) == Row(
        running.hparams, {'reward/loss': 1.0, 'trial/loss': 1.0}, ['STATUS_SUCCESS']
    )


def test_hparams_of_a_trial_whose_process_died_at_its_end_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr('paxtune.running.hparams.Session.close', killed_at_the_end)
        killed.setattr('paxtune.running.trial_json.TrialJson.write', lambda *args: None)
        search_in(tmp_path, two, budget=Budget(1)).close()
    (directory,) = (tmp_path / 'trials').iterdir()
    (directory / 'trial.json').write_text('{"state": "active"}')
    search_in(tmp_path, two, budget=Budget(1))
    assert row_of(tmp_path, 1).statuses == ['STATUS_SUCCESS']
    assert row_of(tmp_path, 1).metrics == {'reward/loss': 1.0, 'trial/loss': 1.0}


def test_hparams_list_a_metric_that_a_later_trial_brings(tmp_path: Path) -> None:
    def later(values: Any) -> dict[str, float]:
        return {'loss': 1.0} | ({'extra': 3.0} if values.x == 5 else {})

    search_in(tmp_path, later, budget=Budget(6))
    tab = hparams_tab(tmp_path)
    assert set(tab.metrics) == {'reward/loss', 'trial/extra', 'trial/loss'}
    assert [row.metrics.get('trial/extra') for row in tab.trials.values()].count(3.0) == 1


def test_hparams_go_on_without_files_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('paxtune.running.hparams.EventFile', full)
    monkeypatch.setattr('paxtune.running.hparams.replace_event_file', full)
    study = search_in(tmp_path, two)
    assert [trial.status for trial in study.trials] == ['completed'] * 4
    assert not list(tmp_path.rglob('*tfevents*'))


def test_an_error_of_hparams_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*args: Any) -> None:
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr('paxtune.running.hparams.EventFile', refused)
    monkeypatch.setattr('paxtune.running.hparams.replace_event_file', refused)
    study = search_in(tmp_path, two)
    assert [trial.status for trial in study.trials] == ['completed'] * 4
    assert 'HParams were not written: PermissionError: ' in caplog.text


@pytest.mark.parametrize('value', [10**400, '\udc80'], ids=['number', 'text'])
def test_a_candidate_that_tensorboard_cannot_have_is_searched(tmp_path: Path, value: Any) -> None:
    study = paxtune.tune(
        lambda x: float(x == 1),
        space={'x': pg.oneof([value, 1])},
        objective='maximize',
        num_trials=2,
        job_log_dir=tmp_path,
        callbacks=[],
    )
    assert [trial.status for trial in study.trials] == ['completed'] * 2


@pytest.mark.slow
def test_hparams_of_workers_are_those_of_one_process(tmp_path: Path) -> None:
    for workers in (1, 2):
        study = paxtune.tune(
            process_of,
            job_log_dir=tmp_path / str(workers),
            engine=paxtune.Workers(workers),
            callbacks=[],
            **PARALLEL,
        )
        tab = hparams_tab(tmp_path / str(workers))
        assert set(tab.metrics) == {'reward/objective', 'trial/objective', 'trial/process'}
        rewards = [row.metrics['reward/objective'] for row in tab.trials.values()]
        assert sorted(rewards) == pytest.approx(sorted(t.rewards[0] for t in study.trials))
        assert all(row.statuses == ['STATUS_SUCCESS'] for row in tab.trials.values())


@pytest.mark.slow
def test_hparams_of_an_experiment_stand_beside_its_summaries(tmp_path: Path) -> None:
    paxtune.tune(Rates(), num_trials=1, job_log_dir=tmp_path, callbacks=[])
    tab = hparams_tab(tmp_path)
    ((name, row),) = tab.trials.items()
    assert row.hparams.keys() == tab.domains.keys()
    assert {'reward/eval/log_pplx', 'trial/eval/loss', 'trial/train/loss'} < row.metrics.keys()
    runs = multiplexer_of(tmp_path).Runs()
    assert {name, f'{name}/summaries'} < runs.keys()


@pytest.mark.slow
def test_hparams_of_a_bucket(tmp_path: Path, store: epath.Path) -> None:
    kept = LocalStore(Database(None))
    study = open_study(store / 'hparams', SPACE, search=search(budget=Budget(2)), store=kept)
    Tuner(study, FunctionRunner(two)).run()
    home = store / 'hparams'
    for file in [*home.glob('*tfevents*'), *home.glob('trials/*/*tfevents*')]:
        copy = tmp_path / file.relative_to(store)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    tab = hparams_tab(tmp_path / 'hparams')
    assert [row.metrics['trial/loss'] for row in tab.trials.values()] == [1.0, 1.0]
    assert [row.statuses for row in tab.trials.values()] == [['STATUS_SUCCESS']] * 2
