"""Directories of searches, with the default flags, as commands."""

from pathlib import Path

import pytest

from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.study_uuid import UUID_FILE
from tests.paxtune import tunables
from tests.paxtune.test_serve import refused, served
from tests.processes import command, passed

SEARCH = ('paxtune.search', '--exp=tests.paxtune.tunables.Rates', '--num_trials=1')


@pytest.mark.slow
def test_two_studies_of_one_service_do_not_share_a_directory(tmp_path: Path) -> None:
    with served(f'--database={tmp_path}/studies.db', '--port=0') as (_, endpoint, _):
        service = f'--vizier_endpoint={endpoint}'
        batches = {'one': 8, 'two': 4}
        for study, batch in batches.items():
            flags = [service, f'--study={study}', '--set', f'train_input.batch_size={batch}']
            passed(command(*SEARCH, *flags, cwd=tmp_path))
        for study, batch in batches.items():
            (record,) = (tmp_path / 'runs' / study / 'trials').glob('*/experiment.json')
            assert f'"batch_size": {batch}' in record.read_text()
        owners = {(tmp_path / 'runs' / study / UUID_FILE).read_text() for study in batches}
        assert len(owners) == 2
        shared = command(*SEARCH, service, '--study=three', '--job_log_dir=runs/one', cwd=tmp_path)
        assert shared.returncode == 2
        assert 'runs/one has the trials of another study' in shared.stderr


@pytest.mark.slow
def test_a_service_and_a_search_do_not_share_a_database(tmp_path: Path) -> None:
    study = tmp_path / 'study'
    database = f'--database={study}/study.db'
    with open_study(study, tunables.rates(num_trials=1)) as opened:
        assert 'another service, or a search' in refused(database, '--port=0')
        assert opened.ask() is not None
    with served(database, '--port=0') as (process, _, _):
        done = command(*SEARCH, f'--job_log_dir={study}')
        assert done.returncode == 2, done.stderr
        assert f'process {process.pid} is working there' in done.stderr
    with load_study(study) as opened:
        assert [trial.state for trial in opened.trials] == ['ACTIVE']
