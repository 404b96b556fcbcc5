"""A study is a run of MLflow, and each trial a nested one. The server is MLflow's own."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pyglove as pg
import pytest

import paxtune
from paxtune.integrations.mlflow import MlflowCallback
from paxtune.running.tuner import Paused
from paxtune.study.study import Study
from tests.factories.function_studies import PARALLEL, process_of
from tools.servers.ports import unused_port
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.slow

QUIET = {'MLFLOW_DISABLE_TELEMETRY': 'true', 'MLFLOW_SERVER_ENABLE_JOB_EXECUTION': 'false'}
PATIENCE = 240.0
SPACE = {'rate': pg.floatv(0.0, 1.0), 'layers': [pg.oneof(['a', {'width': pg.oneof([1, 2])}])]}

KILLED = """
import os, sys, paxtune, pyglove as pg
from paxtune.integrations.mlflow import MlflowCallback

def steps(x, trial):
    for step in range((trial.continues_from or (0, 0))[1] + 1, 4):
        if trial.id == 2 and step == 3 and sys.argv[3] == 'kill':
            os._exit(9)
        yield step, {'objective': x + step}

paxtune.tune(
    steps, space={'x': pg.floatv(0.0, 1.0)}, objective='minimize', num_trials=3, seed=1,
    algorithm='random_search', job_log_dir=sys.argv[1], callbacks=[MlflowCallback(sys.argv[2])],
)
"""


@contextlib.contextmanager
def server(directory: Path, port: int) -> Iterator[str]:
    """Runs MLflow's server on this machine, with SQLite."""
    uri = f'http://127.0.0.1:{port}'
    store = f'sqlite:///{directory}/mlflow.db'
    command = [sys.executable, '-m', 'mlflow', 'server', '--backend-store-uri', store]
    command += ['--artifacts-destination', str(directory), '--host=127.0.0.1', f'--port={port}']
    with (directory / 'log').open('a') as log:
        process = subprocess.Popen(
            [*command, '--workers=1'],
            stdout=log,
            stderr=log,
            env={**os.environ, **QUIET},
            start_new_session=True,
        )
    try:
        end = time.monotonic() + PATIENCE
        while not answers(uri):
            assert process.poll() is None and time.monotonic() < end, log.name
            time.sleep(0.1)
        yield uri
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def answers(uri: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f'{uri}/health') as reply:
        return bool(reply.status == 200)
    return False


@pytest.fixture(scope='module')
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp('mlflow'), unused_port()) as found:
        yield found


def runs_of(uri: str, study: Study) -> tuple[Any, dict[int, Any]]:
    """The run of a study, and those of its trials by number."""
    client = mlflow.MlflowClient(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'paxtune'")
    found = client.search_runs(
        [experiment.experiment_id], f"tags.`paxtune.study` = '{study.record.uuid}'"
    )
    (parent,) = (run for run in found if 'mlflow.parentRunId' not in run.data.tags)
    children = [run for run in found if run is not parent]
    assert {r.data.tags['mlflow.parentRunId'] for r in children} <= {parent.info.run_id}
    by_number = {int(run.data.tags['paxtune.trial']): run for run in children}
    assert len(by_number) == len(children)
    return parent, by_number


def curve(uri: str, run: Any, metric: str) -> list[tuple[int, float]]:
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, metric)
    return [(each.step, each.value) for each in history]


def score(values: Any) -> Iterator[dict[str, float]]:
    if values.rate < 0.4:
        raise ValueError('too small')
    yield {'objective': values.rate, 'time (s)': 1.0}
    yield {'objective': values.rate * 2, 'time (s)': 2.0}


@pytest.mark.contract
def test_mlflow_has_the_decisions_measurements_and_state_of_each_trial(
    uri: str, tmp_path: Path
) -> None:
    study = paxtune.tune(
        score,
        space=SPACE,
        objective='maximize',
        algorithm='random_search',
        num_trials=8,
        seed=0,
        job_log_dir=tmp_path,
        callbacks=[MlflowCallback(uri)],
    )
    parent, children = runs_of(uri, study)
    assert parent.info.status == 'FINISHED'
    assert parent.info.run_name == tmp_path.name
    assert study.best is not None
    assert parent.data.tags['paxtune.best_trial'] == str(study.best.id)
    params = parent.data.params
    assert params.pop('space/layers_0_').startswith('one of a, ')
    assert params == {
        'objective': 'objective',
        'algorithm': 'RandomSearch',
        'scheduler': 'none',
        'seed': '0',
        'space/rate': 'a number from 0.0 to 1.0',
        'space/layers_0_.width': 'one of 1, 2',
    }
    assert parent.data.metrics == {'best_reward': study.best.reward}
    steps = curve(uri, parent, 'best_reward')
    assert steps[-1][0] == 8 and sorted(steps) == steps
    assert {trial.status for trial in study.trials} == {'completed', 'infeasible'}
    assert children.keys() == {trial.id for trial in study.trials}
    for trial in study.trials:
        run = children[trial.id]
        given = {name.replace('[0]', '_0_'): str(v) for name, v in trial.decisions.items()}
        assert run.data.params == {name.replace('[=1/2]', '__1_2_'): v for name, v in given.items()}
        assert run.data.tags['paxtune.state'] == trial.status
        assert run.data.tags['paxtune.directory'] == str(trial.directory)
        if trial.status == 'completed':
            assert run.info.status == 'FINISHED'
            assert run.data.tags['paxtune.reward'] == str(trial.reward)
            rate = trial.decisions['rate']
            assert curve(uri, run, 'objective') == [(1, rate), (2, rate * 2)]
            assert curve(uri, run, 'time _s_') == [(1, 1.0), (2, 2.0)]
            assert run.data.metrics['reward'] == trial.reward
        else:
            assert run.info.status == 'FAILED'
            assert run.data.tags['paxtune.reason'] == trial.reason


