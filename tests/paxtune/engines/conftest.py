"""The search of several processes that others are compared with."""

from pathlib import Path
from typing import Any

import pytest

from paxtune.storage.open_study import load_study
from paxtune.study.study_view import StudyView
from tests.factories import multi_process as joined
from tests.servers.processes import Ended, all_passed, job

assert joined.__name__  # Importing it makes its classes known to `load_study`.


def search(directory: Path, *flags: str, **how: Any) -> list[Ended]:
    exp = '--exp=tests.factories.multi_process.Search'
    flags = (exp, f'--job_log_dir={directory}', *flags)
    return job('paxtune.search', *flags, **how)


def told(study: StudyView) -> list[Any]:
    """All that a loss must not change."""
    return [
        (
            trial.id,
            trial.status,
            trial.decisions,
            trial.reason,
            [(m.step, m.reward) for m in trial.measurements],
        )
        for trial in study.trials
    ]


@pytest.fixture(scope='session')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    directory = tmp_path_factory.mktemp('undisturbed')
    first, other = search(directory)
    assert 'The study is done' in all_passed([first, other])
    assert other.out == ''
    with load_study(directory) as study:
        return told(study)
