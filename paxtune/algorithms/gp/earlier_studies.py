"""Predictions of earlier studies for the trials of this one."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.earlier import EarlierStudy, correlation, is_own, spread
from paxtune.algorithms.encoding.points import encoding_spec, points_of_rows
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.blas import one_blas_thread
from paxtune.algorithms.gp.warping import warp
from paxtune.search_space.decisions import Decisions

MAX_TRIALS = 64
"""Trials of an earlier study that are modelled at most: the best half, and others evenly."""

_MAX_OWN = 128  # Own trials that are compared at most.
_MEMO = 'earlier_studies'

_Models: TypeAlias = tuple[Sequence[Observation], Sequence[model.Posterior]]
"""Trials of an earlier study, and a process of each reward."""


def compared(context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
    """Compares the earlier studies of a context with its own trials.

    A Gaussian process of each earlier study alone predicts the own trials. The share of pairs of
    own trials in the predicted order gives the correlation (rank weights: Wistuba et al. 2016;
    Feurer et al. 2018). So scores of different tasks are never compared. A study whose agreement
    may be chance has a correlation of 0.
    """
    completed = [each for each in context.observations if each.state == 'completed']
    if not completed or is_own(completed[0]):
        return []
    models = _models(context, space, [each for each in completed if not is_own(each)])
    own = spread([each for each in completed if is_own(each)], _MAX_OWN)
    scores = np.array([each.scores for each in own]).T
    points = _points([each.decisions for each in own], space)
    found = []
    for source, (trials, posteriors) in models.items():
        predicted = np.zeros((len(posteriors), 0))
        if own:
            predicted = np.array([model.predict(each, points).mean for each in posteriors])
        lowest = min(map(correlation, scores if own else predicted, predicted))
        found.append(EarlierStudy(source, trials, predicted, lowest))
    return found


def compared_in_one_thread(context: SuggestionContext, space: FlatSpace) -> list[EarlierStudy]:
    """As `compared`, for a caller that does not limit linear algebra to one thread."""
    with one_blas_thread():
        return compared(context, space)


def _models(
    context: SuggestionContext, space: FlatSpace, trials: Sequence[Observation]
) -> Mapping[str, _Models]:
    """Fits a process to each reward of each earlier study, once for all suggestions of a study."""
    known, models = context.memo.get(_MEMO, (None, {}))
    key = [(each.id, each.source) for each in trials]
    if known == key:
        found: Mapping[str, _Models] = models
        return found
    by_source: dict[str, list[Observation]] = {}
    for each in trials:
        by_source.setdefault(each.source, []).append(each)
    models = dict[str, _Models]()
    for source, every in by_source.items():
        kept = spread(every, MAX_TRIALS)
        models[source] = kept, _fitted(kept, space)
    context.memo[_MEMO] = key, models
    return models


def predicted_scores(
    trials: Sequence[Observation], space: FlatSpace, decisions: Sequence[Decisions]
) -> np.ndarray:
    """Predicts standardized scores of decisions from the completed trials of one study."""
    with one_blas_thread():
        posterior, *_ = _fitted(spread(trials, MAX_TRIALS), space)
        return model.predict(posterior, _points(decisions, space)).mean


def _fitted(trials: Sequence[Observation], space: FlatSpace) -> list[model.Posterior]:
    """Fits a process to each reward."""
    columns, found = encoding_spec(space).columns, []
    everywhere = np.ones(len(trials), bool)
    points = _points([each.decisions for each in trials], space)
    for scores in zip(*[each.scores for each in trials], strict=True):
        values = warp(np.array(scores))
        data = model.TrainingData(points, values, everywhere, everywhere, ~everywhere)
        theta = model.fit(data, columns, np.random.default_rng(0), num_drawn=0)
        found.append(model.posterior(theta, data, columns))
    return found


def _points(decisions: Sequence[Decisions], space: FlatSpace) -> np.ndarray:
    rows = [space.encode(each) for each in decisions]
    return points_of_rows(space.spec)(np.array(rows).reshape(len(rows), len(space)))
