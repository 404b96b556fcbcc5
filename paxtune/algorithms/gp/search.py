"""The search for one suggestion with a Gaussian process."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import numpy as np

from paxtune.algorithms.base import Observation, SuggestionContext
from paxtune.algorithms.encoding.sampling import mutate, num_changeable
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import Kind, Wish, promises
from paxtune.algorithms.gp.encoding import Box, box_of, points
from paxtune.algorithms.gp.optimizer import optimizer
from paxtune.algorithms.gp.warping import warp
from paxtune.search_space.decisions import Decisions

SIZES = (16, 32, 64, 128, 256, 512)
"""How many trials the compiled programs are made for. Between two of them, nothing is compiled."""

_NUM_KNOWN = 32
_NUM_MUTANTS = 256
_MOST_CHECKED = 40  # To tell whether decisions are feasible takes some hundredths of a second.
_PRIOR_WIDTH = 0.2  # Of the range: the standard deviation of where an optimum is believed to lie.


def best(
    context: SuggestionContext,
    space: FlatSpace,
    acquisition: Literal['log_ei', 'ucb_pe'],
    prior_strength: float,
) -> Decisions | None:
    """Decisions that are open and promise most; None where none were found.

    Args:
        request: with at least two completed trials.
        space: of the request.
        acquisition: what they promise.
        prior_strength: how much the request's prior counts after one trial.
    """
    rng = np.random.default_rng(context.rng().getrandbits(64))
    trials = _chosen(context.observations)
    completed = [trial for trial in trials if trial.state == 'completed']
    ranked = sorted(completed, key=lambda trial: trial.scores, reverse=True)
    leaders = [trial.decisions for trial in ranked[:_NUM_KNOWN]]
    kind = _kind(acquisition, sum(trial.state == 'pending' for trial in trials), rng)
    with _exactly():
        box = box_of(space)
        observed = _observations(trials, space, box)
        theta = model.fit(observed, box.columns, rng)
        posterior = model.posterior(theta, observed, box.columns)
        expected = np.asarray(model.mean(posterior, observed.points))
        threshold = np.max(expected[observed.has_value])
        prior = _prior(context.prior, space, prior_strength / len(completed))
        region = _region(context.number, completed, theta, space, box)
        wish = Wish(threshold, *prior, *region)
        known = np.resize(_rows(leaders, space), (_NUM_KNOWN, len(space)))
        key = jax.random.key(int(rng.integers(2**31)))
        rows, _ = optimizer(kind, box)(key, posterior, wish, known)
        found = _first_open(context, [space.decode(row) for row in np.asarray(rows)])
        if found is None and (near := _mutants(context, leaders)):
            padded = _padded(_rows(near, space), _NUM_MUTANTS)
            promised = np.asarray(promises(kind, box)(posterior, wish, padded))[: len(near)]
            order = np.argsort(-promised, kind='stable')
            found = _first_open(context, [near[i] for i in order])
    return found


@contextlib.contextmanager
def _exactly() -> Iterator[None]:
    """Double precision, on the CPU; outside of it all is as it was."""
    with jax.enable_x64(True), jax.default_device(_device()):
        yield


def _device() -> jax.Device:
    try:
        return jax.local_devices(backend='cpu')[0]
    except RuntimeError:  # $JAX_PLATFORMS leaves it out.
        return jax.local_devices()[0]


def _chosen(observations: Sequence[Observation]) -> list[Observation]:
    """All trials; of more than the model takes, those that run, the best and the latest."""
    if len(observations) <= SIZES[-1]:
        return list(observations)
    ranked = sorted((t for t in observations if t.scores), key=lambda t: t.scores, reverse=True)
    order = [t for t in observations if t.state == 'pending'] + ranked[: SIZES[-1] // 2]
    kept = set(list(dict.fromkeys(t.id for t in [*order, *reversed(observations)]))[: SIZES[-1]])
    return [trial for trial in observations if trial.id in kept]


def _kind(
    acquisition: Literal['log_ei', 'ucb_pe'], num_running: int, rng: np.random.Generator
) -> Kind:
    if acquisition == 'log_ei':
        return 'log_ei'
    # One trial always runs where suggestions are asked for ahead.
    explores = 0.75 * (1 - 1 / num_running) if num_running > 1 else 0.1
    return 'pe' if rng.random() < explores else 'ucb'


def _observations(trials: Sequence[Observation], space: FlatSpace, box: Box) -> model.Observations:
    size = next(size for size in SIZES if size >= len(trials))
    rows = _padded(_rows([trial.decisions for trial in trials], space), size)
    states = np.array([trial.state for trial in trials])
    has_value = _padded(states == 'completed', size)
    values = np.zeros(size)
    values[has_value] = warp(np.array([trial.scores[0] for trial in trials if trial.scores]))
    is_infeasible = _padded(states == 'infeasible', size)
    is_there = (np.arange(size) < len(trials)) & ~is_infeasible
    return model.Observations(points(box)(rows), values, has_value, is_there, is_infeasible)


def _rows(decisions: Sequence[Decisions], space: FlatSpace) -> np.ndarray:
    # What stands where nothing is open is not looked at.
    return np.nan_to_num(np.stack([space.encode(each) for each in decisions]), nan=0.5)


def _prior(prior: Decisions, space: FlatSpace, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """The row of what is believed to be good, and how much each share counts."""
    row, weight = np.full(len(space), 0.5), np.zeros(len(space))
    for i, feature in enumerate(space.features):
        if feature.id in prior:
            row[i] = space.share(feature.id, prior[feature.id])
            weight[i] = strength / (2 * _PRIOR_WIDTH**2)
    return row, weight


def _region(
    number: int, completed: Sequence[Observation], theta: np.ndarray, space: FlatSpace, box: Box
) -> tuple[np.ndarray, np.ndarray]:
    """Where to search: everywhere, and each second time around the best trial.

    In large boxes all is far from everything that was tried, and a model that knows little likes
    its corners best. The region is longer where scores change slowly, and shrinks while nothing
    better is found (as in Eriksson et al. 2019).

    Returns:
        Its middle [features], and how far it reaches to each side [features].
    """
    best = max(completed, key=lambda trial: trial.scores)
    center = _rows([best.decisions], space)[0]
    reach = np.ones(len(space))
    if number % 2 == 0:
        stalled = sum(trial.id > best.id for trial in completed)
        width = max(0.4 * 0.5 ** (stalled / max(4, len(space))), 0.01)
        lengths = np.exp(theta[2:])
        relative = lengths / np.exp(np.mean(np.log(lengths)))
        is_choice = np.array(box.counts) > 0
        reach = np.where(is_choice, 1.0, np.clip(width * relative, width / 4, 1.0))
    return center, reach


def _first_open(context: SuggestionContext, candidates: Sequence[Decisions]) -> Decisions | None:
    refused: list[Decisions] = []
    for decisions in candidates:
        if context.seen(decisions) or decisions in refused:
            continue
        if context.infeasibility_reason(decisions) is None:
            return decisions
        refused.append(decisions)
        if len(refused) == _MOST_CHECKED:
            break
    return None


def _mutants(context: SuggestionContext, parents: Sequence[Decisions]) -> list[Decisions]:
    """Experiments near good ones, which were feasible."""
    rng = context.rng()
    parents = [parent for parent in parents if num_changeable(context.spec, parent)]
    if not parents:
        return []
    made = [
        mutate(context.spec, parents[i % len(parents)], rng, step=(0.02, 0.1, None)[i % 3])
        for i in range(_NUM_MUTANTS)
    ]
    return [each for each in made if not context.seen(each)]


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])
