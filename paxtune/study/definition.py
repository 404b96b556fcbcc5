"""Changes of a study's definition: its value, its search, its data."""

from collections.abc import Iterable

import pyglove as pg

from paxtune.search_space.differences import differences
from paxtune.study.record import RETRY, StudyRecord, TrialRecord
from paxtune.study.redefinition import MUTABLE
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import with_plain_scales
from trainer.symbolic.serialization import from_json_text, to_json_text


class ChangedStudyError(UserError):
    """The study in a directory is of another experiment or other data: see `changes`."""

    def __init__(self, changes: str, what: str) -> None:
        super().__init__(f'{changes}\nUse another --job_log_dir for the changed {what}.')
        self.changes = changes


def validate_unchanged(stored: StudyRecord, now: StudyRecord, directory: JobPath | None) -> None:
    """Raises ChangedStudyError if a stored definition differs in more than the budgets."""
    differences = _differences_between(stored.value, now.value, 'search.')
    differences += _differences_between(stored.search or '{}', now.search or '{}', '')
    if differences:
        lines = [f'{directory} holds a study of another experiment. There, and now:', *differences]
        raise ChangedStudyError('\n'.join(lines), 'experiment')
    for name in sorted({*stored.data, *now.data}):
        before, after = stored.data.get(name), now.data.get(name)
        if before != after:
            raise ChangedStudyError(
                f'{directory} holds a study of other data: the fingerprint of {name} was {before} '
                f'there, and is {after} now.',
                'data',
            )


def is_correctable(definition: StudyRecord, trials: Iterable[TrialRecord]) -> bool:
    """Returns True if no trial has a reward, or was added by people.

    A measurement counts only with rewards: without them it lacks a metric that the study asks for.
    """
    return not any(
        trial.final is not None
        or trial.lineage.origin in ('added', RETRY)
        or any(each.rewards or not definition.goals for each in trial.measurements)
        for trial in trials
    )


def _differences_between(before: str, after: str, search: str) -> list[str]:
    """Lists differences of values in JSON, except `MUTABLE` fields under the prefix `search`."""
    if before == after:
        return []
    there, asked = (
        with_plain_scales(from_json_text(text, pg.Symbolic, 'the study'))
        for text in (before, after)
    )
    for path in (f'{search}{name}' for name in MUTABLE):
        if asked.sym_has(path) and there.sym_has(path):
            there.rebind({path: asked.sym_get(path)}, raise_on_no_change=False)
    # Compared as text: a class may have got a field with a default since the study was written.
    if to_json_text(there) == to_json_text(asked):
        return []
    return [f'  {difference}' for difference in differences(there, asked)]
