"""The study that a search would open, without writing anything."""

import contextlib
import dataclasses
from collections.abc import Sequence

from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import (
    may_replace,
    open_plan,
    require_no_trials,
)
from paxtune.storage.similar_studies import PriorStudy
from paxtune.storage.study_file import require_own
from paxtune.storage.vizier_store import database
from paxtune.study.definition import ChangedStudyError, validate_unchanged
from paxtune.study.plan import SearchPlan
from paxtune.study.record import StudyRecord
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from trainer.runtime.directory import JobPath


@dataclasses.dataclass(frozen=True)
class Preview:
    """A study before its search.

    Attributes:
        study: in memory where the search would create it, and to be read only elsewhere.
        directory: where the trials would write.
        is_new: whether the search would create the study.
        replaced: the differences from a study that the search would replace; '' without one.
    """

    study: Study
    directory: JobPath
    is_new: bool
    replaced: str = ''


def preview_plan(
    directory: JobPath,
    plan: SearchPlan,
    prior_studies: Sequence[PriorStudy],
    store: StudyStore | None,
    may_correct: bool,
) -> Preview:
    """Opens the study of a plan as `open_plan` does, and writes nothing.

    Args:
        directory: of the study.
        plan: the search.
        prior_studies: directories of studies that the algorithm of a new study learns from.
        store: keeps the study, and is closed with it; `<directory>/study.db` by default.
        may_correct: see `open_plan`.

    Raises:
        UserError: as `open_plan`.
    """
    if store is None:
        file = database(directory)
        if file.exists() and file.stat().st_size:
            store = LocalStore(Database(file, read_only=True))
    with contextlib.ExitStack() as on_error:
        if store is not None:
            on_error.callback(store.close)
        stored = None if store is None else store.study()
        if stored is None:
            require_no_trials(directory)
            new = open_plan(None, plan, priors=prior_studies)
            return Preview(new, directory, is_new=True)
        assert store is not None
        try:
            _require_same(stored, plan, directory)
        except ChangedStudyError as error:
            if not (may_correct and isinstance(store, LocalStore) and may_replace(store, plan)):
                raise
            new = open_plan(None, plan)
            return Preview(new, directory, is_new=True, replaced=error.changes)
        on_error.pop_all()
        return Preview(Study(directory, plan, stored, store), directory, is_new=False)


def _require_same(stored: StudyRecord, plan: SearchPlan, directory: JobPath) -> None:
    require_own(directory, stored.uuid)
    validate_unchanged(stored, plan.record(False, stored.priors), directory)
