"""Checks of a study: its effect, its gain over a baseline, regressions, and its limits.

Each check is a line for people with a recommendation. Two more checks stand elsewhere: decisions at
the edge of their range (`paxtune.analysis.range_edges`), and early ranks that mislead
(`paxtune.schedulers.rung_report`).
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from paxtune.analysis import noise
from paxtune.analysis.noise import Noise
from paxtune.objectives.metrics import STATIC_METRICS, split_name
from paxtune.study import code_versions, replicates
from paxtune.study.columns import reward_columns
from paxtune.study.record import Status
from trainer.symbolic.errors import UserError

if TYPE_CHECKING:
    from paxtune.objectives.limits import Limit
    from paxtune.study.replicates import LeaderboardEntry
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

ALPHA = 0.05
"""Level of the test of no effect, and one minus the probability that a difference needs.

Both are the defaults of Ax (`TestOfNoEffectAnalysis`, `RegressionAnalysis`).
"""

MIN_SHARE = 0.5
"""Share of trials that should keep to a limit, as in Ax (`ConstraintsFeasibilityAnalysis`)."""

MIN_CHANGE = 0.05
"""Relative change below which a metric has not regressed: our choice, as noise may be unknown."""

MIN_CONFIGURATIONS = 5
"""Completed configurations below which no effect and no gain are no warning: our choice."""

Kind = Literal['effect', 'gain', 'regression', 'limit', 'code']


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        kind: the check.
        name: the reward, metric or limit that it is about.
        is_warning: the user should act.
        message: one line for people.
        value: p-value of no effect, relative gain, relative regression, or share of the trials
            within the limit; None if undefined.
    """

    kind: Kind
    name: str
    is_warning: bool
    message: str
    value: float | None


def checks(study: 'StudyView', baseline: int | None = None) -> list[Check]:
    """Checks a study.

    - *effect*: configurations differ by more than the noise. One-way analysis of variance over
      replicates tests that at the level `ALPHA`; without replicates only equal rewards are seen.
    - *gain*: the best configuration beats the baseline. With replicates, the probability of that
      must be 1 - `ALPHA`.
    - *regression*: a metric is worse in the best trial than in the baseline, by `MIN_CHANGE` of it
      and, with replicates, with the same probability. It checks the metrics of limits, and costs
      such as `num_params`. A study with several objectives has no best trial.
    - *limit*: the probability that a trial keeps to each limit is `MIN_SHARE` or more. A warning
      needs the probability 1 - `ALPHA` of the opposite.
    - *code*: the users' code is the same for all trials.

    Args:
        study: the study.
        baseline: a trial that was completed; the first one by default.

    Returns:
        Checks that had something to compare, in this order.

    Raises:
        UserError: the baseline was not completed.

    Example:
        >>> import paxtune, pyglove as pg
        >>> space = {'x': pg.floatv(-1.0, 1.0)}
        >>> study = paxtune.tune(lambda x: 3.0, space=space, objective='minimize', num_trials=5)
        >>> [each.kind for each in checks(study) if each.is_warning]
        ['effect', 'gain']
    """
    board = study.leaderboard if study.rewards else []
    base = _baseline(board, baseline)
    found = [*_effects(study, board)]
    if base is not None:
        found += _gains(study, board, base)
        found += _regressions(study, board, base)
    return [*found, *_limits(study.search.limits, study.trials), *_code(study)]


def _code(study: 'StudyView') -> Iterator[Check]:
    for since, names in code_versions.changes(study.record):
        changed = code_versions.named(names)
        message = f'the code of {changed} changed before trial {since}: compare with care'
        yield Check('code', changed, True, message, None)


def _baseline(board: 'Sequence[LeaderboardEntry]', number: int | None) -> 'LeaderboardEntry | None':
    if number is None:
        return min(board, key=lambda each: each.configuration.first.id, default=None)
    for entry in board:
        if number in [trial.id for trial in entry.trials]:
            return entry
    raise UserError(f'trial {number} is no baseline: it was not completed')


def _effects(study: 'StudyView', board: 'Sequence[LeaderboardEntry]') -> Iterator[Check]:
    for index, name in enumerate(reward_columns(study.rewards)):
        groups = [[trial.rewards[index] for trial in entry.trials] for entry in board]
        p_value = noise.no_effect(groups)
        if p_value is None or len(groups) < MIN_CONFIGURATIONS:
            continue
        if p_value < ALPHA:
            message = f'Decisions have an effect on {name}.'
        elif len({value for group in groups for value in group}) == 1:
            message = f'{name} is the same in all trials: search other decisions or another reward.'
        else:
            message = (
                f'No effect on {name}: decisions differ no more than replicates do. Add '
                'replicates (paxtune.studies confirm), or search other decisions.'
            )
        yield Check('effect', name, p_value >= ALPHA, message, p_value)


