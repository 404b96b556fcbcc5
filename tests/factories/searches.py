"""Searches of `tests.factories.tunables`, in this process or in one that is killed."""

from pathlib import Path
from typing import Any

from paxtune.search import main
from paxtune.storage.open_study import load_study
from paxtune.study.trial import Trial
from tests.factories import tunables
from tests.servers.processes import command

MODULE = 'tests.factories.tunables'


def run(directory: Path, name: str = 'Rates', *flags: str) -> list[Trial]:
    code = main([f'--exp={MODULE}.{name}', f'--job_log_dir={directory}', *flags])
    assert code == 0
    with load_study(directory) as study:
        return study.trials


assert tunables.__name__  # Importing it makes its classes known to `load_study`.


def search(experiment: str, directory: Path, kill: str | None = None) -> Any:
    """Searches a name in `tests.factories.tunables`; `tests.servers.killer` explains `kill`."""
    flags = [f'--exp=tests.factories.tunables.{experiment}', f'--job_log_dir={directory}']
    return command('paxtune.search', *flags, kill=kill)


def trials_of(directory: Path) -> list[Trial]:
    with load_study(directory) as study:
        return study.trials


def told(trials: list[Trial]) -> list[Any]:
    """All that a kill must not change."""
    return [
        (
            trial.id,
            trial.state,
            trial.decisions,
            trial.lineage.parent,
            trial.stop_reason,
            [(m.step, m.reward) for m in trial.measurements],
        )
        for trial in trials
    ]
