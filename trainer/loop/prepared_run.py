import dataclasses
import functools

from absl import logging
from etils import epath

from trainer.checkpoints import experiment_record
from trainer.experiment import Experiment
from trainer.loop.metric_names import require_best_metric
from trainer.program.setup import prepare_inputs
from trainer.runtime import processes
from trainer.runtime.wall_clock import INITIALIZATION, during
from trainer.symbolic.concrete import concrete
from trainer.warm_start.warm_start import Source, warm_start_sources


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start; `prepare_run` makes it.

    Attributes:
        experiment: without decisions and derived values; its data exists and suits the task.
        job_log_dir: the directory of the run.
        warm_start: checkpoints to start from; empty where the run resumes.
        changes: changes of the experiment with which the run resumes.
    """

    experiment: Experiment
    job_log_dir: epath.Path
    warm_start: tuple[Source, ...]
    changes: tuple[experiment_record.Change, ...] = ()


@during(INITIALIZATION)
def prepare_run(
    experiment: Experiment, job_log_dir: epath.PathLike, allow_changes: bool = False
) -> PreparedRun:
    """Resolves an experiment, prepares its inputs, and finds the checkpoints of its warm start.

    Args:
        experiment: without open decisions.
        job_log_dir: the directory of the run.
        allow_changes: resume also with another task, other data or another seed.

    Raises:
        UserError: a decision is open, data is missing, there is no checkpoint to start from, the
            metric of the best checkpoint is not measured, or the run has another experiment.
    """
    processes.require_joined()
    experiment = concrete(experiment)
    changes = experiment_record.changes_of_resumption(job_log_dir, experiment)
    if not allow_changes:
        experiment_record.require_free(job_log_dir, changes)
    prepare_inputs(experiment)
    require_best_metric(experiment)
    for text in experiment.without_effect():
        _warn_once(text)
    sources = warm_start_sources(experiment, job_log_dir)
    return PreparedRun(experiment, epath.Path(job_log_dir), tuple(sources), tuple(changes))


@functools.cache
def _warn_once(text: str) -> None:
    # The trials of a search say the same.
    logging.warning('%s', text)
