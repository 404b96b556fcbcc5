"""Jobs of a study on a cluster, which are submitted again when they are lost."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from absl import logging

from paxtune.engines.cluster_worker import Outcome
from paxtune.running.false_starts import FalseStarts
from paxtune.running.supervisor import DETACHED, STOPPED, WorkerError
from trainer.symbolic.errors import UserError


class Jobs(Protocol):
    """The jobs of a study on a cluster, each of which is a worker."""

    def submit(self, count: int) -> set[str]:
        """Submits jobs and returns their ids; raises UserError if the cluster refuses them."""

    def live(self) -> set[str] | None:
        """Lists the ids of jobs that wait, run or end; None if the cluster does not answer."""

    def outcomes(self) -> dict[str, Outcome]:
        """Takes the outcomes of jobs that have ended, by id. A lost job may have none."""

    def leave(self) -> None:
        """Lets workers save their trials and end."""

    def withdraw(self) -> None:
        """Takes the jobs back that have not begun."""

    def cancel(self) -> None:
        """Ends all jobs after an error."""


class JobKeeper:
    """Keeps a number of jobs on a cluster while there are trials."""

    def __init__(self, jobs: Jobs, count: int, logs: Path, look_seconds: float) -> None:
        """Prepares to submit jobs.

        Args:
            jobs: of the study.
            count: the number of jobs at a time.
            logs: the directory with the logs of jobs, for messages.
            look_seconds: the time between two looks at the jobs.
        """
        self._jobs, self._count, self._logs = jobs, count, logs
        self._look_seconds = look_seconds
        self._known: set[str] = set()
        self._reported: set[str] = set()
        self._lost, self._progress = FalseStarts(count), 0
        self._is_over = False  # A worker has found that there are no more trials.

    def run(
        self,
        should_interrupt: Callable[[], bool],
        look: Callable[[], None] = lambda: None,
        is_done: Callable[[], bool] = lambda: False,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        """Returns when all jobs have ended; raises as `Supervisor.run`.

        Args:
            should_interrupt: asked often; on True the workers save, and end.
            look: called at each look at the jobs.
            is_done: returns True if there are no more trials.
            progress: returns a number that grows as trials go on.
        """
        is_leaving = False
        try:
            while True:
                look()
                if not is_leaving and should_interrupt():
                    self._jobs.leave()
                    is_leaving = True
                live = self._jobs.live()
                if live is not None:
                    is_ending = is_leaving or self._is_over or is_done()
                    self._notice(live, is_ending, progress())
                    if is_ending or self._is_over:
                        if not live:
                            return
                        self._jobs.withdraw()
                    elif len(live) < self._count:
                        self._submit(live)
                time.sleep(self._look_seconds)
        except Exception:
            self._jobs.cancel()
            raise

    def _submit(self, live: set[str]) -> None:
        try:
            self._known |= self._jobs.submit(self._count - len(live))
        except UserError as error:
            if not live:
                raise
            logging.log_every_n_seconds(logging.WARNING, '%s', 60, error)  # It may yet pass.

    def _notice(self, live: set[str], is_ending: bool, progress: int) -> None:
        """Reports jobs that have ended; raises an error that ends the study's run."""
        outcomes = self._jobs.outcomes()
        if progress > self._progress:
            self._progress, self._lost.count = progress, 0
        self._reported |= outcomes.keys()
        silent = self._known - live - self._reported
        outcomes |= dict.fromkeys(silent, Outcome(DETACHED, 'it left no message', True))
        for each, outcome in sorted(outcomes.items()):
            self._ended(each, outcome, is_ending)
        self._known = live

    def _ended(self, job: str, outcome: Outcome, is_ending: bool) -> None:
        if outcome.code == 0:
            self._is_over = True
            return
        if outcome.code in (2, STOPPED):
            outcome.require_success()
        if is_ending and outcome.code == DETACHED:
            return  # It was asked to, or was taken back before it began.
        why = outcome.message or 'it was cancelled, or its time was over'
        logging.warning('Job %s ended: %s', job, why)
        if self._lost.note(outcome.is_false_start) and not is_ending:
            raise WorkerError(
                f'{self._lost.count} jobs in a row ended without a measurement. The last one, '
                f'{job}: {why}. Their logs are in {self._logs}'
            )
