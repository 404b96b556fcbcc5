"""Validation of a search before anything is written."""

import contextlib
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeAlias

from absl import logging

from paxtune.algorithms.base import Algorithm
from paxtune.config.search import Search
from paxtune.schedulers import resources
from paxtune.schedulers.base import Scheduler
from paxtune.schedulers.rungs import first_rung
from paxtune.search_space.constraints import Constraint
from paxtune.search_space.space import Space
from paxtune.study.feasibility import Feasibility
from paxtune.study.known_values import given_values
from paxtune.study.reasons import commonest
from paxtune.study.samples import NothingFits, Sample, draws, fitting
from paxtune.study.suggester import Suggester
from paxtune.study.workload import RunnerWorkload
from trainer.runtime import interrupt
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced

_SAMPLES = 4
_MAX_ALIKE = 50


Samples: TypeAlias = Callable[[int], Sample]
"""Makes the sample of a seed: see `first_fitting`."""


def validate_search(feasibility: Feasibility, sample: Samples) -> None:
    """Raises UserError if a space cannot be searched as configured."""
    space, search = feasibility.space, feasibility.search
    if search.budget.trials is None and space.size is None and not search.budget.has_hours:
        raise UserError(
            'search.budget.trials: a range has infinitely many values, so a number of trials must '
            'be given: num_trials=20, or --num_trials=20; or a time: timeout=3600, or --max_hours=1'
        )
    algorithm = search.algorithm.resolved(space.spec, len(search.rewards))
    algorithm.check_space(space.spec, len(search.rewards))
    if search.prior and not algorithm.uses_prior:
        raise UserError(
            f'search.prior: {type(algorithm).__name__} does not use a prior. '
            'Use Portfolio, or make these decisions the first trial (search.initial_trials).'
        )
    _validate_warm_start(search, space, algorithm)
    _validate_child_overrides(search, space)
    try:
        given_values(space, search)
    except UserError as error:
        raise UserError(f'search.prior: {error}') from error
    _validate_scheduler(search, space)
    _validate_constraints(search, space, sample)
    suggestions = Suggester(feasibility, [], list)
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
            ('sub_experiments', 'a field of a sub-experiment'),
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
    is_function = not space.is_tunable and not isinstance(space.value, RunnerWorkload)
    if scheduler.needs_max_resource and is_function:
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


def validate_training(
    search: Search, scheduler: Scheduler | None, space: Space, sample: Samples
) -> None:
    """Checks the metrics of the trials of an experiment, and their lengths.

    Logs a warning for a field of the scheduler for which all trials are too short.

    Raises:
        UserError: a metric that the search needs is not measured.
    """
    # Imported here: it imports JAX, which a study of a function does not need.
    from paxtune.study import metric_names

    metric_names.validate_metrics(search, (sample(seed).values for seed in range(_SAMPLES)))
    # Where their lengths differ, some trials may be long enough.
    if scheduler is not None and first_rung(space.value):
        for reason in resources.without_effect(scheduler, sample(0).values):
            logging.warning('%s', reason)


def validate_steps(feasibility: Feasibility) -> None:
    """Traces the steps of drawn experiments until one has no fault.

    Raises:
        UserError: many have a fault, and all the same: it has nothing to do with their decisions.
    """
    # Imported here: it imports JAX, which a study of a function does not need.
    from trainer.program.step_checks import check_steps, steps_identity

    known: dict[Hashable, str] = {}
    reasons: list[str] = []
    for sample in fitting(feasibility.space, draws(feasibility.space)):
        interrupt.check()
        identity: Hashable = None
        try:
            identity = tuple(map(steps_identity, sample.values.values()))
            if identity not in known:
                for part in sample.values.values():
                    check_steps(part)
                return
        except UserError as error:
            known[identity] = str(error)
        except Exception:
            return  # A bug, or a signal of the experiment: the trial will report it.
        if feasibility.is_excluded(sample.values):
            continue
        reasons.append(known[identity])
        if len(commonest(reasons)) > 1:
            return  # It depends on the decisions.
        if len(reasons) == _MAX_ALIKE:
            raise UserError(f'{reasons[0]}\n(So it is in all of {_MAX_ALIKE} drawn experiments.)')


def _validate_constraints(search: Search, space: Space, sample: Samples) -> None:
    """Finds constraints on paths that none of some experiments has."""
    for constraint in search.constraints:
        # Without a sample, all decisions are infeasible for another reason.
        with contextlib.suppress(NothingFits):
            _require_value(constraint, itertools.chain([sample(0)], fitting(space, draws(space))))


def _require_value(constraint: Constraint, samples: Iterable[Sample]) -> None:
    first = None
    for sample in samples:
        errors = [_user_error(constraint, value) for value in sample.values.values()]
        if None in errors:
            return
        first = first or errors[0]
    if first is not None:
        raise first


def _user_error(constraint: Constraint, value: Any) -> UserError | None:
    try:
        constraint.require(value)
    except UserError as error:
        return error
    except Exception:
        return None  # It has a value: the experiment is infeasible.
    return None
