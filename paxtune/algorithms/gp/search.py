"""One suggestion with a Gaussian process."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.sampling import changeable_points, mutate
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import Acquisition, AcquisitionContext, Kind
from paxtune.algorithms.gp.encoding import EncodingSpec, encoder, encoding_spec
from paxtune.algorithms.gp.novelty import RESOLUTION, WIDE, EarlierTrials
from paxtune.algorithms.gp.optimizer import maximize
from paxtune.algorithms.gp.warping import warp
from paxtune.search_space.decisions import Decisions

MAX_TRIALS = 512
"""Trials that are modelled at most."""

_NUM_KNOWN = 32
_NUM_PERTURBATIONS = 256
_MAX_INFEASIBLE = 40  # A check of feasibility takes some hundredths of a second.
_PRIOR_WIDTH = 0.2  # Standard deviation of the user prior, relative to the range.


def suggest_decisions(
    context: SuggestionContext,
    space: FlatSpace,
    acquisition: Literal['log_ei', 'ucb_pe'],
    prior_strength: float,
) -> Decisions | None:
    """Returns eligible decisions of high acquisition value, or None if none were found.

    The context has at least two completed trials. `prior_strength` is the weight of the user prior
    after one trial.
    """
    rng = np.random.default_rng(context.rng().getrandbits(64))
    trials = _subsample(context.observations)
    completed = [trial for trial in trials if trial.state == 'completed']
    ranked = sorted(completed, key=lambda trial: trial.scores, reverse=True)
    leaders = [trial.decisions for trial in ranked[:_NUM_KNOWN]]
    kind = _kind(acquisition, sum(trial.state == 'pending' for trial in trials), rng)
    encoding = encoding_spec(space)
    data = _training_data(trials, space, encoding)
    theta = model.fit(data, encoding.columns, rng)
    posterior = model.posterior(theta, data, encoding.columns)
    incumbent = np.max(model.predict(posterior, data.points[data.is_observed]).mean)
    prior = _prior(context.prior or {}, space, prior_strength / len(completed))
    region = _trust_region(context.number, completed, theta, space, encoding)
    inputs = AcquisitionContext(float(incumbent), *prior, *region)
    score = Acquisition(kind, encoding, posterior, inputs)
    rows, _ = maximize(score, np.resize(_rows(leaders, space), (_NUM_KNOWN, len(space))), rng)
    earlier = EarlierTrials(space, trials)
    found = _first_new(context, earlier, map(space.decode, rows), RESOLUTION, WIDE)
    if found is None and (near := _perturbations(context, leaders)):
        _, values = score(_rows(near, space))
        ordered = [near[i] for i in np.argsort(-values, kind='stable')]
        # Where nothing else is feasible, even a point close to an earlier one is tried.
        tries = (_first_new(context, earlier, ordered, d, d) for d in (WIDE, RESOLUTION, 0.0))
        found = next((each for each in tries if each is not None), None)
    return found


def _subsample(observations: Sequence[Observation]) -> list[Observation]:
    """All trials; of more than the model takes, the running, the best and the latest."""
    if len(observations) <= MAX_TRIALS:
        return list(observations)
    ranked = sorted((t for t in observations if t.scores), key=lambda t: t.scores, reverse=True)
    order = [t for t in observations if t.state == 'pending'] + ranked[: MAX_TRIALS // 2]
    kept = set(list(dict.fromkeys(t.id for t in [*order, *reversed(observations)]))[:MAX_TRIALS])
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


def _rows(decisions: Sequence[Decisions], space: FlatSpace) -> np.ndarray:
    # Values of inactive features are ignored.
    return np.nan_to_num(np.stack([space.encode(each) for each in decisions]), nan=0.5)


def _prior(prior: Decisions, space: FlatSpace, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Row of the user prior, and the weight of each feature."""
    row, weight = np.full(len(space), 0.5), np.zeros(len(space))
    for i, feature in enumerate(space.features):
        if feature.id in prior:
            row[i] = space.to_unit_value(feature.id, prior[feature.id])
            weight[i] = strength / (2 * _PRIOR_WIDTH**2)
    return row, weight


def _trust_region(
    number: int,
    completed: Sequence[Observation],
    theta: np.ndarray,
    space: FlatSpace,
    encoding: EncodingSpec,
) -> tuple[np.ndarray, np.ndarray]:
    """Center and radius: of the whole space, for every second trial of a region around the best.

    Points in high dimensions are far from all trials, and an uncertain model prefers the corners.
    The region is longer along features of large length scales. It shrinks while no better trial
    is found (TuRBO, Eriksson et al. 2019).
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
        radius = np.where(is_choice, 1.0, np.clip(width * relative, width / 4, 1.0))
    return center, radius


def _first_new(
    context: SuggestionContext,
    earlier: EarlierTrials,
    candidates: Iterable[Decisions],
    distance: float,
    wider: float,
) -> Decisions | None:
    """Finds the first feasible candidate that is farther than a distance from earlier trials.

    Where the model prefers a known point, as at a bound, its neighbours teach little more. After
    such a candidate, others must be farther than the wider distance.
    """
    refused: list[Decisions] = []
    for decisions in candidates:
        if earlier.has_close(decisions, distance):
            distance = wider
            continue
        if context.seen(decisions) or decisions in refused:
            continue
        if context.infeasibility_reason(decisions) is None:
            return decisions
        refused.append(decisions)
        if len(refused) == _MAX_INFEASIBLE:
            break
    return None


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
