"""Importance of decisions: functional ANOVA, and mean decrease in impurity.

A random forest is fitted to the completed trials. fANOVA is by Hutter, Hoos and Leyton-Brown
(2014). It computes the share of the forest's variance over the *whole* space that each decision
explains alone. Mean decrease in impurity is the share of the variance of the *trials* that the
splits of the forest at a decision removed, interactions included.

Conditional decisions: while its parent has another value, an inactive decision is drawn at random
for the forest, which thus learns that it has no effect there. Its variance is taken in the part
of the space where it is active, times the share of this part.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.analysis.forest import Forest, Tree, fit
from paxtune.analysis.trade_off import Axis, axis_of, value_of_trial
from paxtune.search_space.labels import parameter_path
from paxtune.study.record import Status

if TYPE_CHECKING:
    from paxtune.study.study_view import StudyView
    from paxtune.study.trial import Trial

Array: TypeAlias = np.ndarray

MIN_TRIALS = 4
"""Completed trials below which nothing can be said of importance."""

_MAX_TRIALS = 1000  # The forest takes a second for each 2000 trials.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Importance:
    """The importance of a decision, as shares of the sum over all decisions.

    Attributes:
        path: the decision.
        fanova: the share of the variance that the decisions explain alone.
        impurity: the mean decrease in impurity.
    """

    path: str
    fanova: float
    impurity: float


@dataclasses.dataclass(frozen=True)
class Importances:
    """The importance of all decisions of a study for a reward or a metric.

    Attributes:
        axis: the reward or metric.
        decisions: the most important one by fANOVA first. Empty with fewer than `MIN_TRIALS`
            completed trials, or if all of them have the same value.
        main_effects: the share of the variance that all decisions explain, each alone. The rest is
            from interactions.
        num_trials: the number of trials that the forest was fitted to.
    """

    axis: Axis
    decisions: list[Importance]
    main_effects: float
    num_trials: int


def importances(study: 'StudyView', reward: str | None = None) -> Importances:
    """Computes the importance of each decision, conditional ones included.

    Trials that were stopped early or are infeasible do not count. Of more than 1000 trials, 1000
    drawn at random count. The same trials have the same importance.

    Args:
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.

    Raises:
        UserError: the study has no such reward or metric.

    Example:
        >>> import paxtune, pyglove as pg
        >>> space = {'x': pg.floatv(-1.0, 1.0), 'y': pg.floatv(-1.0, 1.0)}
        >>> def loss(x, y):
        ...     return x + y / 9
        >>> study = paxtune.tune(loss, space=space, objective='minimize', num_trials=32)
        >>> [each.path for each in importances(study).decisions]
        ['x', 'y']
    """
    return importances_by(fit, study, reward)


def importances_by(
    fit: Callable[[Array, Array], Forest], study: 'StudyView', reward: str | None
) -> Importances:
    """Computes the same with a forest that is fitted elsewhere.

    Args:
        fit: fits a forest to rows and targets: see `paxtune.analysis.forest`.
        study: the study.
        reward: a reward by its label, or a metric; the first reward by default.
    """
    axis = axis_of(study, reward)
    completed = [each for each in study.trials if each.status is Status.COMPLETED]
    values = np.array([value_of_trial(axis, each) for each in completed], float)
    known = np.flatnonzero(np.isfinite(values))
    rng = np.random.default_rng(_SEED)
    if len(known) > _MAX_TRIALS:
        known = np.sort(rng.choice(known, _MAX_TRIALS, replace=False))
    targets = values[known]
    if len(known) < MIN_TRIALS or np.ptp(targets) == 0.0:
        return Importances(axis, [], 0.0, len(known))
    space = FlatSpace(study.space.spec)
    forest = fit(_rows(space, [completed[index] for index in known], rng), targets)
    shares = fanova(space, forest)
    found = _by_path(space, shares, forest.impurities)
    found.sort(key=lambda each: -each.fanova)
    return Importances(axis, found, float(shares.sum()), len(known))


def _rows(space: FlatSpace, trials: 'Sequence[Trial]', rng: np.random.Generator) -> Array:
    """Encodes trials as rows of the unit cube; inactive decisions are random."""
    rows = np.array([space.encode(trial.by_id) for trial in trials])
    return np.where(np.isnan(rows), rng.random(rows.shape), rows)


def _by_path(space: FlatSpace, shares: Array, impurities: Array) -> list[Importance]:
    paths = [parameter_path(feature.id) for feature in space.features]
    sums = {path: np.zeros(2) for path in paths}
    total = shares.sum() or 1.0
    for path, share, impurity in zip(paths, shares, impurities, strict=True):
        sums[path] += share / total, impurity
    return [Importance(path, float(share), float(own)) for path, (share, own) in sums.items()]


def fanova(space: FlatSpace, forest: Forest) -> Array:
    """Computes the share of the forest's variance that each feature explains alone: [features]."""
    shares = [_shares(space, *_leaves(space, each)) for each in forest.trees]
    return np.mean(shares, axis=0)


