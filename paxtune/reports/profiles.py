"""Profiles of the wall clock: of a study, of a search, and of a trial."""

import statistics
from collections.abc import Sequence

from paxtune.reports.tables import Row, Table
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.runtime.wall_clock import PHASES, Profile, added, profile_notes, total_seconds

_COLUMNS = ('phase', 'seconds', 'share', 'median of a trial')


def profile_of(study: StudyView) -> dict[str, float]:
    """Adds up the profiles of all workers of a study, within trials and between them."""
    return added(study.record.profile, *(each.record.profile for each in _own(study.trials)))


def since(study: StudyView, before: Profile) -> dict[str, float]:
    """The profile of a study without earlier searches."""
    return added(profile_of(study), {name: -value for name, value in before.items()})


def profile_table(
    profile: Profile, title: str = 'Wall clock', trials: Sequence[Trial] = ()
) -> Table:
    """Renders a profile; with `trials` it has a column of their median."""
    total = total_seconds(profile)
    if not total:
        return Table([], _COLUMNS)
    of_trials = [each.record.profile for each in _own(trials) if each.record.profile]
    rows: list[Row] = [
        _row(name, profile[name], total, [each.get(name, 0.0) for each in of_trials])
        for name in PHASES
        if name in profile
    ]
    rows.append(_row('total', total, total, [total_seconds(each) for each in of_trials]))
    return Table(rows, _COLUMNS, title, '. '.join(profile_notes(profile)))


def _row(name: str, seconds: float, total: float, of_trials: Sequence[float]) -> Row:
    row = {
        'phase': name.replace('_', '-'),
        'seconds': f'{seconds:.2f}',
        'share': f'{seconds / total:.1%}',
    }
    return row | ({_COLUMNS[-1]: f'{statistics.median(of_trials):.2f}'} if of_trials else {})


def _own(trials: Sequence[Trial]) -> list[Trial]:
    return [each for each in trials if not each.lineage.is_imported]
