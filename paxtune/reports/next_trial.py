"""The next trials of a study, without a change of it."""

from typing import Any

from paxtune.algorithms import Exhausted
from paxtune.schedulers import Fork, Promote, Wait
from paxtune.study.record import Lineage, Status
from paxtune.study.schedule import Done
from paxtune.study.study import Study
from paxtune.study.suggester import SuggestionError
from trainer.symbolic.errors import UserError


def next_trials(study: Study) -> tuple[list[dict[str, Any]], str]:
    """Lists the trials that wait to run, and the next action after them.

    A suggestion is a function of the recorded trials: the search makes the same one unless a trial
    changes before.

    Returns:
        A row for each trial: its number, origin and decisions. Then a remark: why there are no
        more, or the action of the scheduler; '' for nothing.
    """
    waiting = [trial for trial in study.trials if trial.status is Status.REQUESTED]
    rows = [_row(each.id, each.lineage.origin, each.decisions) for each in waiting]
    row, remark = _after_them(study)
    return rows if row is None else [*rows, row], remark


def _after_them(study: Study) -> tuple[dict[str, Any] | None, str]:
    number = study.store.max_id() + 1
    try:
        action = study.next_action()
        if isinstance(action, Done):
            return None, f'The study is done: {action.reason}.'
        if isinstance(action, Wait):
            return None, f'No other trial begins now: {action.reason}.'
        if isinstance(action, Promote):
            return None, f'The scheduler resumes trial {action.trial}: {action.reason}.'
        if isinstance(action, Fork):
            decisions = study.space.readable(action.decisions)
            how = f'fork of trial {action.trial} at step {action.step}'
            return _row(number, how, decisions), f'The scheduler forks it: {action.reason}.'
        if study.space.why_no_value:
            return None, f'The next suggestion needs all classes. {study.space.why_no_value}'
        suggestion, lineage = study.suggester.next(number)
    except Exhausted:
        return None, 'The algorithm has nothing left to suggest.'
    except UserError as error:
        return None, f'There is no next suggestion: {error}'
    except SuggestionError as error:
        last = str(error).strip().splitlines()[-1]
        return None, f'The algorithm raised an error instead of a suggestion: {last}'
    decisions = study.space.readable(suggestion.decisions)
    return _row(number, _origin(study, lineage), decisions), ''


def _origin(study: Study, lineage: Lineage) -> str:
    if lineage.origin == Lineage().origin:
        return type(study.suggester.algorithm).__name__
    return lineage.origin


def _row(number: int, origin: str, decisions: Any) -> dict[str, Any]:
    return {'trial': number, 'origin': origin, 'decisions': dict(decisions)}