def _leaves(space: FlatSpace, tree: Tree) -> tuple[Array, Array, Array]:
    """The boxes of a tree's leaves in the unit cube, and their predictions.

    Returns:
        The lower and upper bounds [leaves, features], and the predictions [leaves].
    """
    left, right, feature, threshold = tree.left, tree.right, tree.feature, tree.threshold
    lower, upper = np.zeros((len(left), len(space))), np.ones((len(left), len(space)))
    nodes = np.array([0])
    while len(nodes := nodes[left[nodes] >= 0]):
        for children in (left[nodes], right[nodes]):
            lower[children], upper[children] = lower[nodes], upper[nodes]
        upper[left[nodes], feature[nodes]] = threshold[nodes]
        lower[right[nodes], feature[nodes]] = threshold[nodes]
        nodes = np.concatenate([left[nodes], right[nodes]])
    is_leaf = left < 0
    bounds = (_to_cells(space, each[is_leaf]) for each in (lower, upper))
    return (*bounds, tree.value[is_leaf])  # type: ignore[return-value]


def _to_cells(space: FlatSpace, bounds: Array) -> Array:
    """Moves bounds of choices to bounds of cells: the middle of a cell decides its side."""
    counts = np.array([len(each.order) for each in space.features])
    cells = np.maximum(counts, 1)
    return np.where(counts > 0, np.floor(bounds * cells + 0.5) / cells, bounds)


def _shares(space: FlatSpace, lower: Array, upper: Array, predictions: Array) -> Array:
    """Computes the share of a tree's variance that each feature explains alone: [features]."""
    widths = upper - lower
    volumes = widths.prod(axis=1)
    mean = volumes @ predictions
    total = volumes @ (predictions - mean) ** 2
    if total <= 0.0:
        return np.zeros(len(space))
    found = np.zeros(len(space))
    for index in range(len(space)):
        within, share = _where_active(space, index, lower, upper, widths)
        others = np.delete(within, index, axis=1).prod(axis=1)
        weighted = others * predictions
        found[index] = share * _variance(lower[:, index], upper[:, index], weighted) / total
    return found


def _where_active(
    space: FlatSpace, index: int, lower: Array, upper: Array, widths: Array
) -> tuple[Array, float]:
    """Restricts boxes to the part of the space in which a feature is active.

    Returns:
        The widths of the boxes [leaves, features] as shares of that part, and the part's share of
        the space.
    """
    share, feature = 1.0, space.features[index]
    while feature.parent >= 0:
        parent = space.features[feature.parent]
        count, rank = len(parent.order), parent.order.index(feature.condition)
        if share == 1.0:
            widths = widths.copy()
        above = np.minimum(upper[:, feature.parent], (rank + 1) / count)
        below = np.maximum(lower[:, feature.parent], rank / count)
        widths[:, feature.parent] = np.maximum(above - below, 0.0) * count
        share, feature = share / count, parent
    return widths, share


def _variance(lower: Array, upper: Array, weighted: Array) -> float:
    """The variance of a sum of steps from `lower` to `upper`, as high as `weighted`: [leaves]."""
    ends, which = np.unique(np.concatenate([lower, upper]), return_inverse=True)
    changes = np.bincount(which, np.concatenate([weighted, -weighted]), minlength=len(ends))
    heights, lengths = np.cumsum(changes)[:-1], np.diff(ends)
    mean = lengths @ heights
    return float(lengths @ (heights - mean) ** 2)
