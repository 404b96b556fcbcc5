"""Portfolios: decisions that together do well in several studies."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxtune.algorithms.encoding.sampling import complete
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study import transfer
from paxtune.study.initial_trials import fitting
from paxtune.study.record import PriorTrial
from paxtune.study.study_view import StudyView
from trainer.symbolic.errors import UserError

_CANDIDATES = 10  # Best trials of a study that the portfolio may take.


def portfolio(sources: Sequence[StudyView], count: int) -> list[dict[str, Any]]:
    """Chooses decisions that together do best in studies.

    A Gaussian process of each study predicts the scores of the best trials of all studies. Each
    choice adds the most to the mean of the best standardized scores (Wistuba et al. 2015; Feurer et
    al. 2022). Fewer are returned if no other one adds to it.

    Args:
        sources: studies with one reward.
        count: the number of decisions at most.

    Raises:
        UserError: a study has several rewards, or fewer than two completed trials.
    """
    trials = [trials_of(source) for source in sources]
    candidates = [
        source.space.readable(dict(each.decisions))
        for source, own in zip(sources, trials, strict=True)
        for each in sorted(own, key=lambda each: each.scores, reverse=True)[:_CANDIDATES]
    ]
    scores = [_scores(*each, candidates) for each in zip(sources, trials, strict=True)]
    return [candidates[i] for i in chosen(np.stack(scores), count)]


def chosen(scores: np.ndarray, count: int) -> list[int]:
    """Chooses candidates by their scores in studies [studies, candidates], the best first.

    Example:
        >>> chosen(np.array([[2.0, 1.5, 0.0], [0.0, 1.0, 2.0]]), 3)
        [1, 2, 0]
    """
    found, best = list[int](), scores.min(axis=1)
    while len(found) < count:
        means = np.maximum(best[:, None], scores).mean(axis=0)
        place = int(means.argmax())
        if found and means[place] <= best.mean() + 1e-9:
            break
        found.append(place)
        best = np.maximum(best, scores[:, place])
    return found


def trials_of(source: StudyView) -> list[PriorTrial]:
    """Returns the completed trials of a study; UserError as `portfolio`."""
    if len(source.rewards) != 1:
        raise UserError(
            f'{source.directory}: a portfolio is of studies with one reward; there are '
            f'{len(source.rewards)}'
        )
    found = transfer.prior_trials(source, source.space, source.search)
    if len(found) < 2:
        raise UserError(f'{source.directory}: fewer than two trials were completed')
    return found


def _scores(
    source: StudyView, trials: Sequence[PriorTrial], candidates: Sequence[Mapping[str, Any]]
) -> np.ndarray:
    """Predicts the scores of candidates in a study; the worst one where none of it fits there."""
    # Imported here: `scipy.optimize` takes half a second.
    from paxtune.algorithms.gp.earlier_studies import predicted_scores

    made = [_completed(source.space, each) for each in candidates]
    there = [each for each in made if each is not None]
    flat = FlatSpace(source.space.spec)
    values = iter(predicted_scores(transfer.observations_of(trials), flat, there))
    found = np.array([np.nan if each is None else next(values) for each in made])
    return np.where(np.isnan(found), np.nanmin(found), found)


def _completed(space: Space, given: Mapping[str, Any]) -> Decisions | None:
    """Completes the decisions that fit into a space, at random but always alike."""
    known = fitting(space, given)
    if not known:
        return None
    try:
        return complete(space.spec, space.parse(known, partial=True), random.Random(0))
    except ValueError:
        return None
