"""Warm starts: a fresh run that begins with the parameters of another."""

from typing import Any

from etils import epath

from trainer.checkpoint import check_params, newest_checkpoint
from trainer.errors import UserError
from trainer.experiment import Experiment

_FIELD = 'train.init_from_checkpoint'


def source_of(experiment: Experiment, job_log_dir: epath.PathLike) -> epath.Path | None:
    """The checkpoint whose parameters a run begins with; None where it draws them, or resumes.

    Raises:
        UserError: the experiment names a place where there is none.
    """
    path = experiment.train.init_from_checkpoint
    if path is None or newest_checkpoint(epath.Path(job_log_dir) / 'checkpoints') is not None:
        return None
    source = newest_checkpoint(path)
    if source is None:
        raise UserError(
            f'{_FIELD}: there is no checkpoint in {path}: name the directory `checkpoints` of a '
            'run, or that of one step in there'
        )
    return source


def check_source(source: epath.Path, params: Any) -> None:
    """Checks that a checkpoint has all parameters, before anything is written.

    Args:
        source: the checkpoint.
        params: a tree with the names and the shapes of the parameters.

    Raises:
        UserError: it has not.
    """
    try:
        check_params(source, params)
    except UserError as error:
        raise UserError(f'{_FIELD}: {error}') from error
