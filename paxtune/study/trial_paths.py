"""Directories of trials and of their attempts."""

from paxtune.study.trial import TRIALS, Trial, directory_in
from trainer.runtime.directory import JobPath, absolute


def trial_directory(study_directory: JobPath | None, trial: Trial) -> JobPath:
    """Returns the directory of a trial's files; raises ValueError if the study is in memory."""
    if study_directory is None:
        raise ValueError('a study in memory has no directories')
    return directory_in(study_directory, trial)


def attempt_directory(
    study_directory: JobPath | None, trial: Trial, attempt: int | None = None
) -> JobPath:
    """Returns the directory of an attempt, by default the current one: see `trial_directory`.

    The first attempt writes to the trial's own directory.
    """
    number = trial.attempt if attempt is None else attempt
    directory = trial_directory(study_directory, trial)
    return directory if number == 1 else directory / f'attempt_{number}'


def attempt_directories(study_directory: JobPath | None, trial: Trial) -> list[str]:
    """Returns the directories of all attempts at a trial, the first one first."""
    numbers = range(1, trial.attempt + 1)
    return [str(absolute(attempt_directory(study_directory, trial, each))) for each in numbers]


def trials_with_directories(study_directory: JobPath | None) -> set[int]:
    """Returns the numbers that directories of trials begin with, by one look at the disk."""
    if study_directory is None:
        return set()
    try:
        names = [path.name for path in (study_directory / TRIALS).iterdir()]
    except FileNotFoundError:
        return set()
    numbers = (name.partition('-')[0] for name in names)
    return {int(number) for number in numbers if number.isdecimal()}
