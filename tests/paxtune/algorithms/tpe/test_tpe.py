import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import TPE, KnownValue, Observation, RandomSearch, SuggestionContext
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import ask, check_algorithm, run, searched


@pytest.mark.slow
def test_conforms():
    check_algorithm(TPE(num_initial=2))


SPEC = pg.dna_spec(
    pg.Dict(rate=pg.floatv(1e-5, 1.0, 'log'), kind=pg.oneof(['a', 'b', 'c']), x=pg.floatv(0.0, 1.0))
)


def _plateau(decisions: Decisions) -> float:
    """Reward that is the same for most decisions, and has a peak: x does not matter."""
    off = abs(math.log10(decisions['rate'] / 1e-3))
    return 1.0 - off if off < 1 and decisions['kind'] == 1 else -1e9 * (decisions['rate'] > 0.1)


def _score(trial: Observation) -> float:
    return trial.scores[0]


def test_a_peak_in_a_plateau_is_searched_more_than_at_random():
    ours, theirs = (
        [
            max(t.scores[0] for t in searched(algorithm, SPEC, _plateau, 40, seed))
            for seed in range(8)
        ]
        for algorithm in (TPE(), RandomSearch())
    )
    assert sum(ours) / 8 > 0.85
    assert sum(theirs) / 8 < sum(ours) / 8 - 0.05


def test_scores_count_by_their_order_alone():
    history = run(RandomSearch(), SPEC, 12, infeasible=0.1)
    ranked = sorted(trial.scores for trial in history if trial.scores)
    stretched = [
        Observation(t.id, t.decisions, t.state, (math.exp(9.0 * ranked.index(t.scores)),))
        if t.scores
        else t
        for t in history
    ]
    assert ask(TPE(), SPEC, stretched).decisions == ask(TPE(), SPEC, history).decisions


def test_infeasible_regions_are_avoided():
    trials = searched(TPE(), SPEC, lambda d: None if d['rate'] > 1e-3 else -d['x'], 40)
    first, then = (
        [t.state for t in part].count('infeasible') for part in (trials[:20], trials[20:])
    )
    assert then < first


def test_running_trials_repel_suggestions():
    rng = random.Random(0)
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    done = [
        Observation(i, {'x': x}, 'completed', (-abs(x - 0.5),))
        for i, x in enumerate((rng.random() for _ in range(10)), start=1)
    ]
    running = [Observation(11 + i, {'x': 0.5 + i / 1000}, 'pending') for i in range(10)]

    def distance(history: list[Observation]) -> float:
        made = [
            TPE().suggest(SuggestionContext(spec, seed, 30, lambda: history)) for seed in range(20)
        ]
        return sum(abs(each.decisions['x'] - 0.505) for each in made)

    assert distance([*done, *running]) > 1.2 * distance(done)


def test_the_user_prior_attracts_suggestions_by_its_strength():
    history = run(RandomSearch(), SPEC, 8, infeasible=0.0)
    known = {'x': KnownValue(0.9), 'kind': KnownValue(2)}

    def near(strength: float) -> int:
        made = [
            TPE(prior_strength=strength).suggest(
                SuggestionContext(SPEC, seed, 9, lambda: history, prior=known)
            )
            for seed in range(20)
        ]
        return sum(m.decisions['kind'] == 2 and m.decisions['x'] > 0.6 for m in made)

    assert near(1000.0) > near(0.0) + 5


def test_a_suggestion_does_not_depend_on_the_one_before():
    history = run(RandomSearch(), SPEC, 30, infeasible=0.1)
    memo: dict[str, Any] = {}
    for count in (20, 25, 30, 10):
        read: Callable[[], list[Observation]] = functools.partial(list, history[:count])
        kept = SuggestionContext(SPEC, 0, count + 1, read, memo=memo)
        fresh = SuggestionContext(SPEC, 0, count + 1, read)
        assert TPE().suggest(kept) == TPE().suggest(fresh)


def test_a_suggestion_from_thousands_of_trials_is_near_the_best():
    rng = random.Random(0)
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    history = [
        Observation(i + 1, {'x': (x := rng.random())}, 'completed', (-abs(x - 0.3),))
        for i in range(5000)
    ]
    context = SuggestionContext(spec, 0, 5001, lambda: history)
    assert abs(TPE().suggest(context).decisions['x'] - 0.3) < 0.1
