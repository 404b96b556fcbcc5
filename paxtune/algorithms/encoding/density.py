"""Parzen estimator: the density of rows of unit values, with inactive features."""

import dataclasses
from typing import TypeAlias

import numpy as np
import scipy.special

from paxtune.algorithms.encoding.points import EncodingSpec

Array: TypeAlias = np.ndarray

_WIDTH = 0.2  # A kernel without any trials, as a share of the range.
_LOG_ROOT = 0.5 * np.log(2 * np.pi)


@dataclasses.dataclass(frozen=True)
class Density:
    """Mixture of kernels, each a product over features.

    The kernel of a number, or of an ordinal choice, is a normal distribution that is truncated to
    the range. The kernel of a category adds weight to one candidate. For an inactive
    feature, the distribution is uniform.

    Attributes:
        centers: center of each kernel [K, features]; NaN for a uniform distribution.
        widths: standard deviation of each kernel [K, features], in shares of the range. For a
            category, the probability of another candidate.
        weights: weight of each kernel [K]; their sum is 1.
        counts: number of candidates of each category [features]; 0 for a number.
    """

    centers: Array
    widths: Array
    weights: Array
    counts: Array

    def log_density(self, rows: Array) -> Array:
        """Logarithm of the density [B] of rows [B, features]; NaN where a feature is inactive."""
        offsets = np.abs(rows[:, None, :] - self.centers)
        widths = self._widths_of_numbers()
        numbers = -((offsets / widths) ** 2) / 2 - np.log(widths) - _LOG_ROOT
        low, high = _ends(self.centers, widths)
        numbers -= np.log(high - low)
        # A density, as for a number: the cell of a candidate is 1 / count wide.
        cells = np.maximum(self.counts, 1)
        equal, other = (1 - self.widths) * cells, self.widths * cells / np.maximum(cells - 1, 1)
        categories = np.log(np.where(offsets * cells < 0.5, equal, other))
        by_feature = np.where(self.counts > 0, categories, numbers)
        by_feature = np.where(np.isnan(offsets), 0.0, by_feature)
        by_kernel = by_feature.sum(axis=2)
        return np.asarray(scipy.special.logsumexp(by_kernel, axis=1, b=self.weights))

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Draws rows [count, features]."""
        kernels = rng.choice(len(self.weights), count, p=self.weights)
        centers, widths = self.centers[kernels], self._widths_of_numbers()[kernels]
        low, high = _ends(centers, widths)
        drawn = rng.random(centers.shape)
        numbers = centers + widths * scipy.special.ndtri(low + (high - low) * drawn)
        is_other = rng.random(centers.shape) < self.widths[kernels]
        turns = 1 + np.floor(drawn * np.maximum(self.counts - 1, 1))
        categories = (centers + is_other * turns / np.maximum(self.counts, 1)) % 1.0
        rows = np.where(self.counts > 0, categories, np.clip(numbers, 0.0, 1.0))
        return np.where(np.isnan(rows), drawn, rows)

    def _widths_of_numbers(self) -> Array:
        # A category with one candidate has 0.
        return np.where(self.counts > 0, 1.0, self.widths)


def _ends(centers: Array, widths: Array) -> tuple[Array, Array]:
    """Quantiles of both ends of the range."""
    return scipy.special.ndtr(-centers / widths), scipy.special.ndtr((1 - centers) / widths)


def fit(
    encoding: EncodingSpec,
    rows: Array,
    extra: Array,
    extra_widths: Array,
    strength: float,
    weights: Array | None = None,
) -> Density:
    """Makes the density of trials.

    Each trial is a kernel, and a uniform one stands for all that was not tried. Both have the same
    weight. Kernels become narrower with the number of trials as in Scott's rule, but not narrower
    than a cell of an ordinal choice.

    Args:
        encoding: describes the features.
        rows: trials [N, features]; NaN where a feature is inactive.
        extra: center of one more kernel [features]; NaN where it is uniform.
        extra_widths: standard deviations of that kernel, which do not become narrower [features].
        strength: weight of the extra kernel, in trials.
        weights: of the trials [N]; 1 by default.
    """
    is_category = np.array(encoding.are_categorical)
    cells = np.maximum(np.array(encoding.counts), 1)
    weights = np.ones(len(rows)) if weights is None else weights
    count = weights.sum() + 1
    num_active = np.sum(~np.isnan(rows), axis=1, keepdims=True)
    widths = np.maximum(_WIDTH * count ** (-1 / (num_active + 4)), 0.5 / cells * (cells > 1))
    # The weight of one trial is spread over all candidates.
    widths = np.where(is_category, (1 - 1 / cells) / count, widths)
    weights = np.concatenate([weights, [1.0, strength]])
    return Density(
        np.vstack([rows, np.full((1, len(cells)), np.nan), extra]),
        np.vstack([widths, np.full((1, len(cells)), _WIDTH), extra_widths]),
        weights / weights.sum(),
        np.where(is_category, cells, 0),
    )
