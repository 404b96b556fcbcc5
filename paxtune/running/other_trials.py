from paxtune.running import trial_json
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import has_link
from trainer.runtime.directory import JobPath
from trainer.symbolic.errors import UserError

REMEDY = 'Move that directory away, or use another --job_log_dir'


class OtherTrialError(UserError):
    """The directory of a trial holds files of another one: the study ends before it runs."""


def require_no_link(study_directory: JobPath | None, *paths: JobPath) -> None:
    """Raises OtherTrialError where a symbolic link leads out of the directory of a study."""
    for path in paths:
        if has_link(study_directory, path):
            raise OtherTrialError(
                f'{path} is, or is in, a symbolic link, which no search makes. {REMEDY}'
            )


def require_own_record(directory: JobPath, trial: Trial) -> None:
    """Raises OtherTrialError unless `trial.json` is of this trial, by the time of its creation."""
    before = trial_json.read(directory)
    created = trial.created.isoformat()
    if before is not None and before.get('created') != created:
        raise OtherTrialError(
            f'{directory} holds a trial of another study, or a deleted one: it was created at '
            f'{before.get("created")}, trial {trial.id} at {created}. {REMEDY}'
        )
