"""Known values as unit values, and how far the trials support them."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paxtune.algorithms.base import KnownValue, Observation, SuggestionContext
from paxtune.algorithms.encoding.earlier import is_own
from paxtune.algorithms.encoding.novelty import RESOLUTION
from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.encoding.unit_cube import Feature, FlatSpace
from paxtune.objectives.pareto import crowded_fitness
from paxtune.search_space.decisions import Decisions, is_integer

Quantile = Callable[[float], float]
"""Function of a share of the probability; it returns a unit value."""

_CENTRAL = 0.2  # Deviation of initial numbers about the middle, as a share of their ranges.
MIN_DEVIATION = 0.01
"""A smaller deviation would try the same value again and again."""
_TRUST, _ODDS = 0.75, 3.0
_PRIORS = _TRUST, (1 - _TRUST) / 2, (1 - _TRUST) / 2  # Better, worse, no difference.
_MAX_RANKED = 2000


def truncated(center: float, deviation: float = _CENTRAL) -> Quantile:
    """Makes the quantile function of a normal distribution, truncated to the unit interval."""
    normal = statistics.NormalDist(center, deviation)
    below, above = normal.cdf(0.0), statistics.NormalDist(1.0 - center, deviation).cdf(0.0)

    def quantile(share: float) -> float:
        inside = below + share * (1.0 - (below + above))
        return min(max(normal.inv_cdf(min(max(inside, 1e-12), 1.0 - 1e-12)), 0.0), 1.0)

    return quantile


class KnownRow:
    """Known values of a space as a row of unit values.

    Attributes:
        values: [features]; NaN where no value is known.
        deviations: of good values about them [features].
    """

    def __init__(self, space: FlatSpace, prior: Mapping[str, KnownValue]) -> None:
        """Encodes known values by the id of their decision."""
        self._space, self._prior = space, prior
        self.values = space.encode({id_: known.value for id_, known in prior.items()})
        self.deviations = np.full(len(space), math.nan)
        for i, feature in enumerate(space.features):
            if feature.id in prior:
                self.deviations[i] = max(prior[feature.id].deviation, MIN_DEVIATION)
        self._is_known = ~np.isnan(self.values)

    def quantiles(self, count: int | None = None) -> dict[str, Quantile]:
        """Returns the quantile function of each known decision by its id.

        The best of a `count` of draws is better where draws are closer to the known values than
        good values are: by the square root of log(count) / dimensions. Integers and choices keep
        their deviations, so that neighbours come.

        L. Meunier et al., "Variance reduction for better sampling in continuous domains", PPSN
        2020.
        """
        row = self._space.decode(np.nan_to_num(self.values, nan=0.5))
        dimensions = np.sum(self._is_known & ~np.isnan(self._space.encode(row)))
        scale = 1.0 if count is None else min(math.sqrt(math.log(count) / max(dimensions, 1)), 1.0)
        found: dict[str, Quantile] = {}
        features = zip(self._space.features, self.values, self.deviations, strict=True)
        for feature, value, deviation in features:
            if math.isnan(value):
                continue
            if feature.kind == 'category':
                found[feature.id] = _category(feature, value, deviation)
                continue
            range_ = self._space.ranges.get(feature.id)
            is_real = range_ is not None and not is_integer(range_)
            width = max(scale * deviation, MIN_DEVIATION) if is_real else deviation
            found[feature.id] = truncated(value, width)
        return found

    def penalties(self) -> np.ndarray:
        """Returns the loss of log density by the square of the distance [features].

        The distance is the one of unit values. Two different candidates without an order have 1/2.
        It is 0 where no value is known.
        """
        counts = np.array([len(each.order) for each in self._space.features])
        is_category = np.array([each.kind == 'category' for each in self._space.features])
        # The probability of the known candidate, by the one of each other candidate.
        ratios = np.maximum((1 - self.deviations) * (counts - 1) / self.deviations, 1.0)
        found = np.where(is_category, 4.0 * np.log(ratios), 0.5 / self.deviations**2)
        return np.nan_to_num(found, nan=0.0)

    def center(self, context: SuggestionContext, rows: np.ndarray) -> Decisions | None:
        """Returns the known values themselves, with other numbers in the middle.

        Args:
            context: of the suggestion.
            rows: encoded observations [N, features].

        Returns:
            None if a trial of this study has all of them, or if they are not eligible.
        """
        own = np.array([is_own(trial) for trial in context.observations], bool)
        offsets = np.abs(rows[own] - self.values)
        decisions = middle(context, self._space, self.values)
        # A unit value is rounded.
        for id_ in decisions.keys() & self._prior.keys() & self._space.ranges.keys():
            decisions[id_] = self._prior[id_].value
        offsets = offsets[:, ~np.isnan(self._space.encode(decisions)) & self._is_known]
        if np.any(np.all(offsets <= RESOLUTION, axis=1)) or not context.is_eligible(decisions):
            return None
        return decisions

    def trust(self, observations: Sequence[Observation], rows: np.ndarray) -> float:
        """Returns the probability that good values are near the known ones, given the trials.

        π is the density of the known values, and c the one of the other initial trials. Trial i
        comes from π with the probability r_i = π(x_i) / (π(x_i) + c(x_i)). Three hypotheses are
        compared. By the first, trials from π have three times the odds to be the best of some. By
        the second, those from c have. By the third, neither have: scores of failed runs differ by
        chance, and prove nothing. The weight w_i of a trial is 3^r_i, 3^(1 - r_i) or 1.

        The ranks of the better half have the likelihood of Plackett and Luce. Each factor is w_i,
        divided by the sum of w over this trial and all worse ones. Infeasible trials are the worst.
        Trials away from the known values that win lower the trust. Their number alone does not.

        R. L. Plackett, "The analysis of permutations", Applied Statistics 24(2), 1975. Ties: N.
        Breslow, "Covariance analysis of censored survival data", Biometrics 30(1), 1974.

        Args:
            observations: all earlier trials; those of other studies do not count.
            rows: the same, encoded [N, features].
        """
        own = [i for i, trial in enumerate(observations) if is_own(trial)]
        completed = [i for i in own if observations[i].state == 'completed']
        if not completed:
            return _TRUST
        fitness: Sequence[tuple[float, ...]] = [observations[i].scores for i in completed]
        if len(fitness[0]) > 1:  # Fronts need memory that is quadratic in the number of trials.
            completed = completed[:_MAX_RANKED]
            fitness = crowded_fitness(fitness[:_MAX_RANKED])
        order = sorted(range(len(completed)), key=fitness.__getitem__, reverse=True)
        is_tied = [i > 0 and fitness[order[i - 1]] == fitness[k] for i, k in enumerate(order)]
        infeasible = [i for i in own if observations[i].state == 'infeasible']
        ranked = rows[[*(completed[i] for i in order), *infeasible]]
        share = self._share_near(ranked) * math.log(_ODDS)
        stages = math.ceil(len(completed) / 2)
        first = np.maximum.accumulate(np.where(is_tied, 0, np.arange(len(order))))[:stages]
        logs = []
        for log_worth in (share, math.log(_ODDS) - share, np.zeros(len(share))):
            others = np.log(np.cumsum(np.exp(log_worth[::-1]))[::-1])
            logs.append(float(np.sum(log_worth[:stages] - others[first])))
        worth = np.array(_PRIORS) * np.exp(np.array(logs) - max(logs))
        return float(worth[0] / worth.sum())

    def support(self, observations: Sequence[Observation], rows: np.ndarray) -> float:
        """Returns the weight of known values in a model: 2 × trust - 1, at least 0.

        So values that lose have none. A small weight would do harm: no bad trial is near them.
        """
        return max(2.0 * self.trust(observations, rows) - 1.0, 0.0)

    def _share_near(self, rows: np.ndarray) -> np.ndarray:
        """Probability that each row [N, features] comes from the prior, not the middle."""
        # Imported here: `scipy.special` takes a quarter of a second.
        from paxtune.algorithms.encoding.density import Density

        kinds = [feature.kind for feature in self._space.features]
        is_number = np.array([kind == 'number' for kind in kinds]) & self._is_known
        cells = [len(f.order) * (f.kind == 'category') for f in self._space.features]
        near, broad = (
            Density(centers[None], widths[None], np.ones(1), np.array(cells)).log_density(rows)
            for centers, widths in (
                (self.values, np.nan_to_num(self.deviations, nan=1.0)),
                (np.where(is_number, 0.5, math.nan), np.full(len(kinds), _CENTRAL)),
            )
        )
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(broad - near, -700.0, 700.0))))


def middle(
    context: SuggestionContext, space: FlatSpace, known: np.ndarray | None = None
) -> Decisions:
    """Returns decisions with numbers in the middle of their ranges, and choices drawn at random.

    Args:
        context: of the suggestion.
        space: encodes decisions.
        known: unit values of other numbers and choices [features]; NaN where there are none.
    """
    row = np.nan_to_num(space.encode(draw(context.spec, context.rng())), nan=0.5)
    is_number = [feature.kind != 'category' for feature in space.features]
    row = np.where(is_number, 0.5, row)
    return space.decode(row if known is None else np.where(np.isnan(known), row, known))


def _category(feature: Feature, value: float, deviation: float) -> Quantile:
    """Makes the quantile function of candidates: one has all but `deviation` of the probability."""
    count = len(feature.order)
    others = [i for i in range(count) if i != int(value * count)]

    def quantile(share: float) -> float:
        place = int((share - 1.0 + deviation) / deviation * len(others))
        chosen = int(value * count) if share < 1.0 - deviation or not others else others[place]
        return (chosen + 0.5) / count

    return quantile
