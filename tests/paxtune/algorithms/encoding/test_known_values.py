import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import KnownValue, Observation
from paxtune.algorithms.encoding.known_values import KnownRow, truncated
from paxtune.algorithms.encoding.unit_cube import FlatSpace
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.ranges import intv

SPACE = FlatSpace(
    pg.dna_spec(
        pg.Dict(
            x=pg.floatv(0.0, 1.0),
            y=pg.floatv(0.0, 1.0),
            kind=pg.oneof(['a', pg.Dict(rate=pg.floatv(0.0, 1.0)), 'c']),
        )
    )
)
PRIOR = {'x': KnownValue(0.9, 0.05), 'kind': KnownValue(1, 0.1)}
NEAR: Decisions = {'x': 0.88, 'y': 0.2, 'kind': 1, 'kind[=1/3].rate': 0.4}
AWAY: Decisions = {'x': 0.45, 'y': 0.2, 'kind': 0}


Trial: TypeAlias = tuple[Decisions, Sequence[float] | None]
"""The decisions and the scores of a trial; None for an infeasible one."""


def observed(trials: Sequence[Trial]) -> tuple[list[Observation], np.ndarray]:
    """The trials, and their rows."""
    observations = [
        Observation(
            i + 1, decisions, 'infeasible' if scores is None else 'completed', tuple(scores or ())
        )
        for i, (decisions, scores) in enumerate(trials)
    ]
    rows = np.array([SPACE.encode(trial.decisions) for trial in observations]).reshape(-1, 4)
    return observations, rows


def trusted(*trials: Trial) -> float:
    """The trust after trials with these scores."""
    return KnownRow(SPACE, PRIOR).trust(*observed(trials))


def test_a_loss_lowers_the_trust_and_a_win_raises_it() -> None:
    begun = trusted()
    assert trusted((NEAR, [1.0]), (AWAY, [0.0])) > begun > trusted((NEAR, [0.0]), (AWAY, [1.0]))


def test_trust_falls_with_each_trial_away_that_wins() -> None:
    lost = [(NEAR, [0.0]), (NEAR, [0.0])]
    found = [trusted(*lost, *[(AWAY, [1.0 + i]) for i in range(count)]) for count in (0, 2, 6)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.2


def test_two_wins_over_one_trial_are_not_certain() -> None:
    assert trusted((NEAR, [2.0]), (AWAY, [0.0]), (NEAR, [1.0])) < 0.95
    others = [(NEAR, [3.0]), (AWAY, [-1.0])]
    assert trusted((NEAR, [2.0]), (AWAY, [0.0]), (NEAR, [1.0]), *others) > 0.95


def test_known_values_that_lose_have_no_weight_in_a_model() -> None:
    row = KnownRow(SPACE, PRIOR)
    lost = [(NEAR, [0.0]), (AWAY, [1.0])]
    assert 0 < row.support(*observed([])) < row.support(*observed([(NEAR, [1.0]), (AWAY, [0.0])]))
    assert row.support(*observed([*lost, (NEAR, [0.0]), (AWAY, [2.0])])) == 0


def test_the_number_of_trials_is_no_evidence() -> None:
    begun = trusted()
    for trials in ([NEAR], [AWAY]):
        assert trusted(*[(each, [float(i)]) for each in trials for i in range(40)]) == (
            pytest.approx(begun, abs=1e-6)
        )


def test_equal_scores_of_both_sides_speak_for_no_difference() -> None:
    tied = [(each, [1.0]) for each in (NEAR, AWAY) * 4]
    assert trusted(*tied) == pytest.approx(trusted(*tied[::-1]))
    assert 0.65 < trusted(*tied) < trusted()
    assert trusted(*tied * 4) < 0.5
    assert trusted(*tied[::2] * 4) == pytest.approx(trusted())


def test_infeasible_trials_are_the_worst() -> None:
    won = [(AWAY, [1.0]), (AWAY, [0.5])]
    assert trusted(*won, (NEAR, None)) < trusted(*won)
    assert trusted((NEAR, None), (NEAR, None)) == trusted()


def test_several_scores_count_by_their_fronts() -> None:
    worse, better = [0.0, 0.0], [1.0, 2.0]
    assert trusted((NEAR, better), (AWAY, worse)) > trusted((NEAR, worse), (AWAY, better))


def test_trust_ignores_decisions_without_a_known_value_and_inactive_ones() -> None:
    other = {**NEAR, 'y': 0.9, 'kind[=1/3].rate': 0.1}
    for scores in ([1.0], [0.0]):
        assert trusted((NEAR, scores), (AWAY, [0.5])) == trusted((other, scores), (AWAY, [0.5]))


@pytest.mark.parametrize('center', [0.0, 0.03, 0.5, 1.0])
def test_quantiles_stay_in_the_range(center: float) -> None:
    quantile = truncated(center, 0.01)
    found = [quantile(share) for share in (0.0, 1e-9, 0.25, 0.5, 0.75, 1.0)]
    assert found == sorted(found)
    assert found[0] >= 0.0
    assert found[-1] <= 1.0
    assert found[3] == pytest.approx(center, abs=0.01)


def test_few_draws_are_closer_to_known_values_than_good_values_are() -> None:
    space = FlatSpace(
        pg.dna_spec(
            pg.Dict(
                {f'x{i}': pg.floatv(0.0, 1.0) for i in range(6)},
                depth=intv(1, 9),
                batch=pg.oneof([16, 32, 64, 128]),
            )
        )
    )
    known = KnownRow(space, {f.id: KnownValue(1 if f.order else 0.5, 0.1) for f in space.features})
    wide, few, many = (known.quantiles(count) for count in (None, 9, 10_000))
    spread = {id_: wide[id_](0.84) - wide[id_](0.5) for id_ in wide}
    closer = {id_: (few[id_](0.84) - few[id_](0.5)) / spread[id_] for id_ in few}
    assert closer == {
        id_: pytest.approx(math.sqrt(math.log(9) / 8) if id_[0] == 'x' else 1.0, abs=0.01)
        for id_ in wide
    }
    assert all(many[id_](0.84) == wide[id_](0.84) for id_ in wide)


def test_penalties_are_those_of_the_density() -> None:
    known = KnownRow(SPACE, PRIOR)
    assert known.penalties() == pytest.approx([0.5 / 0.05**2, 0.0, 4 * np.log(0.9 / 0.05), 0.0])
    uniform = KnownRow(SPACE, {'kind': KnownValue(1, 2 / 3)})
    assert uniform.penalties() == pytest.approx(0.0)


def test_a_tiny_deviation_is_no_single_point() -> None:
    known = KnownRow(SPACE, {'x': KnownValue(0.5, 0.0), 'kind': KnownValue(1, 0.0)})
    quantiles = known.quantiles()
    assert 0.505 < quantiles['x'](0.95) < 0.55
    assert quantiles['kind'](0.5) == 0.5
    assert quantiles['kind'](0.999) != 0.5
