"""Validation of a search before anything is written."""

import contextlib
import random
from typing import Any

from paxtune.algorithms.base import Algorithm
from paxtune.algorithms.encoding.sampling import draw
from paxtune.config.search import Search
from paxtune.search_space.constraints import Constraint
from paxtune.search_space.space import Space
from paxtune.study.suggester import Suggester
from paxtune.study.workload import Workload
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced

_SAMPLES = 20


def validate_search(search: Search, space: Space) -> None:
    """Raises UserError if a space cannot be searched as configured."""
    if search.budget.trials is None and space.size is None:
        raise UserError(
            'search.budget.trials: a range has countless values, so a number of trials must be '
            'given (--num_trials)'
        )
    algorithm = search.algorithm.resolved(space.spec, len(search.rewards))
    algorithm.check_space(space.spec, len(search.rewards))
    if search.prior and not algorithm.uses_prior:
        raise UserError(
            f'search.prior: {type(algorithm).__name__} has no use for what is believed to be good. '
            'Use Portfolio, or make it the first trial (search.initial_trials, --initial_defaults).'
        )
    _validate_warm_start(search, space, algorithm)
    _validate_child_overrides(search, space)
    try:
        suggestions = Suggester(space, search, [], list)
    except UserError as error:
        raise UserError(f'search.prior: {error}') from error
    _validate_scheduler(search, space)
    _validate_constraints(search, space, suggestions)
    for i, seed in enumerate(search.initial_trials):
        try:
            suggestions.completed(seed, i + 1)
        except UserError as error:
            raise UserError(f'search.initial_trials[{i}]: {error}') from error


def validate_space(space: Space) -> None:
    """Raises UserError if a decision is about the search itself."""
    if not isinstance(space.value, Component):
        return  # A field of that name is the user's own.
    for id_ in space.ids:
        for part, what in (
            ('search', 'the search itself'),
            ('sub_experiments', 'what sub-experiments differ in'),
        ):
            if id_ == part or id_.startswith((f'{part}.', f'{part}[')):
                raise UserError(f'{id_}: {what} cannot be searched. Give it a value.')


def _validate_warm_start(search: Search, space: Space, algorithm: Algorithm) -> None:
    if search.warm_start is None:
        return
    if not algorithm.names_parents:
        raise UserError(
            f'search.warm_start: {type(algorithm).__name__} derives no trial from another one, so '
            "'parent' has no effect. Use HillClimbing, RegularizedEvolution or NSGA2, or None."
        )
    if space.is_tunable and getattr(space.value.train, 'checkpoints', True) is None:
        raise UserError(
            'search.warm_start: no trial has weights for others, since train.checkpoints is None: '
            'set either'
        )


def _validate_child_overrides(search: Search, space: Space) -> None:
    if not search.child_overrides:
        return
    if not space.is_tunable:
        raise UserError(
            'search.child_overrides: only an experiment has fields to override, not a function'
        )
    replaced(space.value, dict(search.child_overrides), 'search.child_overrides')


def _validate_scheduler(search: Search, space: Space) -> None:
    scheduler = search.scheduler
    if scheduler is None or scheduler == 'default':
        return
    name = type(scheduler).__name__
    scheduler.check_space(space.spec)
    if scheduler.needs_max_resource and not (space.is_tunable or isinstance(space.value, Workload)):
        raise UserError(
            f'search.scheduler: {name} must know how long a trial is, which is unknown for a '
            'function: give it a max_resource, and no grace_period'
        )
    if scheduler.forks and space.sub_experiments:
        raise UserError(
            f'search.scheduler: {name} forks trials, each of which must be one run: these train '
            f'{len(space.sub_experiments)} sub-experiments one after another'
        )
    train = getattr(space.value, 'train', None) if space.is_tunable else None
    if scheduler.pauses and getattr(train, 'checkpoints', True) is None:
        raise UserError(
            f'train.checkpoints: {name} has trials go on from where they were paused, '
            'which needs checkpoints: set them, or use a scheduler that only stops trials'
        )


def _validate_constraints(search: Search, space: Space, suggestions: Suggester) -> None:
    """Finds constraints on paths that none of some experiments has."""
    rng = random.Random(search.seed)
    looked_at: list[Any] = []
    for _ in range(_SAMPLES if search.constraints else 0):
        # An error of a `check`: these decisions are infeasible for another reason.
        with contextlib.suppress(Exception):
            looked_at += suggestions.values(draw(space.spec, rng)).values()
    for constraint in search.constraints:
        errors = [_user_error(constraint, value) for value in looked_at]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]


def _user_error(constraint: Constraint, value: Any) -> UserError | None:
    try:
        constraint.require(value)
    except UserError as error:
        return error
    except Exception:
        return None  # It has a value: the experiment is infeasible.
    return None
