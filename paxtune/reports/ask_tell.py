"""Ask and tell from a shell, as JSON.

The process that asks for a trial ends before the trial is computed. Until its `tell`, no other
process gets the trial.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from paxtune.study import transitions
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import IllegalTransition
from trainer import command
from trainer.symbolic.errors import UserError


def ask(study: Study, count: int) -> Iterator[dict[str, Any]]:
    """Hands out the next trials, as JSON data each; prints the reason for fewer to stderr."""
    for _ in range(count):
        study.store.worker = transitions.new_worker(is_outside=True)
        trial = study.ask()
        if trial is None:
            reason = study.done_reason or 'other trials must end first'
            command.say(f'No more trials: {reason}', sys.stderr)
            return
        yield {'trial': trial.id, 'decisions': trial.decisions}


def tell(study: Study, number: int, given: Sequence[str], infeasible: str | None) -> dict[str, Any]:
    """Ends a trial of `ask`, and returns its state as JSON data.

    Args:
        given: METRIC=VALUE of each metric, or the reward alone; empty for an infeasible trial.
        infeasible: the reason why the trial has no metrics.

    Raises:
        UserError: the trial was not asked for, or has ended, or metrics are missing.
    """
    if bool(given) == bool(infeasible):
        raise UserError('`tell`: give metrics, such as loss=0.5, or --infeasible=REASON')
    trial = _asked(study, number)
    try:
        study.tell(trial, _metrics(given) if given else None, infeasible=infeasible)
    except (IllegalTransition, ValueError) as error:
        raise UserError(f'`tell`: {error}') from error
    rewards = dict(zip((each.label for each in study.rewards), trial.view.rewards, strict=False))
    return {'trial': number, 'state': trial.view.status, 'rewards': rewards}


def _asked(study: Study, number: int) -> RunningTrial:
    trial = study.open_trial(number)
    if not transitions.is_outside(worker := trial.view.record.holder):
        by = f' by {worker}' if worker else ''
        raise UserError(f'trial {number} is {trial.view.status}{by}: report a trial of `ask`')
    study.store.worker = worker
    if study.store.is_shared:
        study.store.claim([number])  # The service then writes for the worker that owns the trial.
    return trial


def _metrics(given: Sequence[str]) -> dict[str, float] | float:
    named = [text.rpartition('=') for text in given]
    try:
        numbers = {name: float(value) for name, _, value in named}
    except ValueError as error:
        raise UserError(f'`tell`: expected METRIC=VALUE: {error}') from None
    if '' in numbers and len(given) > 1:
        raise UserError(f'`tell`: give one number, or name each metric: {" ".join(given)}')
    return numbers.get('', numbers)
