"""Earlier studies, beside the own trials: their correlation, and first trials from them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.novelty import WIDE, EarlierTrials
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.ranking import best_trials
from paxtune.search_space.decisions import Decisions

# Agreement of an earlier study before there are own trials, and its weight in comparisons. A study
# of the same space is expected to order three of four pairs as this one does.
_EXPECTED, _WEIGHT = 0.5, 4
_FEWEST = 5  # Own trials from which an agreement that may be chance counts as none.


class EarlierStudy(NamedTuple):
    """An earlier study, compared with this one.

    Attributes:
        source: names the study.
        trials: its completed trials that are modelled.
        predicted: standardized scores that it predicts for the own completed trials [rewards, N].
        correlation: of its scores with those of this study, from 0 for one that does not help to 1;
            the lowest one of several rewards.
    """

    source: str
    trials: Sequence[Observation]
    predicted: np.ndarray
    correlation: float


def is_own(trial: Observation) -> bool:
    """Returns True for a trial of this study."""
    return trial.id > 0


def correlation(scores: np.ndarray, predicted: np.ndarray) -> float:
    """Estimates the correlation of scores [N] with predictions from the order of all pairs.

    Kendall's rank correlation is averaged with its expectation before the first trial. It counts
    as 0 where the pairs in the predicted order are no more than chance would leave once in six.

    Example:
        >>> ordered = np.arange(8.0)
        >>> round(correlation(ordered, ordered), 2), correlation(ordered, -ordered)
        (0.96, 0.0)
    """
    count = len(scores)
    rows, columns = np.triu_indices(count, 1)
    own = np.sign(scores[rows] - scores[columns])
    num_pairs = int(np.count_nonzero(own))
    agreement = 0.0
    if num_pairs:
        agreement = float(own @ np.sign(predicted[rows] - predicted[columns])) / num_pairs
    else:
        count = 0
    if count >= _FEWEST and agreement < math.sqrt((4 * count + 10) / (9 * count * (count - 1))):
        return 0.0
    comparisons = max(count - 1, 0)
    mean = (_WEIGHT * _EXPECTED + comparisons * agreement) / (_WEIGHT + comparisons)
    return math.sin(math.pi / 2 * max(mean, 0.0))


def first_trial(
    context: SuggestionContext, space: FlatSpace, studies: Sequence[EarlierStudy], turn: int
) -> Decisions | None:
    """Returns the best new decisions of an earlier study; each study has its turn.

    Args:
        studies: to be taken from, the most similar first.
        turn: the number of trials that earlier studies had before.
    """
    helpful = [each for each in studies if each.correlation > 0]
    if not helpful:
        return None
    earlier = EarlierTrials(space, context.observations)
    first = turn % len(helpful)
    for study in (*helpful[first:], *helpful[:first]):
        for trial in best_trials(study.trials):
            is_new = not earlier.has_close(trial.decisions, WIDE)
            if is_new and context.is_eligible(trial.decisions):
                return trial.decisions
    return None


def spread(trials: Sequence[Observation], count: int) -> list[Observation]:
    """Takes the best half of a number of trials, and the others evenly from best to worst."""
    ranked = best_trials(trials)
    if len(ranked) <= count:
        return ranked
    best, rest = ranked[: count // 2], ranked[count // 2 :]
    left = count - len(best)
    return best + [rest[(i + 1) * len(rest) // left - 1] for i in range(left)]
