"""Observations: trials as algorithms see them."""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pyglove as pg

from paxtune.algorithms import Observation
from paxtune.algorithms.encoding.cache import per_spec
from paxtune.algorithms.encoding.points import points_of_rows
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.config.budget import Budget
from paxtune.schedulers.end_prediction import predict_ends
from paxtune.study.record import Status
from paxtune.study.trial import Trial
from paxtune.study.trial_table import column
from trainer.runtime.wall_clock import COMPILATION, INITIALIZATION

_MAX_LEVELS = 16


def observe(trial: Trial) -> Observation:
    """Observes a trial as it stands.

    A paused one counts with its score so far, and goes on to do so while it is trained further.
    """
    memo = dict(trial.record.memo)
    if trial.status in (Status.COMPLETED, Status.STOPPED):
        return Observation(trial.id, trial.by_id, 'completed', trial.scores, memo)
    if trial.status is Status.INFEASIBLE:
        return Observation(trial.id, trial.by_id, 'infeasible', algorithm_state=memo)
    if (step := _early_step(trial)) is not None:
        return Observation(trial.id, trial.by_id, 'completed', trial.score_curve[step], memo)
    return Observation(trial.id, trial.by_id, 'pending', algorithm_state=memo)


def with_predicted_ends(
    trials: Sequence[Trial], observations: Sequence[Observation], spec: pg.DNASpec
) -> list[Observation]:
    """Replaces the scores of trials that were stopped or paused by their predicted ends.

    Early scores would mislead a model: a trial with a long warm-up looks bad early, even if it ends
    as good as others. Trials with several rewards are unchanged.

    Args:
        trials: of a study.
        observations: of these trials.
        spec: the search space.
    """
    early = column(trials, _early_step)
    at = {
        index: step
        for index, step in enumerate(early)
        if step is not None and len(observations[index].scores) == 1
    }
    if not at:
        return list(observations)
    steps = sorted(set(at.values()))
    # Schedulers without rungs stop trials at any step.
    levels = tuple(steps[:: math.ceil(len(steps) / _MAX_LEVELS)])
    predicted = predict_ends(
        np.array(column(trials, _scores_at(levels))),
        points_of_rows(spec)(np.array(column(trials, _row_of(spec)))),
    )
    found = list(observations)
    for index, step in at.items():
        end = float(predicted[index, bisect.bisect_right(levels, step) - 1])
        # It is NaN if the trial's first measurement came after a level that was left out.
        if math.isfinite(end):
            found[index] = dataclasses.replace(found[index], scores=(end,))
    return found


@per_spec
def _row_of(spec: pg.DNASpec) -> Callable[[Trial], np.ndarray]:
    encode = FlatSpace(spec).encode
    return lambda trial: encode(trial.by_id)


@functools.lru_cache(maxsize=16)
def _scores_at(levels: tuple[int, ...]) -> Callable[[Trial], list[float]]:
    return lambda trial: _scores(trial, levels)


def with_costs(
    budget: Budget, trials: Sequence[Trial], observations: Sequence[Observation]
) -> list[Observation]:
    """Adds the costs of trials in a budget of hours; nothing if the budget has none.

    With a scheduler, few trials complete. The cost of a stopped or paused trial is extrapolated, at
    its speed, to the step at which others completed. If these steps differ, a decision sets the
    length of a trial, and only completed trials have costs.

    Args:
        budget: of the study.
        trials: of the study.
        observations: of these trials.
    """
    if not budget.has_hours:
        return list(observations)
    ends = {_last_step(trial) for trial in trials if trial.status is Status.COMPLETED}
    end = ends.pop() if len(ends) == 1 else None
    return [
        dataclasses.replace(observed, cost=_cost(budget, trial, end))
        for trial, observed in zip(trials, observations, strict=True)
    ]


def _cost(budget: Budget, trial: Trial, end: int | None) -> float | None:
    steps = _last_step(trial)
    if trial.status is Status.COMPLETED:
        end = steps
    elif trial.status not in (Status.STOPPED, Status.PAUSED) or not steps or end is None:
        return None
    once = sum(trial.record.profile.get(phase, 0.0) for phase in (COMPILATION, INITIALIZATION))
    seconds = trial.seconds + (trial.seconds - once) * (max(end - steps, 0) / max(steps, 1))
    devices = 1 if budget.device_hours is None else max(trial.record.run_time.devices, 1)
    return seconds * devices or None


def _last_step(trial: Trial) -> int:
    return trial.measurements[-1].step if trial.measurements else 0


def _early_step(trial: Trial) -> int | None:
    """The step of the score with which a trial that was stopped or paused is observed."""
    pauses: Sequence[float] = trial.record.pauses
    if trial.status is Status.STOPPED:
        pauses = (math.inf,)
    elif trial.is_terminal or not pauses:
        return None
    until = pauses[-1]
    return max((step for step in trial.score_curve if step <= until), default=None)


def _scores(trial: Trial, levels: Sequence[int]) -> list[float]:
    """The scores of a trial at steps, and at its end; NaN where it has not got there."""
    curve = trial.score_curve
    steps = [*curve]
    found = []
    for level in levels:
        count = bisect.bisect_right(steps, level)
        has_reached = count > 0 and steps[-1] >= level
        found.append(curve[steps[count - 1]][0] if has_reached else math.nan)
    return [*found, trial.scores[0] if trial.status is Status.COMPLETED else math.nan]
