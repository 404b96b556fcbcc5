import contextlib
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from paxtune.reports.tables import Document
from paxtune.service.study_location import StudyLocation
from paxtune.storage.deletion import delete, foreign_files
from paxtune.storage.similar_studies import databases
from paxtune.study import export, notes, stop_requests, trial_import
from paxtune.study.record import TrialRecord
from paxtune.study.record_checks import DamagedRecordError, is_of_trial
from paxtune.study.study import Study
from paxtune.study.trial import TRIALS, Trial
from trainer import command
from trainer.symbolic.errors import UserError


def added(trial: Trial) -> Document:
    """Renders an added trial."""
    decisions = [f'  {path} = {value}' for path, value in trial.decisions.items()]
    heading = f'Trial {trial.id} will run when the search continues, before new suggestions:'
    data = {'trial': trial.id, 'decisions': trial.decisions}
    return Document(data, remark='\n'.join([heading, *decisions]))


def confirmed(trials: Sequence[Trial]) -> Document:
    """Renders added replicates."""
    if not trials:
        remark = 'Nothing was added: the best decisions have been tried so often.'
        return Document([], remark=remark)
    data = [
        {
            'trial': each.id,
            'replicate': each.lineage.replicate,
            'replicate_of': each.lineage.replicate_of,
        }
        for each in trials
    ]
    lines = [
        f'  trial {each["trial"]}: replicate {each["replicate"]} of trial {each["replicate_of"]}'
        for each in data
    ]
    heading = 'To run when the search continues, before new suggestions:'
    return Document(data, remark='\n'.join([heading, *lines]))


def import_file(study: Study, path: str) -> Document:
    """Adds the trials of an exported study; raises UserError if the file is not one."""
    exported = export.read(path)
    for line in export.differences_of_data(study, exported):
        command.say(f'warning: {path}: {line}', sys.stderr)
    count = len(exported['trials'])
    added = trial_import.import_trials(study, exported['trials'], str(Path(path).resolve()))
    trials = command.counted(count, 'trial')
    message = f'{added} of {trials} were added to {study.directory or "the study"}.'
    others = 'The others had not ended, do not fit, lack a metric, or exist already.'
    remark = message if added == count else f'{message} {others}'
    return Document({'added': added, 'trials': count}, remark=remark)


def stop(where: StudyLocation, trials: Sequence[int]) -> Document:
    """Requests that the running search stops trials, or pauses.

    Args:
        where: the location of the study; the classes of its experiment may be unknown.
        trials: their numbers; none to pause.

    Raises:
        UserError: there is no such trial, or it is not running.
    """
    with contextlib.closing(where.store(can_write=True)) as store:
        for trial in trials:
            stop_requests.request_stop(store, trial)
        if not trials:
            stop_requests.request_pause(store)
    is_running = where.has_workers()
    data = {'request': 'stop' if trials else 'pause', 'trials': [*trials], 'running': is_running}
    if not is_running:
        what = 'the request waits for one' if trials else 'there is nothing to pause'
        return Document(data, remark=f'No search is working in {where}: {what}.')
    if not trials:
        return Document(data, remark=f'The search in {where} will pause at its next measurement.')
    return Document(data, remark=f'To be stopped at the next measurement: {_named(trials)}.')


def _named(trials: Iterable[int]) -> str:
    return ', '.join(f'trial {number}' for number in trials)


def delete_trials(study: Study, numbers: Sequence[int], yes: bool) -> Document:
    """Deletes trials with their directories.

    Raises:
        UserError: there is no such trial, another one needs it, or `yes` is not given.
    """
    from trainer.runtime.directory import has_link

    directories = {n: directory for n in sorted({*numbers}) for directory in _directories(study, n)}
    for directory in directories.values():
        if has_link(study.directory, directory):
            raise UserError(f'{directory} is, or is in, a symbolic link: remove that first')
    _require_unneeded(directories, [trial.record for trial in study.trials])
    if not yes:
        lines = [f'  trial {n}: {directory}' for n, directory in directories.items()]
        raise UserError('\n'.join(['nothing was deleted. With --yes, these would be:', *lines]))
    for number, directory in directories.items():
        # Before the trial itself: after a kill, the rest can still be named and deleted.
        delete(Path(directory))
        study.delete_trial(number)
    return Document({'deleted': [*directories]}, remark=f'Deleted: {_named(directories)}.')


