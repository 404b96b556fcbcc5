"""One suggestion with a Gaussian process."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.costs import log_cost_slopes
from paxtune.algorithms.encoding.earlier import EarlierStudy, is_own, spread
from paxtune.algorithms.encoding.history import encoded_rows
from paxtune.algorithms.encoding.known_values import KnownRow
from paxtune.algorithms.encoding.novelty import RESOLUTION, WIDE, EarlierTrials, first_new
from paxtune.algorithms.encoding.points import EncodingSpec, encoder, encoding_spec
from paxtune.algorithms.encoding.sampling import changeable_points, mutate
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import Acquisition, AcquisitionContext, Kind
from paxtune.algorithms.gp.earlier_studies import compared
from paxtune.algorithms.gp.hypervolume import HypervolumeAcquisition, boxes_beyond
from paxtune.algorithms.gp.optimizer import maximize
from paxtune.algorithms.gp.warping import warp
from paxtune.algorithms.ranking import best_trials
from paxtune.objectives import pareto
from paxtune.search_space.decisions import Decisions

MAX_TRIALS = 512
"""Trials that are modelled at most."""

MANY, MAX_OF_MANY = 2000, 256
"""With more trials than the first, the second is the most: they say more, and time matters."""

_MAX_EARLIER, _FEWEST_OF_STUDY = 128, 32  # Trials of all earlier studies, and of one.
_NUM_KNOWN = 32
_MEMO = 'gp_fits'
_NUM_PERTURBATIONS = 256


class FittedModel(NamedTuple):
    """Gaussian process of a study.

    Attributes:
        space: search space.
        encoding: how decisions become points.
        trials: all that are modelled: of this study, then of earlier ones.
        data: their points and warped scores.
        theta: parameters of the process: see `model.fit`.
        others: data and parameters of the processes of the other rewards.
    """

    space: FlatSpace
    encoding: EncodingSpec
    trials: Sequence[Observation]
    data: model.TrainingData
    theta: np.ndarray
    others: Sequence[tuple[model.TrainingData, np.ndarray]] = ()

    @property
    def processes(self) -> list[tuple[model.TrainingData, np.ndarray]]:
        """Data and parameters of the process of each reward."""
        return [(self.data, self.theta), *self.others]

    @property
    def completed(self) -> list[Observation]:
        """The completed trials of this study."""
        return [trial for trial in self.trials if trial.state == 'completed' and is_own(trial)]

    def information(self) -> float:
        """Mean gain of the logarithm of the likelihood of a completed trial's score, in nats.

        The process predicts each trial from the others. The gain is relative to one normal
        distribution for all trials: 0 or less if decisions say nothing about scores. Of several
        rewards, the one that is predicted worst counts.
        """
        return min(self._gain(*process) for process in self.processes)

    def _gain(self, data: model.TrainingData, theta: np.ndarray) -> float:
        values = data.values[data.is_observed]
        if not values.any():  # All scores are equal.
            return 0.0
        errors, deviations = model.leave_one_out(theta, data, self.encoding.columns)
        gains = (values**2 - (errors / deviations) ** 2) / 2 - np.log(deviations)
        if data.studies is not None:  # The normal distribution of its own trials differs.
            own = values[data.studies[data.is_observed] == 0]
            deviation = max(float(own.std()), 1e-6)
            gains[: len(own)] += 0.5 + math.log(deviation) - own**2 / 2
        return float(np.mean(gains))


def fit(context: SuggestionContext, space: FlatSpace, rng: np.random.Generator) -> FittedModel:
    """Fits each reward's process to two or more completed trials, and to earlier studies."""
    studies = [each for each in compared(context, space) if each.correlation > 0]
    own = subsampled([trial for trial in context.observations if is_own(trial)])
    encoding = encoding_spec(space)
    data = _training_data(own, space, encoding)
    trials = own
    if studies:
        trials, data = _joined(own, data, studies, space, encoding)
    memos = context.memo.setdefault(_MEMO, [{} for _ in data])
    (process, *others) = [
        (each, model.fit(each, encoding.columns, rng, memo=memo))
        for each, memo in zip(data, memos, strict=True)
    ]
    return FittedModel(space, encoding, trials, *process, others)


