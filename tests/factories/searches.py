"""Runs `python -m paxtune.search` in this process, for tests."""

from pathlib import Path

from paxtune import search
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial

MODULE = 'tests.factories.tunables'


def run(directory: Path, name: str = 'Rates', *flags: str) -> list[Trial]:
    code = search.main([f'--exp={MODULE}.{name}', f'--job_log_dir={directory}', *flags])
    assert code == 0
    with load_study(directory) as study:
        return study.trials
