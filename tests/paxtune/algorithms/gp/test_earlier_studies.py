import random
from collections.abc import Callable, Sequence

import numpy as np
import pyglove as pg
import pytest

from paxtune.algorithms import TPE, Algorithm, GPBandit, Observation, Portfolio, SuggestionContext
from paxtune.algorithms.encoding.earlier import correlation, spread
from paxtune.search_space.decisions import Decisions

SPEC = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(3)}))


def _merit(decisions: Decisions) -> float:
    return -sum((x - 0.3) ** 2 for x in decisions.values())


def _drawn(
    count: int, source: str, merit: Callable[[Decisions], float] = _merit, last: int = 0
) -> list[Observation]:
    rng = random.Random(source)
    drawn = [{f'x{i}': rng.random() for i in range(3)} for _ in range(count)]
    return [
        Observation(last - count + i + 1, each, 'completed', (merit(each),), source=source)
        for i, each in enumerate(drawn)
    ]


def _suggested(algorithm: Algorithm, trials: Sequence[Observation]) -> Decisions:
    number = sum(trial.id > 0 for trial in trials) + 1
    return algorithm.suggest(SuggestionContext(SPEC, 0, number, lambda: trials)).decisions


def _searched(count: int, earlier: Sequence[Observation]) -> list[Observation]:
    trials = list(earlier)
    for number in range(1, count + 1):
        decisions = _suggested(Portfolio(), trials)
        trials.append(Observation(number, decisions, 'completed', (_merit(decisions),)))
    return trials[len(earlier) :]


def _first_scores(earlier: Sequence[Observation]) -> float:
    return max(trial.scores[0] for trial in _searched(8, earlier))


def test_a_correlation_grows_with_trials_in_the_predicted_order() -> None:
    scores = np.arange(20.0)
    found = [correlation(scores[:count], 3 * scores[:count]) for count in (0, 1, 4, 8, 20)]
    assert found == sorted(found)
    assert 0.6 < found[0] < found[-1] < 1.0


def test_a_correlation_that_may_be_chance_counts_as_none() -> None:
    rng = np.random.default_rng(0)
    found = [correlation(rng.random(10), rng.random(10)) for _ in range(200)]
    assert np.mean(np.array(found) == 0) > 0.75
    assert correlation(np.arange(3.0), -np.arange(3.0)) == 0.0


def test_equal_scores_say_nothing_of_an_earlier_study() -> None:
    assert correlation(np.zeros(9), np.arange(9.0)) == correlation(np.zeros(0), np.zeros(0))


def test_every_second_of_the_first_trials_is_the_best_new_one_of_an_earlier_study_in_turn() -> None:
    one, two = _drawn(20, 'one', last=-20), _drawn(20, 'two')
    best = [sorted(each, key=lambda trial: trial.scores, reverse=True) for each in (one, two)]
    trials = [*one, *two]
    for number in range(1, 5):
        decisions = _suggested(Portfolio(), trials)
        trials.append(Observation(number, decisions, 'completed', (_merit(decisions),)))
    first, second, third, fourth = (trial.decisions for trial in trials[-4:])
    assert first == best[0][0].decisions
    assert third == best[1][0].decisions
    assert second not in [trial.decisions for trial in (*one, *two)]
    assert fourth not in [trial.decisions for trial in (*one, *two)]


@pytest.mark.parametrize('algorithm', [GPBandit(), TPE(), Portfolio()], ids=str)
def test_a_misleading_study_is_dropped(algorithm: Algorithm) -> None:
    own = _drawn(10, '', last=10)
    wrong = _drawn(20, 'wrong', lambda decisions: -_merit(decisions))
    assert _suggested(algorithm, [*wrong, *own]) == _suggested(algorithm, own)
    right = _drawn(20, 'right')
    assert _suggested(algorithm, [*right, *own]) != _suggested(algorithm, own)


@pytest.mark.parametrize('algorithm', [GPBandit(), TPE()], ids=str)
def test_the_scale_of_an_earlier_studys_scores_does_not_matter(algorithm: Algorithm) -> None:
    own = _drawn(10, '', last=10)
    found = []
    for study in (_drawn(20, 'it'), _drawn(20, 'it', lambda decisions: 2**20 * _merit(decisions))):
        found.append(_suggested(algorithm, [*study, *own]))
    assert found[0] == found[1]


def test_an_earlier_study_of_a_similar_task_helps() -> None:
    similar = _drawn(40, 'similar', lambda d: 1e3 - sum((x - 0.35) ** 4 for x in d.values()))
    assert _first_scores(similar) > _first_scores([])


def test_a_large_study_is_thinned_to_its_best_and_to_others_evenly() -> None:
    trials = _drawn(100, 'large')
    ranked = sorted(trials, key=lambda trial: trial.scores, reverse=True)
    kept = spread(trials, 20)
    assert kept[:10] == ranked[:10]
    assert len({trial.id for trial in kept}) == 20
    assert kept[-1] == ranked[-1]
    assert spread(trials[:5], 20) == sorted(trials[:5], key=lambda t: t.scores, reverse=True)