def suggest_decisions(
    context: SuggestionContext,
    fitted: FittedModel,
    acquisition: Literal['log_ei', 'ucb_pe'],
    prior_strength: float,
    rng: np.random.Generator,
) -> Decisions | None:
    """Returns eligible decisions of high acquisition value, or None if none were found.

    `prior_strength` is the weight of known values after one trial.
    """
    space, encoding, trials, data, *_ = fitted
    completed = fitted.completed
    leaders = [trial.decisions for trial in best_trials(completed, _NUM_KNOWN)]
    if data.loadings is not None:
        leaders = [*leaders[: _NUM_KNOWN // 2], *_leaders_of_earlier(fitted)][:_NUM_KNOWN]
    num_running = sum(trial.state == 'pending' for trial in trials)
    kind = _kind(acquisition, num_running, rng)
    posteriors = [
        model.posterior(theta, each, encoding.columns) for each, theta in fitted.processes
    ]
    # A running trial is believed to reach its mean, so others look for more than that (kriging
    # believer: Ginsbourger et al. 2010).
    is_counted = data.is_observed_or_pending & np.array([is_own(trial) for trial in trials])
    points = data.points[is_counted]
    means = np.array([model.predict(posterior, points).mean for posterior in posteriors])
    prior = _prior(context, space, prior_strength / len(completed))
    region = _region(context.number, fitted, num_running, rng)
    # The other acquisition functions are no logarithms.
    slopes = log_cost_slopes(trials, data.points) * (kind == 'log_ei')
    inputs = AcquisitionContext(float(np.max(means[0])), *prior, *region, slopes)
    score = Acquisition(kind, encoding, posteriors[0], inputs)
    if len(posteriors) > 1:
        score = HypervolumeAcquisition(encoding, posteriors, inputs, boxes_beyond(means.T))
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
    best = best_trials([trial for trial in observations if trial.scores], count // 2)
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
) -> list[model.TrainingData]:
    """Data of the process of each reward."""
    states = np.array([trial.state for trial in trials])
    is_observed, is_infeasible = states == 'completed', states == 'infeasible'
    _, points, _ = encoder(encoding)(_rows([trial.decisions for trial in trials], space))
    found = []
    for scores in zip(*[trial.scores for trial in trials if trial.scores], strict=True):
        values = np.zeros(len(trials))
        values[is_observed] = warp(np.array(scores))
        masks = is_observed, ~is_infeasible, is_infeasible
        found.append(model.TrainingData(points, values, *masks))
    return found


def _joined(
    own: Sequence[Observation],
    data: Sequence[model.TrainingData],
    studies: Sequence[EarlierStudy],
    space: FlatSpace,
    encoding: EncodingSpec,
) -> tuple[list[Observation], list[model.TrainingData]]:
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
    found = []
    for reward, (first, *others) in enumerate(zip(*parts, strict=True)):
        scale, offset = _alignment(order, reward)
        aligned = np.where(first.is_observed, offset + scale * first.values, 0.0)
        every = [first._replace(values=aligned), *others]
        joined = [np.concatenate(each) for each in zip(*(part[:5] for part in every), strict=True)]
        found.append(model.TrainingData(*joined)._replace(loadings=loadings, studies=numbers))
    return [*own, *(trial for some in taken for trial in some)], found


def _leaders_of_earlier(fitted: FittedModel) -> list[Decisions]:
    """The best half of the trials of earlier studies, the best of each first."""
    assert fitted.data.studies is not None
    places = np.flatnonzero(fitted.data.studies)
    values = sum(data.values[places] for data, _ in fitted.processes)
    best_first = places[np.argsort(-values, kind='stable')]
    return [fitted.trials[i].decisions for i in best_first[:_NUM_KNOWN]]


def _alignment(studies: Sequence[EarlierStudy], reward: int) -> tuple[float, float]:
    """Scale and offset that bring this study's standardized scores to those of earlier studies.

    The first trials are the best of earlier studies, so they are not average ones. Their mean, and
    the part of their variance that earlier studies explain, are as predicted.
    """
    weights = np.array([each.correlation**2 for each in studies])
    predicted = weights @ np.stack([each.predicted[reward] for each in studies]) / weights.sum()
    share = float(weights.max())
    return math.sqrt(share * np.var(predicted) + 1 - share), math.sqrt(share) * predicted.mean()


def _rows(decisions: Sequence[Decisions], space: FlatSpace) -> np.ndarray:
    # Values of inactive features are ignored.
    return np.nan_to_num(np.stack([space.encode(each) for each in decisions]), nan=0.5)


def _prior(
    context: SuggestionContext, space: FlatSpace, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Row of the known values, and the weight of each feature; 0 without a known value."""
    if not context.prior:
        return np.full(len(space), 0.5), np.zeros(len(space))
    known = KnownRow(space, context.prior)
    support = known.support(context.observations, encoded_rows(context, space))
    return np.nan_to_num(known.values, nan=0.5), strength * support * known.penalties()


def trust_region(
    number: int,
    completed: Sequence[Observation],
    num_running: int,
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
    # Trials that began before the best one ended did not search around it. They are about as many
    # as run now.
    since = best.id + num_running
    return _region_around(number, best, since, completed, theta, space, encoding)


def _region(
    number: int, fitted: FittedModel, num_running: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Center and radius of the trust region; with several rewards, around one of the front."""
    space, encoding, _, _, theta, others = fitted
    completed = fitted.completed
    if not others:
        return trust_region(number, completed, num_running, theta, space, encoding)
    front = [completed[index] for index in pareto.front([trial.scores for trial in completed])]
    best = front[rng.integers(len(front))]
    since = max(trial.id for trial in front) + num_running
    theta = np.mean([each for _, each in fitted.processes], axis=0)
    return _region_around(number, best, since, completed, theta, space, encoding)


def _region_around(
    number: int,
    best: Observation,
    since: int,
    completed: Sequence[Observation],
    theta: np.ndarray,
    space: FlatSpace,
    encoding: EncodingSpec,
) -> tuple[np.ndarray, np.ndarray]:
    """Center and radius of the region around a trial, which shrinks with each trial `since`."""
    center = _rows([best.decisions], space)[0]
    radius = np.ones(len(space))
    if number % 2 == 0:
        stalled = sum(trial.id > since for trial in completed)
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
