"""First trials, and known values in the algorithms that use them."""

import functools
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    NSGA2,
    TPE,
    Algorithm,
    GPBandit,
    KnownValue,
    Observation,
    Portfolio,
    QuasiRandom,
    RandomSearch,
    RegularizedEvolution,
    SuggestionContext,
)
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import Why, conditional, integers, log_range, run, several
from trainer.symbolic.ranges import intv

Known = Mapping[str, KnownValue]

USES_PRIOR = (
    TPE(),
    GPBandit(),
    Portfolio(),
    RegularizedEvolution(9, 2, first='quasi_random'),
    NSGA2(population_size=9),
)
CUBE = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(1e-6, 1.0, 'log') for i in range(4)}))
NEAR: Known = {f'x{i}': KnownValue(1e-1, 0.05) for i in range(4)}  # Unit value 5 / 6.
WRONG: Known = {f'x{i}': KnownValue(1e-5, 0.05) for i in range(4)}  # Unit value 1 / 6.


def hedged(
    algorithm: Algorithm,
    spec: pg.DNASpec,
    prior: Known,
    score: Any,
    count: int,
    seed: int = 0,
    before: Sequence[Observation] = (),
    infeasible: Why = lambda decisions: None,
) -> list[Decisions]:
    """The decisions of a search with known values; a score of None is infeasible."""
    history = list(before)
    for number in range(len(before) + 1, count + 1):
        read: Any = functools.partial(list, history)
        context = SuggestionContext(spec, seed, number, read, infeasible, prior)
        decisions = algorithm.suggest(context).decisions
        found = score(decisions)
        scores = found if isinstance(found, tuple) else () if found is None else (found,)
        state: Any = 'completed' if scores else 'infeasible'
        history.append(Observation(number, decisions, state, scores))
    return [trial.decisions for trial in history]


def place(decisions: Decisions) -> list[float]:
    """Unit values of a point of the cube."""
    return [1 + math.log10(value) / 6 for value in decisions.values()]


def away(decisions: Decisions, unit: float) -> float:
    """Largest distance of a point of the cube from a point of its diagonal."""
    return max(abs(each - unit) for each in place(decisions))


def narrow(decisions: Decisions) -> float:
    """A score with a narrow optimum near `NEAR`, and a plateau elsewhere."""
    return math.exp(-0.5 * sum((each - 0.82) ** 2 for each in place(decisions)) / 0.05**2)


def slope(decisions: Decisions) -> float:
    """A score with the optimum of `NEAR`, and a slope towards it everywhere."""
    return -sum(abs(each - 5 / 6) for each in place(decisions))


def level(decisions: Decisions) -> float:
    """The same score everywhere, which says nothing of known values."""
    return 0.0


def cross(decisions: Decisions) -> tuple[float, float]:
    """Two scores."""
    return slope(decisions), -place(decisions)[0]


@pytest.mark.parametrize('algorithm', USES_PRIOR, ids=lambda each: type(each).__name__)
def test_first_trials_alternate_between_known_values_and_the_middle(algorithm: Algorithm) -> None:
    assert algorithm.uses_prior
    score = cross if isinstance(algorithm, NSGA2) else level
    known, middle, *others = hedged(algorithm, CUBE, NEAR, score, 5)
    assert known == {f'x{i}': 1e-1 for i in range(4)}
    assert middle == {f'x{i}': pytest.approx(1e-3) for i in range(4)}
    assert [away(each, 5 / 6) < 0.2 for each in others] == [True, False, True]
    assert len({each['x0'] for each in others}) == 3


def test_first_trials_leave_known_values_that_lose() -> None:
    found = hedged(TPE(num_initial=12), CUBE, WRONG, slope, 12)
    near = [i for i, each in enumerate(found, 1) if away(each, 1 / 6) < 0.2]
    assert near in ([1, 3], [1, 3, 5])


def test_first_trials_stay_at_known_values_that_surely_win() -> None:
    found = hedged(TPE(num_initial=12), CUBE, NEAR, narrow, 12)
    near = [away(each, 5 / 6) < 0.25 for each in found]
    assert near[:2] == [True, False]
    assert all(near[8:])


def test_failed_runs_do_not_end_the_hedge_by_chance() -> None:
    more = 0
    for seed in range(20):

        def chance(decisions: Decisions, seed: int = seed) -> float:
            return zlib.crc32(f'{seed}/{decisions}'.encode())

        found = hedged(TPE(num_initial=9), CUBE, WRONG, chance, 9, seed)
        more += sum(away(each, 1 / 6) < 0.25 for each in found) > 5
    assert more <= 2


def test_known_values_come_first_after_trials_of_a_user() -> None:
    given = [Observation(i, {f'x{k}': 1e-4 * i for k in range(4)}, 'pending') for i in (1, 2, 3)]
    earlier = [Observation(0, {f'x{k}': 1e-1 for k in range(4)}, 'completed', (1.0,))]
    for before in (given[:1], given):
        read: Any = functools.partial(list, [*earlier, *before])
        context = SuggestionContext(CUBE, 0, len(before) + 1, read, prior=NEAR)
        decisions = Portfolio().suggest(context).decisions
        assert decisions == {f'x{i}': 1e-1 for i in range(4)}


