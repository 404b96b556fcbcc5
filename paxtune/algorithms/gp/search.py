"""One suggestion with a Gaussian process."""

import heapq
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.costs import log_cost_slopes
from paxtune.algorithms.encoding.earlier import EarlierStudy, is_own, spread
from paxtune.algorithms.encoding.known_values import known_rows
from paxtune.algorithms.encoding.novelty import RESOLUTION, WIDE, EarlierTrials, first_new
from paxtune.algorithms.encoding.points import EncodingSpec, encoder, encoding_spec
from paxtune.algorithms.encoding.sampling import changeable_points, mutate
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import Acquisition, AcquisitionContext, Kind
from paxtune.algorithms.gp.earlier_studies import compared
from paxtune.algorithms.gp.optimizer import maximize
from paxtune.algorithms.gp.warping import warp
from paxtune.search_space.decisions import Decisions

MAX_TRIALS = 512
"""Trials that are modelled at most."""

MANY, MAX_OF_MANY = 2000, 256
"""With more trials than the first, the second is the most: they say more, and time matters."""

_MAX_EARLIER, _FEWEST_OF_STUDY = 128, 32  # Trials of all earlier studies, and of one.
_NUM_KNOWN = 32
_NUM_PERTURBATIONS = 256


class FittedModel(NamedTuple):
    """Gaussian process of a study.

    Attributes:
        space: search space.
        encoding: how decisions become points.
        trials: all that are modelled: of this study, then of earlier ones.
        data: their points and warped scores.
        theta: parameters of the process: see `model.fit`.
    """

    space: FlatSpace
    encoding: EncodingSpec
    trials: Sequence[Observation]
    data: model.TrainingData
    theta: np.ndarray

    @property
    def completed(self) -> list[Observation]:
        """The completed trials of this study."""
        return [trial for trial in self.trials if trial.state == 'completed' and is_own(trial)]

    def information(self) -> float:
        """Mean gain of the logarithm of the likelihood of a completed trial's score, in nats.

        The process predicts each trial from the others. The gain is relative to one normal
        distribution for all trials: 0 or less if decisions say nothing about scores.
        """
        values = self.data.values[self.data.is_observed]
        if not values.any():  # All scores are equal.
            return 0.0
        errors, deviations = model.leave_one_out(self.theta, self.data, self.encoding.columns)
        gains = (values**2 - (errors / deviations) ** 2) / 2 - np.log(deviations)
        if self.data.studies is not None:  # The normal distribution of its own trials differs.
            own = values[self.data.studies[self.data.is_observed] == 0]
            deviation = max(float(own.std()), 1e-6)
            gains[: len(own)] += 0.5 + math.log(deviation) - own**2 / 2
        return float(np.mean(gains))


def fit(context: SuggestionContext, space: FlatSpace, rng: np.random.Generator) -> FittedModel:
    """Fits the process to at least two completed trials of this study, and to earlier studies."""
    studies = [each for each in compared(context, space) if each.correlation > 0]
    own = subsampled([trial for trial in context.observations if is_own(trial)])
    encoding = encoding_spec(space)
    data = _training_data(own, space, encoding)
    trials = own
    if studies:
        trials, data = _joined(own, data, studies, space, encoding)
    theta = model.fit(data, encoding.columns, rng)
    return FittedModel(space, encoding, trials, data, theta)