def _gains(
    study: 'StudyView', board: 'Sequence[LeaderboardEntry]', base: 'LeaderboardEntry'
) -> Iterator[Check]:
    if len(board) < 2:
        return
    ranked = replicates.complete(board)
    is_late = len(board) >= MIN_CONFIGURATIONS
    first = base.trial.id
    for index, name in enumerate(reward_columns(study.rewards)):
        best = max(ranked, key=lambda each: each.scores[index])
        gain = best.scores[index] - base.scores[index]
        share = gain / abs(base.scores[index]) if base.scores[index] else None
        if not gain > 0.0:
            message = (
                f'No gain: no trial has a better {name} than the baseline, trial {first}. Add '
                'trials, or widen the search space.'
            )
            if is_late:
                yield Check('gain', name, True, message, share)
            continue
        about = f'Trial {best.trial.id} improves {name} over the baseline, trial {first}, by'
        about += f' {gain:.3g}' if share is None else f' {gain:.3g} ({share:.1%})'
        known = Noise.estimate([[each.scores[index] for each in e.trials] for e in board])
        own, other = ([each.scores[index] for each in e.trials] for e in (best, base))
        if known is not None and not known.probability_of_gain(own, other) > 1 - ALPHA:
            about += ', which noise may explain: add replicates (paxtune.studies confirm)'
            yield Check('gain', name, is_late, f'{about}.', share)
        else:
            yield Check('gain', name, False, f'{about}.', share)


def _regressions(
    study: 'StudyView', board: 'Sequence[LeaderboardEntry]', base: 'LeaderboardEntry'
) -> Iterator[Check]:
    if len(study.rewards) != 1 or board[0] is base:
        return
    best, known = board[0], {name for entry in board for name in entry.trial.metrics}
    rewarded = {name for each in study.rewards[0].metrics for name in each.matches(known)}
    for name, sign in _directions(study.search.limits, known).items():
        groups = [_values(entry, name, sign) for entry in board]
        own, other = _values(best, name, sign), _values(base, name, sign)
        if name in rewarded or not own or not other:
            continue
        before, after = (math.fsum(values) / len(values) for values in (other, own))
        if not before - after > MIN_CHANGE * abs(before):
            continue
        deviation = Noise.estimate(groups)
        if deviation is None or deviation.probability_of_gain(other, own) > 1 - ALPHA:
            share = (before - after) / abs(before) if before else None
            message = (
                f'Trial {best.trial.id}, the best, has a worse {name} than the baseline, trial '
                f'{base.trial.id}: {sign * after:.4g} after {sign * before:.4g}. A second '
                f'objective or a limit bounds it.'
            )
            yield Check('regression', name, True, message, share)


def _directions(limits: 'Sequence[Limit]', names: set[str]) -> dict[str, float]:
    """Finds metrics to minimize (-1.0) or maximize (1.0): metrics of limits, and costs."""
    found = {name: -1.0 for name in sorted(names) if split_name(name)[0] in STATIC_METRICS}
    for limit in limits:
        if limit.at_most is None or limit.at_least is None:
            sign = 1.0 if limit.at_most is None else -1.0
            found |= dict.fromkeys(limit.selector.matches(names), sign)
    return found


def _values(entry: 'LeaderboardEntry', name: str, sign: float) -> list[float]:
    return [sign * trial.metrics[name] for trial in entry.trials if name in trial.metrics]


def _limits(limits: 'Sequence[Limit]', trials: 'Sequence[Trial]') -> Iterator[Check]:
    for limit in limits:
        kept = list(_kept(limit, trials))
        if not kept:
            continue
        met, count = sum(kept), len(kept)
        is_warning = noise.probability_below(met, count, MIN_SHARE) > 1 - ALPHA
        message = f'{met} of {count} trials keep to {limit.label}'
        if is_warning:
            message += ': move the limit, or leave values out of the space that break it'
        yield Check('limit', limit.label, is_warning, f'{message}.', met / count)


def _kept(limit: 'Limit', trials: 'Sequence[Trial]') -> Iterator[bool]:
    """Yields if each ended trial keeps to a limit; skips trials that did not measure it."""
    matches = functools.cache(limit.selector.matches)  # Trials share a few sets of names.
    for trial in trials:
        if not trial.is_terminal:
            continue
        is_infeasible = trial.status is Status.INFEASIBLE
        if is_infeasible and limit.is_reason(trial.reason or ''):
            yield False
        elif matches(tuple(trial.metrics)):
            # A trial that ended otherwise keeps to all limits.
            yield not is_infeasible or limit.violation(trial.metrics) is None