def test_infeasible_known_values_are_not_suggested() -> None:
    def why(decisions: Decisions) -> str | None:
        return 'too large' if away(decisions, 5 / 6) < 0.02 else None

    found = hedged(TPE(), CUBE, NEAR, slope, 5, infeasible=why)
    assert all(why(each) is None for each in found)
    assert away(found[0], 5 / 6) < 0.2


KINDS = pg.dna_spec(
    pg.Dict(
        kind=pg.oneof(['a', 'b', pg.Dict(rate=pg.floatv(0.0, 1.0)), 'd']),
        batch=pg.oneof([16, 32, 64, 128, 256]),
        depth=intv(1, 100),
        some=pg.manyof(2, ['p', 'q', 'r', 's']),
    )
)


def test_each_kind_of_decision_is_drawn_by_its_known_value() -> None:
    prior = {
        'kind': KnownValue(2, 0.25),
        'kind[=2/4].rate': KnownValue(0.9, 0.05),
        'batch': KnownValue(3, 0.1),
        'depth': KnownValue(20, 0.05),
        'some[0]': KnownValue(3, 0.25),
        'some[1]': KnownValue(3, 0.25),
    }
    drawn = [hedged(TPE(), KINDS, prior, lambda each: 1.0, 3, seed)[2] for seed in range(60)]
    kinds = Counter(each['kind'] for each in drawn)
    assert 35 < kinds[2] < 55
    assert len(kinds) == 4
    rates = [each['kind[=2/4].rate'] for each in drawn if each['kind'] == 2]
    assert sum(rates) / len(rates) == pytest.approx(0.88, abs=0.04)
    assert Counter(each['batch'] for each in drawn).most_common(1)[0][0] == 3
    depths = [each['depth'] for each in drawn]
    assert all(isinstance(depth, int) and abs(depth - 20) < 25 for depth in depths)
    assert sum(3 in (each['some[0]'], each['some[1]']) for each in drawn) > 45
    assert all(each['some[0]'] != each['some[1]'] for each in drawn)


def test_a_decision_without_a_known_value_keeps_its_design() -> None:
    without = hedged(TPE(), CUBE, {}, slope, 5)
    found = hedged(TPE(), CUBE, {'x0': KnownValue(1e-1)}, slope, 5)
    assert found[0] == {'x0': 1e-1, **{f'x{i}': pytest.approx(1e-3) for i in (1, 2, 3)}}
    for i in (2, 3, 4):
        assert all(found[i][name] == without[i][name] for name in ('x1', 'x2', 'x3'))
    assert found[3] == without[3]


@pytest.mark.parametrize('algorithm', [TPE(), GPBandit()], ids=['tpe', 'gp'])
def test_right_known_values_find_a_narrow_optimum_sooner(algorithm: Algorithm) -> None:
    best = [
        max(map(narrow, hedged(algorithm, CUBE, prior, narrow, 14, seed=1))) for prior in (NEAR, {})
    ]
    assert best[0] > 0.5 > 2 * best[1]


@pytest.mark.parametrize('algorithm', [TPE(), GPBandit()], ids=['tpe', 'gp'])
def test_wrong_known_values_are_abandoned(algorithm: Algorithm) -> None:
    found = hedged(algorithm, CUBE, WRONG, slope, 20)
    assert sum(away(each, 1 / 6) < 0.25 for each in found[8:]) == 0
    assert max(map(slope, found)) > max(map(slope, found[:4]))


@pytest.mark.parametrize('algorithm', USES_PRIOR[:2], ids=['tpe', 'gp'])
def test_the_same_seed_suggests_the_same(algorithm: Algorithm) -> None:
    first, again, other = (hedged(algorithm, CUBE, NEAR, slope, 9, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first[2:] != other[2:]


def _digest(algorithm: Algorithm, make: Any) -> int:
    count = 2 if isinstance(algorithm, NSGA2) else 1
    trials = run(algorithm, pg.dna_spec(make()), 14, infeasible=0.1, num_objectives=count)
    rows = [[(id_, f'{value:.9g}') for id_, value in trial.decisions.items()] for trial in trials]
    return zlib.crc32(repr(rows).encode())


GOLDEN: dict[str, tuple[Algorithm, list[int]]] = {
    'quasi_random': (QuasiRandom(), [1421706510, 893025434, 1243193890, 4216009675]),
    'tpe': (TPE(), [707049255, 1839457848, 3438666489, 3800880272]),
    'evolution': (
        RegularizedEvolution(5, 2, first='quasi_random'),
        [2857506831, 1855094779, 1723491942, 435835355],
    ),
    'nsga2': (NSGA2(population_size=5), [38756194, 24144921, 468979571, 939644255]),
}
"""The digests of searches without known values, as they were before there were any."""


@pytest.mark.parametrize('name', GOLDEN)
def test_searches_without_known_values_stay_as_they_were(name: str) -> None:
    algorithm, digests = GOLDEN[name]
    assert [_digest(algorithm, make) for make in (log_range, conditional, several, integers)] == (
        digests
    )


def test_a_process_without_known_values_suggests_as_it_did() -> None:
    history = run(RandomSearch(), CUBE, 10, infeasible=0.0)
    made = GPBandit().suggest(SuggestionContext(CUBE, 0, 11, lambda: history)).decisions
    assert list(made.values()) == pytest.approx(
        [0.00054258, 2.34597e-05, 0.000317725, 0.000252256], rel=1e-3
    )