def suggest_decisions(
    context: SuggestionContext,
    fitted: FittedModel,
    acquisition: Literal['log_ei', 'ucb_pe'],
    prior_strength: float,
    rng: np.random.Generator,
) -> Decisions | None:
    """Returns eligible decisions of high acquisition value, or None if none were found.

    `prior_strength` is the weight of the user prior after one trial.
    """
    space, encoding, trials, data, theta = fitted
    completed = fitted.completed
    ranked = sorted(completed, key=lambda trial: trial.scores, reverse=True)
    leaders = [trial.decisions for trial in ranked[:_NUM_KNOWN]]
    if data.loadings is not None:
        leaders = [*leaders[: _NUM_KNOWN // 2], *_leaders_of_earlier(fitted)][:_NUM_KNOWN]
    kind = _kind(acquisition, sum(trial.state == 'pending' for trial in trials), rng)
    posterior = model.posterior(theta, data, encoding.columns)
    points = data.points[data.is_observed & np.array([is_own(trial) for trial in trials])]
    incumbent = np.max(model.predict(posterior, points).mean)
    prior = _prior(context, space, prior_strength / len(completed))
    region = trust_region(context.number, completed, theta, space, encoding)
    # The other acquisition functions are no logarithms.
    slopes = log_cost_slopes(trials, data.points) * (kind == 'log_ei')
    inputs = AcquisitionContext(float(incumbent), *prior, *region, slopes)
    score = Acquisition(kind, encoding, posterior, inputs)
    rows, _ = maximize(score, np.resize(_rows(leaders, space), (_NUM_KNOWN, len(space))), rng)
    earlier = EarlierTrials(space, trials)
    found = first_new(context, earlier, map(space.decode, rows), RESOLUTION, WIDE)
    if found is None and (near := _perturbations(context, leaders)):
        _, values = score(_rows(near, space))
        ordered = [near[i] for i in np.argsort(-values, kind='stable')]
        # Where nothing else is feasible, even a point close to an earlier one is tried.
        tries = (first_new(context, earlier, ordered, d, d) for d in (WIDE, RESOLUTION, 0.0))
        found = next((each for each in tries if each is not None), None)
    return found


def subsampled(observations: Sequence[Observation]) -> list[Observation]:
    """All trials; of more than the model takes, the running, the best and the latest."""
    if len(observations) <= MAX_TRIALS:
        return list(observations)
    count = MAX_TRIALS if len(observations) <= MANY else MAX_OF_MANY
    scored = (trial for trial in observations if trial.scores)
    best = heapq.nlargest(count // 2, scored, key=lambda trial: trial.scores)
    order = [t for t in observations if t.state == 'pending'] + best
    kept = set(
        list(dict.fromkeys(t.id for t in [*order, *observations[: -count - 1 : -1]]))[:count]
    )
    return [trial for trial in observations if trial.id in kept]


def _kind(
    acquisition: Literal['log_ei', 'ucb_pe'], num_running: int, rng: np.random.Generator
) -> Kind:
    if acquisition == 'log_ei':
        return 'log_ei'
    # The suggested trial will run beside the others.
    explores = 0.75 * (1 - 1 / (num_running + 1)) if num_running else 0.1
    return 'pe' if rng.random() < explores else 'ucb'


def _training_data(
    trials: Sequence[Observation], space: FlatSpace, encoding: EncodingSpec
) -> model.TrainingData:
    states = np.array([trial.state for trial in trials])
    is_observed, is_infeasible = states == 'completed', states == 'infeasible'
    values = np.zeros(len(trials))
    values[is_observed] = warp(np.array([trial.scores[0] for trial in trials if trial.scores]))
    _, points, _ = encoder(encoding)(_rows([trial.decisions for trial in trials], space))
    return model.TrainingData(points, values, is_observed, ~is_infeasible, is_infeasible)


def _joined(
    own: Sequence[Observation],
    data: model.TrainingData,
    studies: Sequence[EarlierStudy],
    space: FlatSpace,
    encoding: EncodingSpec,
) -> tuple[list[Observation], model.TrainingData]:
    """Adds the trials of earlier studies to the data of this one, those most like it first."""
    order = sorted(studies, key=lambda each: -each.correlation)
    count = max(_MAX_EARLIER // len(order), _FEWEST_OF_STUDY)
    taken = [spread(each.trials, count) for each in order[: _MAX_EARLIER // count]]
    loadings, numbers = np.ones(len(own)), np.zeros(len(own), int)
    parts = [data]
    for i, (study, some) in enumerate(zip(order, taken, strict=False)):
        parts.append(_training_data(some, space, encoding))
        loadings = np.append(loadings, np.full(len(some), study.correlation))
        numbers = np.append(numbers, np.full(len(some), i + 1))
    scale, offset = _alignment(order)
    parts[0] = data._replace(values=np.where(data.is_observed, offset + scale * data.values, 0.0))
    trials = [*own, *(trial for some in taken for trial in some)]
    joined = (np.concatenate(each) for each in zip(*(part[:5] for part in parts), strict=True))
    points, values, is_observed, is_known, is_infeasible = joined
    return trials, model.TrainingData(
        points, values, is_observed, is_known, is_infeasible, loadings, numbers
    )


def _leaders_of_earlier(fitted: FittedModel) -> list[Decisions]:
    """The best half of the trials of earlier studies, the best of each first."""
    assert fitted.data.studies is not None
    places = np.flatnonzero(fitted.data.studies)
    best_first = places[np.argsort(-fitted.data.values[places], kind='stable')]
    return [fitted.trials[i].decisions for i in best_first[:_NUM_KNOWN]]


def _alignment(studies: Sequence[EarlierStudy]) -> tuple[float, float]:
    """Scale and offset that bring this study's standardized scores to those of earlier studies.

    The first trials are the best of earlier studies, so they are not average ones. Their mean, and
    the part of their variance that earlier studies explain, are as predicted.
    """
    weights = np.array([each.correlation**2 for each in studies])
    predicted = weights @ np.stack([each.predicted for each in studies]) / weights.sum()
    share = float(weights.max())
    return math.sqrt(share * np.var(predicted) + 1 - share), math.sqrt(share) * predicted.mean()


def _rows(decisions: Sequence[Decisions], space: FlatSpace) -> np.ndarray:
    # Values of inactive features are ignored.
    return np.nan_to_num(np.stack([space.encode(each) for each in decisions]), nan=0.5)


def _prior(
    context: SuggestionContext, space: FlatSpace, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Row of the known values, and the weight of each feature; 0 without a known value."""
    values, deviations = known_rows(space, context.prior)
    weights = strength / (2 * deviations**2)
    return np.nan_to_num(values, nan=0.5), np.nan_to_num(weights, nan=0.0)


def trust_region(
    number: int,
    completed: Sequence[Observation],
    theta: np.ndarray,
    space: FlatSpace,
    encoding: EncodingSpec,
) -> tuple[np.ndarray, np.ndarray]:
    """Center and radius: of the whole space, for every second trial of a region around the best.

    Points in high dimensions are far from all trials, and an uncertain model prefers the corners.
    The region is longer along features of large length scales. It shrinks while no better trial
    is found (TuRBO, Eriksson et al. 2019), but not to where noise hides all differences.
    """
    best = max(completed, key=lambda trial: trial.scores)
    center = _rows([best.decisions], space)[0]
    radius = np.ones(len(space))
    if number % 2 == 0:
        stalled = sum(trial.id > best.id for trial in completed)
        width = max(0.4 * 0.5 ** (stalled / max(4, len(space))), 0.01)
        lengths = np.exp(theta[2:])
        relative = lengths / np.exp(np.mean(np.log(lengths)))
        is_choice = np.array(encoding.counts) > 0
        least = np.maximum(width / 4, lengths * model.noise_distance(theta))
        radius = np.where(is_choice, 1.0, np.clip(width * relative, least, 1.0))
    return center, radius


def _perturbations(context: SuggestionContext, parents: Sequence[Decisions]) -> list[Decisions]:
    """Draws untried experiments near good ones, which are feasible."""
    rng = context.rng()
    parents = [parent for parent in parents if changeable_points(context.spec, parent)]
    if not parents:
        return []
    made = [
        mutate(context.spec, parents[i % len(parents)], rng, step=(0.02, 0.1, None)[i % 3])
        for i in range(_NUM_PERTURBATIONS)
    ]
    return [each for each in made if not context.seen(each)]
