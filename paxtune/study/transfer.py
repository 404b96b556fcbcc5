"""Observations of other studies that an algorithm may learn from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyglove as pg

from paxtune.algorithms import Observation
from paxtune.algorithms.encoding import earlier
from paxtune.config.search import Search
from paxtune.objectives.rewards import NonFiniteRewardError, Reward, measured_rewards
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.labels import display_value, match_candidate
from paxtune.search_space.space import Space
from paxtune.study.export import content
from paxtune.study.record import PriorTrial, Status
from paxtune.study.study_view import StudyView
from paxtune.study.trial import Trial
from trainer.symbolic.errors import UserError

_COMPLETED = (Status.COMPLETED, Status.STOPPED)


def priors(source: StudyView, space: Space, search: Search) -> list[PriorTrial]:
    """Collects the completed trials of another study that fit into a space.

    Raises:
        UserError: no trial fits into the space.
    """
    found = prior_trials(source, space, search)
    if not found:
        raise UserError(
            f'--prior_studies: none of the {len(source.trials)} trials in {source.directory} '
            'was completed, has the metrics of the reward and fits into the search space'
        )
    return found


def prior_trials(source: StudyView, space: Space, search: Search) -> list[PriorTrial]:
    """Collects the completed trials of another study that fit into a space; maybe none."""
    found, name = list[PriorTrial](), str(source.directory or source.record.uuid)
    rewards = search.rewards
    for each in carried(source, space):
        decisions = adopted(space, each['decisions'])
        made = rewards_of(rewards, each['metrics'], space)
        complete = len(made) == len(rewards) and each['state'] in _COMPLETED
        if decisions is not None and complete:
            scores = [r.score(v) for r, v in zip(rewards, made, strict=True)]
            found.append(PriorTrial(decisions, tuple(scores), name))
    return found


def spread(trials: Sequence[PriorTrial], count: int) -> list[PriorTrial]:
    """Takes the best half of a number of trials, and the others evenly; in their order."""
    observed = observations_of(trials)
    kept = {each.id for each in earlier.spread(observed, count)}
    return [trial for trial, each in zip(trials, observed, strict=True) if each.id in kept]


def observations_of(priors: Sequence[PriorTrial]) -> list[Observation]:
    """Turns priors into observations, with numbers up to 0 in their order."""
    return [
        Observation(
            i + 1 - len(priors),
            dict(each.decisions),
            'completed',
            each.scores,
            source=each.source,
        )
        for i, each in enumerate(priors)
    ]


def carried(source: StudyView, space: Space) -> Iterator[dict[str, Any]]:
    """Yields the ended trials of another study as plain data, with decisions for a space."""
    for trial in source.trials:
        each = content(trial)
        if trial.is_terminal:
            yield each | {'decisions': dict(each['decisions']) | _constants(source, trial, space)}


def _constants(source: StudyView, trial: Trial, space: Space) -> dict[str, Any]:
    """Reads the values at the decisions of a space from a trial that did not decide them."""
    missing = [path for path in space.paths if path not in trial.decisions]
    if not missing:
        return {}
    if source.space.why_no_value and not set(source.space.paths).issuperset(missing):
        raise UserError(source.space.why_no_value)
    try:
        experiment = trial.materialize()
    except (UserError, ValueError):
        return {}
    found = {}
    for path in missing:
        if '[=' not in path and experiment.sym_has(pg.KeyPath.parse(path)):
            found[path] = display_value(experiment.sym_get(pg.KeyPath.parse(path)))
    return found


def adopted(space: Space, given: Mapping[str, Any]) -> Decisions | None:
    """Translates decisions of another space into this one.

    Returns:
        None if they do not fit. Also None if this space fixes one of these values
        differently: the experiment would differ from its decisions.
    """
    decisions = space.adopt(given.get)
    if decisions is None:
        return None
    gone = {path: value for path, value in given.items() if path not in space.readable(decisions)}
    if not gone:
        return decisions
    try:
        made = space.materialize(decisions)
    except (UserError, ValueError):
        return None
    for path, value in gone.items():
        if '[=' in path or not made.sym_has(pg.KeyPath.parse(path)):
            continue
        if match_candidate(value, [display_value(made.sym_get(pg.KeyPath.parse(path)))]) is None:
            return None
    return decisions


def rewards_of(
    rewards: Sequence[Reward], metrics: Mapping[str, float], space: Space
) -> tuple[float, ...]:
    """Computes rewards from the metrics of another study; none if metrics are missing."""
    try:
        return measured_rewards(rewards, metrics, space.sub_experiments)
    except NonFiniteRewardError:
        return ()
