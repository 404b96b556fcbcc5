"""A study is a group of Weights & Biases, and each trial a run; here all are offline."""

import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyglove as pg
import pytest

import paxtune
from paxtune.integrations.wandb import WandbCallback
from paxtune.running.tuner import Paused
from paxtune.study.study import Study
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.slow

SPACE = {'rate': pg.floatv(0.0, 1.0), 'layer': pg.oneof(['a', pg.Dict(width=pg.oneof([1, 2]))])}


class Run(NamedTuple):
    """A run, as `wandb sync` would send it."""

    id: str
    group: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    exit_codes: list[int]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_ERROR_REPORTING', 'false')
    # Any request would fail.
    monkeypatch.setenv('WANDB_BASE_URL', 'http://127.0.0.1:9')


def runs_in(directory: Path) -> dict[int, list[Run]]:
    """Reads the runs below a directory with wandb's own reader, by trial."""
    found = defaultdict(list)
    for file in sorted(directory.glob('wandb/offline-run-*/*.wandb')):
        run = read(file)
        found[int(run.id.rpartition('-')[2])].append(run)
    return dict(found)


def read(file: Path) -> Run:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    protos: Any = wandb_internal_pb2  # Generated code makes its classes at import.
    run, history, ended = None, [], []
    summary: dict[str, Any] = {}
    with contextlib.closing(DataStore()) as store:
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = protos.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof('record_type')
            if kind == 'run':
                run = record.run
            elif kind == 'history':
                history.append(items(record.history.item))
            elif kind == 'summary':
                summary |= items(record.summary.update)
            elif kind == 'exit':
                ended.append(record.exit.exit_code)
    assert run is not None
    return Run(run.run_id, run.run_group, items(run.config.update), history, summary, ended)


def items(found: Sequence[Any]) -> dict[str, Any]:
    return {item.key or '/'.join(item.nested_key): json.loads(item.value_json) for item in found}


def score(values: Any) -> Iterator[dict[str, float]]:
    if values.rate < 0.4:
        raise ValueError('too small')
    yield {'objective': values.rate}
    yield {'objective': values.rate * 2}


def tuned(home: Path, **arguments: Any) -> Study:
    given: dict[str, Any] = {
        'space': SPACE,
        'objective': 'maximize',
        'algorithm': 'random_search',
        'seed': 0,
    }
    callbacks = arguments.pop('callbacks', [WandbCallback('tests')])
    return paxtune.tune(score, job_log_dir=home, callbacks=callbacks, **(given | arguments))


@pytest.mark.contract
def test_wandb_has_the_decisions_measurements_and_state_of_each_trial(tmp_path: Path) -> None:
    study = tuned(tmp_path, num_trials=6)
    assert {trial.status for trial in study.trials} == {'completed', 'infeasible'}
    found = runs_in(tmp_path)
    assert found.keys() == {trial.id for trial in study.trials}
    for trial in study.trials:
        (run,) = found[trial.id]
        assert run.group == f'{tmp_path.name}-{study.record.uuid[:12]}'
        assert {name: run.config[name] for name in trial.decisions} == trial.decisions
        assert ('layer.width' in run.config) == ('layer.width' in trial.decisions)
        assert run.summary['state'] == trial.status
        assert run.summary['directory'] == str(trial.directory)
        if trial.status == 'completed':
            rate = trial.decisions['rate']
            rows = [(row['_step'], row['objective'], row['reward']) for row in run.history]
            assert rows == [(1, rate, rate), (2, rate * 2, rate * 2)]
            assert run.summary['reward'] == trial.reward
            assert run.exit_codes == [0]
        else:
            assert run.summary['reason'] == trial.reason
            assert run.exit_codes == [1]


def test_wandb_continues_the_run_of_a_trial_that_resumes(tmp_path: Path) -> None:
    asked = iter([False, False])
    space = {'rate': pg.floatv(0.5, 1.0)}
    with pytest.raises(Paused):
        tuned(tmp_path, space=space, num_trials=2, should_interrupt=lambda: next(asked, True))
    tuned(tmp_path, space=space, num_trials=2).close()
    found = runs_in(tmp_path)
    assert found.keys() == {1, 2}
    first, last = found[1]
    assert first.id == last.id
    assert first.summary['state'] == 'interrupted'
    assert last.summary['state'] == 'completed'
    steps = [[row['_step'] for row in run.history] for run in (first, last)]
    assert sorted({*steps[0], *steps[1]}) == [1, 2]


def test_wandb_groups_the_runs_of_each_study(tmp_path: Path) -> None:
    callbacks = [WandbCallback('tests')]
    studies = [tuned(tmp_path / name, num_trials=1, callbacks=callbacks) for name in ('a', 'b')]
    for study, name in zip(studies, ('a', 'b'), strict=True):
        (run,) = runs_in(tmp_path / name)[1]
        assert run.group == f'{name}-{study.record.uuid[:12]}'


def test_wandb_that_fails_ends_no_search(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callbacks = [WandbCallback('tests', mode='no mode')]
    study = tuned(tmp_path, num_trials=2, callbacks=callbacks)
    assert all(trial.is_terminal for trial in study.trials)
    (warning,) = (r.getMessage() for r in caplog.records if 'of the study' in r.getMessage())
    assert warning.startswith('Weights & Biases lacks a part of the study: ')
    assert not runs_in(tmp_path)


def test_wandb_without_a_network_holds_a_search_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb  # Here: it takes seconds, and the fast suite collects this file, too.

    kept, init = [], wandb.init

    def kept_init(**given: Any) -> Any:
        kept.append(init(**given))
        return kept[-1]

    monkeypatch.setattr('wandb.init', kept_init)
    tuned(tmp_path, num_trials=1)
    (run,) = kept
    assert 0 < run.settings.init_timeout <= 30
    assert 0 < run.settings.finish_timeout <= 60
    assert run.settings.finish_timeout_raises


def test_wandb_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with pytest.raises(UserError, match=r"pip install 'paxtune\[wandb\]'"):
        WandbCallback()
