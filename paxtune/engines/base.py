"""Interface of engines."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from paxtune.config.search import Search
from paxtune.running.callbacks import Callback
from paxtune.running.runner import Runner
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_plan
from paxtune.storage.preview import Preview, preview_plan
from paxtune.storage.similar_studies import PriorStudy
from paxtune.storage.vizier_store import database
from paxtune.study import checkpoint_retention
from paxtune.study.plan import SearchPlan
from paxtune.study.store import StudyStore
from paxtune.study.study import Study
from trainer.runtime.directory import JobPath
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.plain_numbers import plain


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of an engine.

    Attributes:
        study: an open study.
        runner: runs a trial in this process.
        callbacks: listen to the study.
        should_interrupt: asked often; on True running trials are saved.
    """

    study: Study
    runner: Runner
    callbacks: Sequence[Callback]
    should_interrupt: Callable[[], bool]


def is_count(value: Any) -> bool:
    """Returns True for an integer of at least 1."""
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def require_counts(engine: Any, *names: str) -> None:
    """Raises UserError unless the named fields are integers of at least 1."""
    for name in names:
        if not is_count(given := getattr(engine, name)):
            where = f'{type(engine).__name__}.{name}'
            raise UserError(f'{where}: expected an integer of at least 1, not {given!r}')


class Engine:
    """Runs the trials of a search.

    A new engine overrides `run`, and the other methods where it differs from a search in this
    process, whose study is in `<directory>/study.db`.

    Attributes:
        joins: whether several processes may run trials of a function for one directory.
    """

    has_workers: ClassVar[bool] = False
    """True if trials run in processes that can be ended."""

    joins: ClassVar[bool] = False

    keeps_study: ClassVar[bool] = True
    """True if the directory has the study, and no server keeps it."""

    may_correct: ClassVar[bool] = True
    """True if a changed experiment may replace a study without rewards."""

    @property
    def description(self) -> str:
        """Where trials run, for people."""
        return 'in this process, one trial after another'

    @property
    def trials_at_once(self) -> int:
        """The number of trials that this search runs at a time."""
        return 1

    @property
    def trials_per_process(self) -> int:
        """The number of them that share the time of a process, as one program."""
        return 1

    def directory(self, given: str | os.PathLike[str] | None) -> JobPath | None:
        """Returns the directory of the study; raises UserError if it cannot be used."""
        return None if given is None else database(given).parent

    def require_function(self, runner: Runner) -> None:
        """Raises UserError unless trials can call the function of a runner."""
        if self.trials_per_process > 1:
            raise UserError(
                '--pack is for the trials of experiments. For a function, use Threads(K), or '
                'Workers without it'
            )
        if self.has_workers:
            runner.worker_arguments('')

    def require_search(self, search: Search, directory: JobPath | None) -> None:
        """Raises UserError unless a search can run here, and write to a directory."""
        checkpoint_retention.check(search, directory)
        if search.faults.trial_timeout is not None and not self.has_workers:
            raise UserError(
                'search.faults.trial_timeout (--trial_timeout): nothing can end a trial in the '
                'process of the search: use workers (--workers=1), or set it to None'
            )

    def follow(
        self, directory: JobPath | None, plan: SearchPlan, should_interrupt: Callable[[], bool]
    ) -> Study | None:
        """Takes part in the search of another process, to its end.

        Asks `should_interrupt` before every execution of training steps: on True the trial is
        saved, and the search of all processes paused.

        Returns:
            The study, to be read; None where no other process leads.
        """
        return None

    def open(
        self, directory: JobPath | None, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> tuple[Study, AbstractContextManager[object]]:
        """Opens the study, and locks its directory.

        Args:
            directory: of the study; None keeps it in memory.
            plan: the search.
            prior_studies: directories of studies to learn from, where this one is new.

        Returns:
            The study, and a context to leave when the search ends.
        """
        is_alone = not self.joins or isinstance(plan.space.value, Component)
        study = open_plan(
            directory, plan, priors=prior_studies, may_correct=self.may_correct, is_alone=is_alone
        )
        held = contextlib.ExitStack()
        if isinstance(study.store, LocalStore):
            held.callback(study.store.release)
        return study, held

    def reopened(self, study: Study) -> Study:
        """Opens the study again, if the end of the search has closed it; returns an open study."""
        return study

    def preview(
        self, directory: JobPath, plan: SearchPlan, prior_studies: Sequence[PriorStudy]
    ) -> Preview:
        """Opens the study as `open` does, to look at it; writes and starts nothing."""
        return preview_plan(directory, plan, prior_studies, self.keeper(), self.may_correct)

    def keeper(self) -> StudyStore | None:
        """Connects to the server that keeps the study; None for `<directory>/study.db`."""
        return None

    def run(self, job: Job) -> None:
        """Runs trials until the study is done.

        Raises:
            Paused: the study continues in a later call.
            StudyStoppedError: an error stops the study.
            UserError: the engine cannot start.
        """
        raise NotImplementedError(type(self).__name__)
