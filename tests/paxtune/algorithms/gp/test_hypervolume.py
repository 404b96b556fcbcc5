import math

import numpy as np
import pyglove as pg
import pytest
import scipy.optimize

from paxtune.algorithms import TPE, GPBandit, Observation, Portfolio, RandomSearch
from paxtune.algorithms.encoding.points import encoder, encoding_spec
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.algorithms.gp import model
from paxtune.algorithms.gp.acquisition import AcquisitionContext, learnable_deviation
from paxtune.algorithms.gp.hypervolume import (
    Boxes,
    HypervolumeAcquisition,
    boxes_beyond,
    undominated_boxes,
)
from paxtune.algorithms.model_based import ModelBased
from paxtune.analysis.hypervolume import volumes
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import ask, check_algorithm, conditional, searched, small
from trainer.symbolic.errors import UserError


@pytest.mark.slow
@pytest.mark.parametrize('kind', [GPBandit, Portfolio, TPE], ids=lambda each: each.__name__)
def test_conforms_with_several_rewards(kind: type[ModelBased]) -> None:
    check_algorithm(kind(num_initial=2), (conditional, small), num_objectives=2)


def _front(rewards: int, count: int = 9) -> np.ndarray:
    points = np.abs(np.random.default_rng(0).normal(size=(count, rewards)))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize('rewards', [2, 3, 4])
def test_boxes_hold_the_scores_that_no_point_dominates_once(rewards: int) -> None:
    front = _front(rewards)
    boxes = undominated_boxes(front, np.zeros(rewards))
    volume = np.prod(np.minimum(boxes.high, 2.0) - boxes.low, axis=1).sum()
    assert 2.0**rewards - volume == pytest.approx(volumes(front, np.zeros(rewards))[-1])
    drawn = np.random.default_rng(1).random((500, rewards))
    inside = [((low <= each) & (each < high)).all(1) for each in drawn for low, high in [boxes]]
    is_dominated = [(front > each).all(axis=1).any() for each in drawn]
    assert [int(each.sum()) for each in inside] == [1 - int(each) for each in is_dominated]


def test_the_reference_is_a_little_below_the_worst_of_the_front() -> None:
    scores = np.array([[0.0, 3.0], [2.0, 1.0], [-5.0, -5.0], [2.0, 1.0]])
    assert boxes_beyond(scores).low.min(axis=0) == pytest.approx([-0.2, 0.8])
    assert boxes_beyond(np.array([[1.0, 1.0]])).low.min(axis=0) == pytest.approx([0.9, 0.9])


def test_large_fronts_of_many_rewards_keep_their_ends() -> None:
    front = _front(4, 300)
    boxes = boxes_beyond(front)
    assert len(boxes.low) < 2000
    for reward in range(4):
        assert front[:, reward].max() in boxes.low[:, reward]


_SPACE = FlatSpace(
    pg.dna_spec(
        pg.Dict(
            x=pg.floatv(0.0, 1.0),
            kind=pg.oneof(['a', 'b', pg.floatv(0.0, 1.0)]),
            y=pg.floatv(1e-3, 1.0, 'log'),
        )
    )
)


def _acquisition(rewards: int) -> tuple[HypervolumeAcquisition, list[model.Posterior], Boxes]:
    """Function over twelve trials, of which some run and some are infeasible."""
    encoding = encoding_spec(_SPACE)
    rng = np.random.default_rng(0)
    _, points, _ = encoder(encoding)(rng.random((12, 4)))
    numbers, posteriors = np.arange(12), []
    for _ in range(rewards):
        values = np.where(numbers < 8, rng.normal(size=12), 0)
        data = model.TrainingData(points, values, numbers < 8, numbers < 10, numbers >= 10)
        theta = np.array([0.2, -4.0, -0.5, 0.3, 0.1, -0.8]) + 0.3 * rng.normal(size=6)
        posteriors.append(model.posterior(theta, data, encoding.columns))
    boxes = boxes_beyond(rng.normal(size=(5, rewards)))
    prior, weight, center = rng.random((3, 4))
    slopes = rng.normal(size=len(encoding.columns))
    inputs = AcquisitionContext(0.0, prior, weight, center, np.full(4, 0.3), slopes)
    return HypervolumeAcquisition(encoding, posteriors, inputs, boxes), posteriors, boxes


