"""Errors of trials: their reasons, and the errors that stop the study."""

import contextlib
import datetime
import os
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from paxtune.config.faults import Faults
from paxtune.objectives.rewards import NonFiniteRewardError
from paxtune.search_space.constraints import Infeasible
from paxtune.study.reasons import commonest
from paxtune.study.trial import Trial
from paxtune.study.trial_table import column
from trainer.runtime.interrupt import CtrlC
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import NonFiniteLossError, SaveError, UserError, causes
from trainer.symbolic.user_code import described

if TYPE_CHECKING:
    from paxtune.study.study import Study

T = TypeVar('T')

EXPECTED = (NonFiniteLossError, NonFiniteRewardError, SkipTrial, Infeasible)
"""Errors that make a trial infeasible, and are no errors of the program."""

_SAME_ERRORS = 3
_NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC), 0


class ExitError(Exception):
    """A trial's own code ended with its cause, an error that is no Exception, as `sys.exit` does.

    The end of that code ends neither the process nor the study.
    """


@contextlib.contextmanager
def ends_as_errors() -> Iterator[None]:
    """Turns every end of a trial's own code into an Exception of it, except for a Ctrl-C.

    A process that this code has forked, and that returns from it, ends here.
    """
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        _end_fork(process, 1)
        if ctrl_c := [each for each in causes(error) if isinstance(each, CtrlC)]:
            raise ctrl_c[0] from None
        if isinstance(error, Exception):
            raise
        raise ExitError(*error.args) from error
    _end_fork(process, 0)


def _end_fork(process: int, code: int) -> None:
    if os.getpid() != process:
        os._exit(code)  # Two processes would go on with one study.


def guarded(reports: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yields the same values; the code of a trial makes them (`ends_as_errors`)."""
    with contextlib.closing(reports):
        while True:
            with ends_as_errors():
                try:
                    report = next(reports)
                except StopIteration:
                    return
            yield report


def _own(error: BaseException) -> BaseException:
    """Returns the error that the code of a trial raised."""
    cause = error.__cause__
    return error if cause is None or not isinstance(error, ExitError) else cause


def reason_of(error: Exception) -> str:
    """Renders an error for people, with the last line of the user's code that led to it."""
    return str(error) if isinstance(error, EXPECTED) else described(_own(error))


def why_study_stops(error: Exception, trial: Trial, trials: Sequence[Trial], faults: Faults) -> str:
    """Says why an error of a trial, one of `trials`, stops the study; '' if it does not."""
    reason, own = f'trial {trial.id} raised {reason_of(error)}', _own(error)
    if any(pattern.matches(own) for pattern in faults.errors_to_stop_study):
        return f'{reason}, which stops the study (search.faults.errors_to_stop_study)'
    if isinstance(error, EXPECTED):
        return ''
    if faults.errors_to_skip is not None:
        if any(pattern.matches(own) for pattern in faults.errors_to_skip):
            return ''
        return f'{reason}, which stops the study (search.faults.errors_to_skip)'
    if any(isinstance(each, OSError | SaveError) for each in causes(error)):
        return (
            f'{reason}. An error of files or of the network stops the study, and the trial runs '
            'again when it is resumed (search.faults.errors_to_skip names errors that do not)'
        )
    if faults.max_consecutive_failures is None:
        return _same_as_before(reason_of(error), trial, trials)
    return ''


def _same_as_before(reason: str, trial: Trial, trials: Sequence[Trial]) -> str:
    own = (each for each in trials if each.id != trial.id and not each.lineage.is_imported)
    failed = []
    for each in own:
        if each.is_failed:
            failed.append(each)
        elif each.measurements:
            return ''
    if len(failed) + 1 < _SAME_ERRORS:
        return ''
    if len(commonest([reason, *(each.reason or '' for each in failed)])) > 1:
        return ''
    numbers = ', '.join(str(each.id) for each in failed)
    more = (
        f'trial {trial.id} runs again when the study is resumed; python -m paxtune.studies retry '
        f'repeats trials {numbers}. If the error belongs to the decisions, set '
        'search.faults.max_consecutive_failures'
    )
    if trial.directory is None:  # In memory, where no command and no flag reaches it.
        more = (
            f'tune(…, study=error.study) runs trial {trial.id} again; error.study.retry(number) '
            f'repeats trials {numbers}. If the error belongs to the decisions, pass '
            'faults=paxtune.Faults(max_consecutive_failures=…)'
        )
    return (
        f'trials {numbers} and {trial.id} all raised the same error, and no other trial has '
        f'measured anything: {reason}. Once it is corrected, {more}'
    )


class StudyStoppedError(Exception):
    """An error stopped the study, as `search.faults` demands. The message says which.

    The trial continues in the next call.

    Attributes:
        study: an open study in memory, which `paxtune.tune(…, study=error.study)` continues.
    """

    study: 'Study | None' = None


class BadRewardError(UserError):
    """The reward cannot be computed from the measured metrics, in any trial of the study."""


@contextlib.contextmanager
def about_rewards() -> Iterator[None]:
    """Turns errors of rewards into BadRewardError: all trials would raise them."""
    try:
        yield
    except UserError as error:
        path = '' if str(error).startswith('search.') else 'search.'
        raise BadRewardError(f'{path}{error}') from error


def check_failures(trials: Sequence[Trial], faults: Faults) -> None:
    """Raises StudyStoppedError if more trials have failed than a search accepts."""
    if faults.max_failures is not None and sum(column(trials, _is_failed)) > faults.max_failures:
        failed = [trial.id for trial in trials if trial.is_failed]
        raise StudyStoppedError(
            f'{len(failed)} trials have failed ({", ".join(map(str, failed))}), and '
            f'search.faults.max_failures is {faults.max_failures}: see error.txt in their '
            'directories'
        )
    most = faults.max_consecutive_failures
    if most is not None and len(last := _last_failures(trials)) >= most:
        reasons = commonest(trial.reason or '' for trial in last)
        reasons_text = ''.join(f'\n  {count} × {reason}' for count, reason in reasons)
        raise StudyStoppedError(
            f'the last {len(last)} trials have all failed '
            f'(search.faults.max_consecutive_failures={most}):{reasons_text}\n'
        )


def _last_failures(trials: Sequence[Trial]) -> list[Trial]:
    last_other = max(column(trials, _end_unless_failed), default=_NEVER)
    ends = column(trials, _end)
    last = [place for place, end in enumerate(ends) if end > last_other]
    return [trials[place] for place in sorted(last, key=ends.__getitem__, reverse=True)]


def _is_failed(trial: Trial) -> bool:
    return trial.is_failed


def _end(trial: Trial) -> tuple[datetime.datetime, int]:
    if trial.completed is None or trial.lineage.is_imported:
        return _NEVER
    return trial.completed, trial.id


def _end_unless_failed(trial: Trial) -> tuple[datetime.datetime, int]:
    return _NEVER if trial.is_failed else _end(trial)


class OutsideError(Exception):
    """Holds an error that is not the trial's own."""


@contextlib.contextmanager
def outside(kind: type[BaseException] = Exception) -> Iterator[None]:
    """Marks errors of callbacks and records, which are not the trial's own."""
    try:
        yield
    except kind as error:
        raise OutsideError(error) from error
