"""Directories of trials that hold files of other trials."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.runner import Refusal
from paxtune.running.trial_json import OtherTrialError
from paxtune.running.tuner import Tuner
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import load_study, open_study
from paxtune.storage.study_file import UUID_FILE
from paxtune.study.record import Lineage
from paxtune.study.study import Study
from paxtune.study.trial_paths import trial_directory
from tests.factories import tunables
from tests.factories.searches import run
from tests.factories.studies import ask, rewrite
from trainer.checkpoints import experiment_record
from trainer.loop.report import Report
from trainer.symbolic.errors import UserError


def pretended(experiment: Any, directory: Path, _: object) -> Generator[Report, None, None]:
    """Records the experiment, and measures once."""
    directory.mkdir(parents=True, exist_ok=True)
    experiment_record.write(directory, experiment_record.recorded(experiment), 0, [])
    yield Report(6, {'eval/log_pplx': 1.0}, is_last=True)


def tune(study: Study) -> None:
    Tuner(study, ExperimentRunner(train=pretended)).run()


def in_service(directory: Path, **changes: Any) -> Study:
    """A study whose database is not in the directory of its trials."""
    return open_study(directory, tunables.rates(**changes), store=LocalStore(Database(None)))


def adopting(directory: Path, **changes: Any) -> Study:
    """Another study of the same directory, whose uuid is lost."""
    (directory / UUID_FILE).unlink()
    return in_service(directory, **changes)


def directories(study: Study) -> list[Path]:
    return [Path(trial_directory(study.directory, trial)) for trial in study.trials]


def test_two_studies_in_one_directory_do_not_share_a_trial(tmp_path: Path) -> None:
    with in_service(tmp_path) as first, adopting(tmp_path) as second:
        tune(first)
        before = [path.read_text() for path in sorted(tmp_path.rglob('*.json'))]
        with pytest.raises(OtherTrialError, match=r'0001-.* holds a trial of another study'):
            tune(second)
        assert [path.read_text() for path in sorted(tmp_path.rglob('*.json'))] == before
        assert [trial.state for trial in second.trials] == ['ACTIVE']
        # The message says what to do.
        for directory in directories(first):
            directory.rename(tmp_path / directory.name)
        tune(second)
        assert [trial.state for trial in second.trials] == ['COMPLETED'] * 2


def test_a_trial_does_not_resume_in_a_directory_of_another_experiment(tmp_path: Path) -> None:
    batch = 'train_input__batch_size'
    with in_service(tmp_path) as first, adopting(tmp_path, **{batch: 4}) as second:
        tune(first)
        for directory in directories(first):
            (directory / 'trial.json').unlink()
        with pytest.raises(OtherTrialError, match=r'train_input\.batch_size: 8 → 4') as caught:
            tune(second)
        assert 'Move that directory away' in str(caught.value)
        record = json.loads((directories(first)[0] / 'experiment.json').read_text())
        assert record['train_input']['batch_size'] == 8
        assert [trial.state for trial in second.trials] == ['ACTIVE']


@pytest.mark.parametrize('lineage', [{'forked_from': (1, 2)}, {'warm_start': 1}])
def test_a_trial_does_not_begin_with_weights_of_another_experiment(
    tmp_path: Path, lineage: dict[str, Any]
) -> None:
    with open_study(tmp_path, tunables.rates()) as study:
        parent = ask(study)
        directory = Path(trial_directory(tmp_path, parent.view))
        other = parent.materialize().rebind({'train_input.batch_size': 4})
        list(pretended(other, directory, lambda: False))
        parent.fail('for a reason')
        trial = ask(study)
        rewrite(study, 2, lineage=Lineage(**lineage))
        with pytest.raises(OtherTrialError, match=rf'{directory} holds .* than that of trial 1'):
            ExperimentRunner().prepare(study, study.open_trial(trial.id))


@pytest.mark.parametrize('where', ['own', 'fork'])
def test_checkpoints_without_a_record_are_those_of_a_fork_that_has_yet_to_begin(
    tmp_path: Path, where: str
) -> None:
    with open_study(tmp_path, tunables.rates()) as study:
        trial = ask(study)
        directory = Path(trial_directory(tmp_path, trial.view))
        (directory / 'checkpoints' / '2').mkdir(parents=True)
        (directory / 'checkpoints' / '2' / '_CHECKPOINT_METADATA').write_text('{}')
        if where == 'fork':
            (directory / 'forked_from.json').write_text('{}')
            assert not isinstance(ExperimentRunner().prepare(study, trial), Refusal)
        else:
            with pytest.raises(OtherTrialError, match=r'experiment\.json: missing'):
                ExperimentRunner().prepare(study, trial)


def test_a_larger_budget_is_no_other_experiment(tmp_path: Path) -> None:
    with open_study(tmp_path, tunables.rates(num_trials=1)) as study:
        trial = study.ask()
        assert trial is not None
        list(pretended(trial.materialize(), directories(study)[0], lambda: False))
    with open_study(tmp_path, tunables.rates(num_trials=2)) as study:
        tune(study)
        assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2


@pytest.mark.slow
@pytest.mark.parametrize('flags', [(), ('--workers=1',)], ids=['here', 'in a worker'])
def test_a_trial_does_not_resume_in_the_directory_of_a_deleted_one(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    run(tmp_path, 'Rates', '--num_trials=1')
    with load_study(tmp_path, read_only=False) as study:
        study.delete_trial(1)
    with pytest.raises(UserError, match=r'0001-.* holds a trial of another study, or a deleted'):
        run(tmp_path, 'Rates', '--num_trials=1', *flags)
    with load_study(tmp_path) as study:
        assert [trial.state for trial in study.trials] == ['ACTIVE']
        assert study.trials[0].measurements == []


@pytest.mark.slow
def test_a_search_without_its_database_reports_no_reward_of_an_earlier_one(tmp_path: Path) -> None:
    run(tmp_path, 'Rates', '--num_trials=1')
    for is_empty in (False, True):
        (tmp_path / 'study.db').unlink(missing_ok=True)
        if is_empty:
            (tmp_path / 'study.db').touch()
        with pytest.raises(UserError, match='has the trials of another study'):
            run(tmp_path, 'Rates', '--num_trials=1', '--set', 'train_input.batch_size=4')
