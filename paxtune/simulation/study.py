"""The study of `paxtune.simulate --processes`, whose training is read from a table."""

import collections

from paxtune.api import tune
from paxtune.engines.workers import Workers
from paxtune.running.progress import Progress
from paxtune.running.tuner import INTERRUPTED, Paused, StudyStoppedError
from paxtune.simulation.replay_workload import RecordedTrials
from paxtune.storage.database import DatabaseUnavailableError
from paxtune.study.study import Study
from trainer.runtime.interrupt import Interrupt


def run(what: RecordedTrials, job_log_dir: str, workers: int | None, again: str) -> int:
    """Runs or resumes the study, and returns the exit code.

    Args:
        what: the recorded trials.
        job_log_dir: the directory of the study.
        workers: the number of worker processes; None runs trials in this one.
        again: the command that resumes it, for people.

    Raises:
        UserError: the directory holds another study, or cannot be used.
    """
    saved = f'The study is saved in {job_log_dir}. To resume: {again}'
    with Interrupt() as interrupt:
        try:
            study = tune(
                what,
                job_log_dir=job_log_dir,
                engine=None if workers is None else Workers(workers),
                callbacks=[Progress()],
                should_interrupt=interrupt.requested,
            )
        except Paused as reason:
            print(f'Paused: {reason}. {saved}')
            return interrupt.exit_code if str(reason) == INTERRUPTED else 0
        except (StudyStoppedError, DatabaseUnavailableError) as error:
            print(f'Stopped: {error}. {saved}')
            return 1
    with study:
        print(_summary(study))
        return 0 if study.candidates else 1


def _summary(study: Study) -> str:
    counts = collections.Counter(trial.status for trial in study.trials)
    counted = ', '.join(f'{count} {state}' for state, count in sorted(counts.items()))
    lines = [f'The study is done: {study.done_reason} ({counted}): {study.directory}']
    if study.best is not None:
        lines.append(f'Best trial: {study.best.id}, {study.rewards[0].label}={study.best.reward!r}')
    return '\n'.join(
        [*lines, 'To look at it:', f'  python -m paxtune.studies show {study.directory}']
    )