def test_mlflow_continues_the_run_of_a_trial_whose_process_was_killed(
    uri: str, tmp_path: Path
) -> None:
    script, home = tmp_path / 'script.py', tmp_path / 'study'
    script.write_text(KILLED)
    arguments = [sys.executable, str(script), str(home), uri]
    environment = {**os.environ, 'PYTHONPATH': str(Path(paxtune.__file__).parents[1])}
    killed = subprocess.run([*arguments, 'kill'], env=environment, check=False)
    assert killed.returncode == 9
    with paxtune.load_study(home) as study:
        parent, before = runs_of(uri, study)
    assert [(number, run.info.status) for number, run in sorted(before.items())] == [
        (1, 'FINISHED'),
        (2, 'RUNNING'),
    ]
    subprocess.run([*arguments, 'go'], env=environment, check=True)
    with paxtune.load_study(home) as study:
        again, after = runs_of(uri, study)
        assert again.info.run_id == parent.info.run_id
        assert again.info.status == 'FINISHED'
        assert {n: after[n].info.run_id for n in (1, 2)} == {
            n: run.info.run_id for n, run in before.items()
        }
        for trial in study.trials:
            # MLflow keeps a step that the killed process has sent, too.
            points = {*curve(uri, after[trial.id], 'objective')}
            assert points == {(each.step, each.reward) for each in trial.measurements}
            assert after[trial.id].info.status == 'FINISHED'


def test_mlflow_waits_with_the_study_that_was_interrupted(uri: str, tmp_path: Path) -> None:
    def tuned(is_asked: bool) -> Study:
        return paxtune.tune(
            score,
            space={'rate': pg.floatv(0.5, 1.0)},
            objective='maximize',
            num_trials=1,
            job_log_dir=tmp_path,
            callbacks=[MlflowCallback(uri)],
            should_interrupt=lambda: is_asked and bool(list(tmp_path.glob('trials/*'))),
        )

    with pytest.raises(Paused):
        tuned(True)
    with paxtune.load_study(tmp_path) as study:
        parent, (child,) = (found := runs_of(uri, study))[0], found[1].values()
    assert (parent.info.status, child.info.status) == ('SCHEDULED', 'SCHEDULED')
    assert child.data.tags['paxtune.state'] == 'interrupted'
    with tuned(False) as study:
        parent, (child,) = (found := runs_of(uri, study))[0], found[1].values()
    assert (parent.info.status, child.info.status) == ('FINISHED', 'FINISHED')


@pytest.mark.parametrize('engine', [paxtune.Workers(2), paxtune.Threads(2)])
def test_mlflow_hears_of_trials_that_run_elsewhere(uri: str, tmp_path: Path, engine: Any) -> None:
    callbacks = [MlflowCallback(uri)]
    study = paxtune.tune(
        process_of, job_log_dir=tmp_path, engine=engine, callbacks=callbacks, **PARALLEL
    )
    _, children = runs_of(uri, study)
    assert children.keys() == {1, 2, 3, 4}
    for trial in study.trials:
        assert trial.reward == children[trial.id].data.metrics['objective']
        assert children[trial.id].data.tags['paxtune.state'] == 'completed'


def test_an_mlflow_server_that_never_answers_holds_a_search_briefly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, began = dict(os.environ), time.monotonic()
    with socket.create_server(('127.0.0.1', 0)) as silent:
        uri = f'http://127.0.0.1:{silent.getsockname()[1]}'
        study = paxtune.tune(
            score,
            space={'rate': pg.floatv(0.5, 1.0)},
            objective='maximize',
            num_trials=3,
            job_log_dir=tmp_path,
            callbacks=[MlflowCallback(uri, timeout=1.0)],
        )
    assert [trial.status for trial in study.trials] == ['completed'] * 3
    (warning,) = (r.getMessage() for r in caplog.records if 'of the study' in r.getMessage())
    assert warning.startswith('MLflow lacks a part of the study: MlflowException')
    assert time.monotonic() - began < 60.0
    assert dict(os.environ) == before


def test_mlflow_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'mlflow', None)
    with pytest.raises(UserError, match=r"pip install 'paxtune\[mlflow\]'"):
        MlflowCallback()
