from typing import TYPE_CHECKING

from paxtune.running import trial_json
from paxtune.study.trial import Trial
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from trainer.experiment import Experiment

_REMEDY = 'Move that directory away, or use another --job_log_dir'


class OtherTrialError(UserError):
    """The directory of a trial holds files of another one: the study ends before it runs."""


def require_own_record(directory: JobPath, trial: Trial) -> None:
    """Checks that `trial.json` is of this trial, and not of one of another study.

    Raises:
        OtherTrialError: it was created at another time.
    """
    before = trial_json.read(directory)
    created = trial.created.isoformat()
    if before is not None and before.get('created') != created:
        raise OtherTrialError(
            f'{directory} holds a trial of another study, or a deleted one: it was created at '
            f'{before.get("created")}, trial {trial.id} at {created}. {_REMEDY}'
        )


def require_own_experiment(directory: JobPath, trial: Trial, experiment: 'Experiment') -> None:
    """Checks that `experiment.json`, if there is one, is the experiment of this trial.

    Raises:
        OtherTrialError: lists the differences.
    """
    # Imported here: it imports JAX, and a study of a function has no use for it.
    from trainer.checkpoints import experiment_record

    found = [
        change
        for change in experiment_record.changes(directory, experiment)
        # It has the path of a trial, which changes with that of the study.
        if not change.path.startswith('train.init_from_checkpoint')
    ]
    if found:
        raise OtherTrialError(
            f'{directory} holds another experiment than that of trial {trial.id}. There, and in '
            f'the trial:\n' + '\n'.join(map(str, found)) + f'\n{_REMEDY}'
        )