@pytest.mark.parametrize('rewards', [2, 3])
def test_gradients_equal_finite_differences(rewards: int) -> None:
    score, *_ = _acquisition(rewards)
    rows = np.random.default_rng(1).random((20, 4))
    numbers = [0, 2, 3]
    for row, gradient in zip(rows, score.gradient(rows), strict=True):

        def value(at: np.ndarray, row: np.ndarray = row) -> float:
            moved = row.copy()
            moved[numbers] = at
            return float(score(moved[None])[1][0])

        expected = scipy.optimize.approx_fprime(row[numbers], value, 1e-7)
        np.testing.assert_allclose(gradient[numbers], expected, rtol=1e-4, atol=1e-4)
        assert gradient[1] == 0


def test_the_value_is_the_mean_of_the_volume_that_draws_add() -> None:
    encoding = encoding_spec(_SPACE)
    _, posteriors, boxes = _acquisition(2)
    none = np.zeros(4)
    inputs = AcquisitionContext(0.0, none, none, none, np.ones(4), np.zeros(6))
    rows = np.random.default_rng(2).random((6, 4))
    rows, found = HypervolumeAcquisition(encoding, posteriors, inputs, boxes)(rows)
    at = [model.predict(each, encoder(encoding)(rows)[1]) for each in posteriors]
    rng = np.random.default_rng(3)
    for place, value in enumerate(found):
        drawn = np.stack(
            [
                each.mean[place]
                + learnable_deviation(each.deviation, posterior.noise)[0][place]
                * rng.normal(size=200_000)
                for posterior, each in zip(posteriors, at, strict=True)
            ],
            axis=1,
        )
        covered = np.clip(np.minimum(drawn[:, None], boxes.high) - boxes.low, 0.0, None)
        improvement = float(np.prod(covered, axis=2).sum(axis=1).mean())
        feasible = (at[0].feasible[place] + at[1].feasible[place]) / 2
        assert value == pytest.approx(math.log(improvement) + feasible, abs=0.05)


SPEC = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(3)}))


def _two(decisions: Decisions) -> tuple[float, float]:
    """The front has x1 = x2 = 0.4, and every x0."""
    first, *others = decisions.values()
    off = sum((each - 0.4) ** 2 for each in others)
    return first - off, (1 - first) ** 2 - off


def test_the_front_of_two_rewards_beats_random_search() -> None:
    ours, theirs = (
        volumes(
            np.array([trial.scores for trial in searched(algorithm, SPEC, _two, 16)]),
            np.array([-0.5, -0.5]),
        )[-1]
        for algorithm in (GPBandit(num_initial=4), RandomSearch())
    )
    assert ours > theirs + 0.05


def test_suggestions_avoid_infeasible_regions_of_several_rewards() -> None:
    def score(decisions: Decisions) -> tuple[float, float] | None:
        return None if decisions['x0'] > 0.5 else _two(decisions)

    trials = searched(GPBandit(num_initial=8), SPEC, score, 24)
    assert sum(trial.state == 'infeasible' for trial in trials[14:]) <= 4


def test_rewards_of_any_size_give_the_same_suggestion() -> None:
    history = searched(RandomSearch(), SPEC, _two, 9)
    scaled = [
        Observation(t.id, t.decisions, t.state, (1e9 * t.scores[0], 1e-9 * t.scores[1] - 5.0))
        for t in history
    ]
    ones, others = (ask(GPBandit(), SPEC, each).decisions for each in (history, scaled))
    assert ones == pytest.approx(others, abs=1e-2)


def test_more_rewards_than_a_model_takes_are_refused() -> None:
    for rewards in (1, 2, 3, 4):
        GPBandit().check_space(SPEC, rewards)
    with pytest.raises(UserError, match=r'models at most 4 rewards; there are 5\. Use NSGA2'):
        GPBandit().check_space(SPEC, 5)
    with pytest.raises(UserError, match=r"acquisition='ucb_pe' needs one reward; there are 2"):
        GPBandit(acquisition='ucb_pe').check_space(SPEC, 2)


def test_a_misleading_earlier_study_of_several_rewards_is_ignored() -> None:
    history = searched(RandomSearch(), SPEC, _two, 12)
    others = searched(RandomSearch(), SPEC, _two, 12, seed=1)

    def beside(sign: float) -> Decisions:
        earlier = [
            Observation(
                trial.id - 12, trial.decisions, 'completed',
                (trial.scores[0], sign * trial.scores[1]), source='another',
            )
            for trial in others
        ]  # fmt: skip
        return ask(GPBandit(), SPEC, [*earlier, *history]).decisions

    alone = ask(GPBandit(), SPEC, history).decisions
    assert beside(-1.0) == alone != beside(1.0)
