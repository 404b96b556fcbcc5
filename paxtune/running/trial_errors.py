"""Errors of trials: their reasons, and those that stop the study."""

import functools
import os
import sysconfig
import traceback
import types
from collections.abc import Sequence

from paxtune.config.faults import Faults
from paxtune.objectives.rewards import NonFiniteRewardError
from paxtune.search_space.constraints import Infeasible
from paxtune.study.reasons import commonest
from paxtune.study.trial import Trial
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import NonFiniteLossError, SaveError, causes

EXPECTED = (NonFiniteLossError, NonFiniteRewardError, SkipTrial, Infeasible)
"""Errors that make a trial infeasible, and are no errors of the program."""

_SAME_ERRORS = 3
_OWN_PACKAGES = ('paxtune', 'trainer')


def reason_of(error: Exception) -> str:
    """Renders an error for people, with the last line of the user's code that led to it."""
    if isinstance(error, EXPECTED):
        return str(error)
    text = str(error).strip().split('\n')[0]
    named = f'{type(error).__name__}: {text}' if text else type(error).__name__
    place = user_line(error)
    return named if place is None else f'{named} ({place})'


def user_line(error: BaseException) -> str | None:
    """Finds the last line of the user's code in the traceback of an error, or of its causes.

    Returns:
        `<file>:<line>`; None where only libraries were running.
    """
    for each in causes(error):
        for frame, line in reversed(list(traceback.walk_tb(each.__traceback__))):
            if _is_users(frame):
                path = frame.f_code.co_filename
                inside = path.startswith(os.getcwd() + os.sep)
                return f'{os.path.relpath(path) if inside else path}:{line}'
    return None


def why_study_stops(error: Exception, trial: Trial, trials: Sequence[Trial], faults: Faults) -> str:
    """Says why an error of a trial stops the study; '' where it only fails the trial.

    Args:
        trials: all trials of the study.
    """
    reason = f'trial {trial.id} raised {reason_of(error)}'
    if any(pattern.matches(error) for pattern in faults.errors_to_stop_study):
        return f'{reason}, which stops the study (search.faults.errors_to_stop_study)'
    if isinstance(error, EXPECTED):
        return ''
    if faults.errors_to_skip is not None:
        if any(pattern.matches(error) for pattern in faults.errors_to_skip):
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
    own = [each for each in trials if each.id != trial.id and not each.lineage.is_imported]
    failed = [each for each in own if each.is_failed]
    if len(failed) + 1 < _SAME_ERRORS or any(t.measurements for t in own if not t.is_failed):
        return ''
    if len(commonest([reason, *(each.reason or '' for each in failed)])) > 1:
        return ''
    numbers = ', '.join(str(each.id) for each in failed)
    return (
        f'trials {numbers} and {trial.id} all raised the same error, and no other trial has '
        f'measured anything: {reason}. Once it is corrected, trial {trial.id} runs again when the '
        f'study is resumed; python -m paxtune.studies retry repeats trials {numbers}. If the '
        'error belongs to the decisions, set search.faults.max_consecutive_failures'
    )


def _is_users(frame: types.FrameType) -> bool:
    module, path = str(frame.f_globals.get('__name__', '')), frame.f_code.co_filename
    if module.partition('.')[0] in _OWN_PACKAGES:
        return False
    # Code without a file is the user's in a notebook, and else a library's.
    return module == '__main__' if path.startswith('<') else not path.startswith(_libraries())


@functools.cache
def _libraries() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')}
    return tuple(os.path.join(place, '') for place in sorted(places))