def _directories(study: Study, number: int) -> list[Path]:
    """Finds the directory of a trial; the decisions of a damaged one, in its name, are unknown."""
    from paxtune.study.trial_paths import trial_directory

    try:
        return [Path(trial_directory(study.directory, study.trial(number)))]
    except DamagedRecordError:
        home = Path(str(study.directory)) / TRIALS
        found = [path for path in home.glob(f'{number:04d}*') if is_of_trial(path.name, number)]
        return found or [home / f'{number:04d}']


def _require_unneeded(numbers: Collection[int], records: Iterable[TrialRecord]) -> None:
    for record in records:
        source = record.lineage.warm_start
        if source in numbers and not (record.status.has_ended or record.id in numbers):
            raise UserError(f'trial {source} stays: trial {record.id} is to begin with its weights')


def delete_trials_from_service(where: StudyLocation, numbers: Sequence[int], yes: bool) -> Document:
    """Deletes trials, also damaged ones, from their service. Their directories stay.

    Raises:
        UserError: there is no such trial, it is running, another one needs it, or `yes` is not
            given.
    """
    with contextlib.closing(where.store(can_write=True)) as store:
        missing = {*numbers} - {*store.ids()}
        if missing:
            raise UserError(f'{where} has no trial {min(missing)}')
        records = store.trials()
        for record in records:
            if record.id in numbers and record.holder:
                raise UserError(
                    f'trial {record.id} stays: {record.holder} runs it. `studies stop` ends it'
                )
        _require_unneeded(numbers, records)
        if not yes:
            raise UserError(f'nothing was deleted. With --yes, {_named(numbers)} would be')
        for number in sorted({*numbers}):
            store.delete_trial(number)
            stop_requests.forget(store, number)
            notes.forget(store, number)
    remark = f'Deleted: {_named(numbers)}. Their directories stay where their workers wrote them.'
    return Document({'deleted': sorted({*numbers})}, remark=remark)


def delete_from_service(where: StudyLocation, yes: bool) -> Document:
    """Deletes a study from its service; raises UserError if it has workers, or without `yes`."""
    with contextlib.closing(where.store(can_write=True)) as store:
        if not yes:
            trials = command.counted(len(store.ids()), 'trial')
            raise UserError(f'nothing was deleted. With --yes, {where} would be: {trials}')
        store.delete_study()
    return study_deleted(where, 'The files of its trials stay where its searches wrote them.')


def study_deleted(where: object, note: str = '') -> Document:
    """Renders a study that was deleted as a whole, with a sentence for people after it."""
    return Document({'deleted': str(where)}, remark=f'Deleted: {where}. {note}'.rstrip())


def delete_study(directory: Path, yes: bool) -> Document:
    """Deletes the directory of a study.

    Raises:
        UserError: it holds other studies, other files, or the working directory, it is a symbolic
            link, or `yes` is not given.
    """
    if directory.is_symlink():
        raise UserError(f'{directory} is a symbolic link: name the directory that it leads to')
    others = [path.parent for path in databases(directory) if path.parent != directory]
    if others:
        raise UserError(f'{directory} holds other studies: {", ".join(map(str, others))}')
    if Path.cwd().is_relative_to(directory.resolve()):
        raise UserError(f'{directory} is, or holds, the directory that you are in')
    if foreign := foreign_files(directory):
        lines = [f'  {path}' for path in foreign]
        raise UserError('\n'.join([f'{directory} holds files that no search wrote:', *lines]))
    if not yes:
        lines = [f'  {path}' for path in sorted(directory.iterdir())]
        raise UserError(
            '\n'.join(['nothing was deleted. With --yes, all of this would be:', *lines])
        )
    delete(directory.resolve())
    return study_deleted(directory)
