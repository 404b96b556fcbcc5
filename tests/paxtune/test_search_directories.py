"""Directories of searches, with the default flags."""

import json
import subprocess
import sys
from pathlib import Path

import pyglove as pg
import pytest

import paxtune
from paxtune import search
from paxtune.config.budget import Budget
from paxtune.service.address import Service
from paxtune.service.remote_store import RemoteStore
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.study_file import UUID_FILE
from tests.factories import function_studies as functions
from tests.factories import tunables
from tests.factories.function_studies import OBJECTIVE
from tests.paxtune.test_serve import refused, served
from tests.servers.processes import command, environment, passed
from trainer.symbolic.errors import UserError

SEARCH = ('--exp=tests.factories.tunables.Rates', '--num_trials=1')


@pytest.mark.slow
def test_two_studies_of_one_service_do_not_share_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with served(f'--database={tmp_path}/studies.db', '--port=0') as (_, endpoint, _):
        service = f'--vizier_endpoint={endpoint}'
        batches = {'one': 8, 'two': 4}
        for study, batch in batches.items():
            flags = [service, f'--study={study}', '--set', f'train_input.batch_size={batch}']
            assert search.main([*SEARCH, *flags]) == 0
        for study, batch in batches.items():
            (record,) = (tmp_path / 'runs' / study / 'trials').glob('*/experiment.json')
            assert f'"batch_size": {batch}' in record.read_text()
        owners = {(tmp_path / 'runs' / study / UUID_FILE).read_text() for study in batches}
        assert len(owners) == 2
        with pytest.raises(UserError, match='runs/one has the trials of another study'):
            search.main([*SEARCH, service, '--study=three', '--job_log_dir=runs/one'])


@pytest.mark.slow
def test_a_service_and_a_search_do_not_share_a_database(tmp_path: Path) -> None:
    study = tmp_path / 'study'
    database = f'--database={study}/study.db'
    with open_study(study, tunables.rates(num_trials=1)) as opened:
        assert 'another service, or a search' in refused(database, '--port=0')
        assert opened.ask() is not None
    with (
        served(database, '--port=0') as (process, _, _),
        pytest.raises(UserError, match=f'process {process.pid} is working there'),
    ):
        search.main([*SEARCH, f'--job_log_dir={study}'])
    with load_study(study) as opened:
        assert [trial.state for trial in opened.trials] == ['ACTIVE']


# --- Two commands at once ---


def at_once(cwd: Path, code: str) -> list[str]:
    """Runs code in two processes, which begin together; returns what each prints."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                '-c',
                f'import paxtune.studies.__main__ as studies; input(); {code}',
            ],
            cwd=cwd,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write('\n')
        process.stdin.flush()
    found = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A finished study of a function, with four trials."""
    paxtune.tune(functions.process_of, job_log_dir=tmp_path / 'source', **functions.PARALLEL)
    return tmp_path / 'source'


@pytest.mark.slow
def test_two_who_ask_at_once_get_different_trials(tmp_path: Path) -> None:
    how = functions.search(budget=Budget(8))
    open_study(tmp_path / 'study', pg.Dict(x=pg.floatv(0.0, 1.0)), search=how).close()
    printed = at_once(tmp_path, "studies.main(['ask', 'study', '--count=4'])")
    asked = [json.loads(line) for each in printed for line in each.splitlines()]
    assert sorted(line['trial'] for line in asked) == list(range(1, 9))
    assert len({str(line['decisions']) for line in asked}) == 8


@pytest.mark.slow
def test_two_forks_at_once_begin_with_each_trial_once(tmp_path: Path, source: Path) -> None:
    own = {'job_log_dir': 'fork', 'fork_study': 'source', 'num_trials': 6}
    fields = f'**(functions.PARALLEL | {own!r})'
    code = 'import paxtune; from tests.factories import function_studies as functions; '
    at_once(tmp_path, f'{code}paxtune.tune(functions.process_of, {fields}).close()')
    with load_study(tmp_path / 'fork') as study:
        origins = [trial.lineage.origin for trial in study.trials]
    assert origins == [f'{source}#{number}' for number in range(1, 5)] + ['algorithm'] * 2


@pytest.mark.slow
def test_two_imports_at_once_add_each_trial_once(tmp_path: Path, source: Path) -> None:
    passed(command('paxtune.studies', 'export', str(source), f'--out={tmp_path}/trials.json'))
    with served(f'--database={tmp_path}/studies.db', '--port=0') as (_, endpoint, _):
        store = RemoteStore(Service(endpoint, 'mine').client())
        space = pg.Dict(x=pg.floatv(0.0, 1.0))
        how = functions.search(objective=OBJECTIVE)
        with open_study(tmp_path / 'mine', space, search=how, store=store):
            flags = [f'--vizier_endpoint={endpoint}', '--study=mine']
            printed = at_once(tmp_path, f"studies.main(['import', *{flags!r}, 'trials.json'])")
            assert sorted(line.split()[0] for line in printed) == ['0', '4']
            assert len(store.ids()) == 4
