"""The scheduler that becomes careful where the ranks at its rungs mislead."""

import dataclasses
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import Adaptive, Pause, Promote, PromotingAsha, TrialCurve
from paxtune.schedulers.adaptive import is_probe, links
from paxtune.schedulers.base import State
from paxtune.schedulers.correlation import expected_correlation, link
from paxtune.schedulers.survivors import share_with_best, survivor_shares
from paxtune.search_space.decisions import Decisions
from tests.conformance.scheduler_suite import check_study
from tests.conformance.toy_study import SPEC, Toy, crossing, ran, steady

LOSS = MetricReward(metric='loss', goal='minimize')
CONTEXT = SuggestionContext(SPEC, 0, 99, list)
STEPS = range(10, 110, 10)


def trial(
    id: int, *losses: float, state: State = 'running', pauses: tuple[int, ...] = ()
) -> TrialCurve:
    """A trial that is measured every 10 steps."""
    measured = [Measurement(x, {}, (y,)) for x, y in zip(STEPS, losses, strict=False)]
    return TrialCurve(id, state, measured, [float(m.step) for m in measured], 100.0, pauses)


def probes(order: int) -> list[TrialCurve]:
    """Six probes whose early losses order their ends well (1), or in reverse (-1)."""
    numbers = [number for number in range(1, 400) if is_probe(number)][:6]
    return [
        trial(number, *[float(order * i)] * 9, float(i), state='completed')
        for i, number in enumerate(numbers)
    ]


def noise(decisions: Decisions, step: int) -> float:
    """A curve whose values are independent."""
    return random.Random(f'{decisions["x"]}, {step}').random()


def compute(trials: Sequence[Toy]) -> int:
    return sum(each.step for each in trials)


@pytest.mark.parametrize(
    'scheduler',
    [
        Adaptive(min_resource=10),
        Adaptive(min_resource=1e7, unit='flops', reduction_factor=2),
        Adaptive(min_resource=10, grace_period=0.3),
        Adaptive(min_resource=5, max_resource=50, unit='seconds'),
        Adaptive(min_resource=2, reduction_factor=2),
    ],
)
@pytest.mark.fast(3)
def test_adaptive_conforms(scheduler: Adaptive) -> None:
    check_study(scheduler)


@given(seed=st.integers(0, 1000), number=st.integers(1, 200))
def test_a_probe_goes_on_by_its_number_alone(seed: int, number: int) -> None:
    rng, scheduler = random.Random(seed), Adaptive(min_resource=10)
    others = [trial(id, rng.random(), state='paused', pauses=(10,)) for id in range(201, 220)]
    paused = scheduler.decide(trial(number, 1e9), others, LOSS)
    assert (paused is None) == is_probe(number)
    best = scheduler.decide(trial(number, -1e9), others, LOSS)
    assert best is None


def test_one_trial_in_32_is_a_probe() -> None:
    assert sum(map(is_probe, range(1, 32 * 10 + 1))) == 10


def test_reliable_rungs_let_the_best_third_go_on() -> None:
    trusts = Adaptive(min_resource=10).trusts(probes(1))
    assert [each.share for each in trusts] == pytest.approx([1 / 3] * 3, abs=0.05)
    assert [each.ended for each in trusts] == [6, 6, 6]


def test_misleading_rungs_let_all_trials_go_on() -> None:
    scheduler = Adaptive(min_resource=10)
    trusts = scheduler.trusts(probes(-1))
    assert [each.share for each in trusts] == [1.0, 1.0, 1.0]
    assert all(each.ended == 6 and each.correlation < 0 for each in trusts)
    assert scheduler.decide(trial(1, 1e9), probes(-1), LOSS) is None


def test_paused_trials_go_on_when_rungs_turn_out_to_mislead() -> None:
    scheduler = Adaptive(min_resource=10)
    waiting = [trial(id, 50.0 + id, state='paused', pauses=(10,)) for id in range(1, 7)]
    assert scheduler.next_action([*waiting, *probes(1)], LOSS, CONTEXT, True) is None
    answer = scheduler.next_action([*waiting, *probes(-1)], LOSS, CONTEXT, True)
    assert isinstance(answer, Promote) and answer.trial == 1
    assert answer.reason == (
        'number 7 of 12 trials by predicted end at the rung of 10 steps, whose rewards order the '
        'ends of 6 trials with a rank correlation of about -0.07: 100% go on'
    )


def test_a_pause_says_what_the_rung_is_worth() -> None:
    found = Adaptive(min_resource=10).decide(trial(1, 50.0), probes(1), LOSS)
    assert found == Pause(
        'reward 50 at step 10 is number 7 of 7 trials by predicted end at the rung of 10 steps, '
        'whose rewards order the ends of 6 trials with a rank correlation of about 0.92: 33% go on'
    )


def test_a_trial_that_its_decisions_delay_is_not_paused_for_it() -> None:
    # A point is how long the warm-up is: it costs up to one early, and nothing in the end.
    def delayed(number: int, loss: float, warmup: float, state: State = 'completed') -> TrialCurve:
        losses = [loss + warmup, *[loss] * 9]
        made = trial(number, *losses[: 10 if state == 'completed' else 1], state=state)
        return dataclasses.replace(made, point=[warmup])

    known = [delayed(i, i % 8 / 4, warmup=i % 3 / 2) for i in range(1, 16)]
    known += [delayed(i, 0.5 + i % 5 / 4, warmup=0.0, state='paused') for i in range(21, 41)]
    scheduler, late = Adaptive(min_resource=10), delayed(19, 0.2, warmup=1.0, state='running')
    assert scheduler.decide(late, known, LOSS) is None
    unknown = [dataclasses.replace(each, point=()) for each in [late, *known]]
    assert isinstance(scheduler.decide(unknown[0], unknown[1:], LOSS), Pause)


def test_the_end_of_a_study_keeps_the_likely_best_of_each_rung() -> None:
    scheduler = Adaptive(min_resource=10)
    two = [trial(id, float(id), state='paused', pauses=(10,)) for id in (1, 2)]
    assert scheduler.next_action(two, LOSS, CONTEXT, True) is None
    answer = scheduler.next_action(two, LOSS, CONTEXT, False)
    assert isinstance(answer, Promote) and answer.trial == 1


def test_it_saves_like_promotion_where_rungs_are_reliable() -> None:
    own = ran(Adaptive(min_resource=10), LOSS, num_trials=100, value=steady)
    other = ran(PromotingAsha(min_resource=10), LOSS, num_trials=100, value=steady)
    # 3 trials in 100 are trained to their ends besides.
    assert compute(own) < 1.2 * compute(other)
    assert compute(own) < 0.4 * 100 * 100


@pytest.mark.parametrize('value', [noise, crossing])
def test_it_trains_nearly_all_to_the_end_where_rungs_mislead(value) -> None:
    trials = ran(Adaptive(min_resource=10), LOSS, num_trials=200, value=value)
    assert compute(trials) > 0.75 * 200 * 100


def test_the_report_has_a_line_for_each_rung() -> None:
    assert Adaptive(min_resource=30).findings(probes(1)) == [
        '33% of the trials go on from the rung of 30 steps, whose rewards order the ends of '
        '6 trials with a rank correlation of about 0.99',
        '33% of the trials go on from the rung of 90 steps, whose rewards order the ends of '
        '6 trials with a rank correlation of about 1.00',
    ]
    assert PromotingAsha(min_resource=30).findings(probes(1)) == []


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=6),
    st.sampled_from([2, 3, 4]),
)
def test_shares_lie_between_the_least_and_all(correlations: list[float], factor: int) -> None:
    levels = [0.9 ** (len(correlations) - i) for i in range(len(correlations))]
    shares = survivor_shares(sorted(correlations), levels, factor)
    assert all(1 / factor - 1e-6 <= share <= 1.0 + 1e-9 for share in shares)


def test_more_trials_survive_a_rung_of_lower_correlation() -> None:
    shares = [survivor_shares([each], [0.25], 3)[0] for each in (0.95, 0.5, 0.3, 0.15, 0.0)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 3) and shares[-1] == 1.0


def test_fewer_trials_contain_the_best_at_a_rung_of_higher_correlation() -> None:
    shares = [share_with_best(each, 64) for each in (1.0, 0.9, 0.5, 0.2, 0.0, -0.5)]
    assert shares == sorted(shares)
    assert shares[0] < 0.1 and shares[-1] == pytest.approx(0.9)


def drawn(count: int, *correlations: float) -> list[np.ndarray]:
    """Scores at the rungs and the end, a Markov chain with the correlations of its links."""
    rng = np.random.default_rng(0)
    found = [rng.normal(size=count)]
    for each in correlations:
        found.append(each * found[-1] + (1.0 - each**2) ** 0.5 * rng.normal(size=count))
    return found


def of_best(early: np.ndarray, late: np.ndarray, count: int) -> np.ndarray:
    """The later scores of the best trials; NaN for the others, which did not go on."""
    return np.where(early <= np.sort(early)[count - 1], late, math.nan)


@pytest.mark.parametrize('correlation', [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize('share', [1.0, 1 / 3])
def test_correlations_are_found_from_all_trials_and_from_the_best_at_the_rung(
    correlation: float, share: float
) -> None:
    early, late = drawn(900, correlation)
    found = expected_correlation([link(early, of_best(early, late, round(share * 900)))], 0.3)
    assert found == pytest.approx(correlation, abs=0.15)


def test_a_rung_that_orders_nothing_is_found_out_though_the_next_one_selects() -> None:
    first, second, end = drawn(2000, 0.0, 0.9)
    known = of_best(first, second, 700)
    there = np.isfinite(known)
    links = [link(first, known), link(second[there], of_best(second, end, 230)[there])]
    assert expected_correlation(links, 0.1) == pytest.approx(0.0, abs=0.15)
    assert expected_correlation(links[1:], 0.3) == pytest.approx(0.9, abs=0.1)


def test_trials_that_later_rungs_selected_make_no_useless_rung_look_useful() -> None:
    first, second, end = drawn(1200, 0.0, 0.9)
    goes_on = {i for i in range(1200) if first[i] < -0.43}
    ends = {i for i in goes_on if second[i] < -0.43}
    curves = []
    for i, (a, b, c) in enumerate(zip(first, second, end, strict=True)):
        if is_probe(i) or i in ends:
            curves.append(trial(i, a, a, *[b] * 7, c, state='completed'))
        elif i in goes_on:
            curves.append(trial(i, a, a, b, state='paused', pauses=(30,)))
        else:
            curves.append(trial(i, a, state='paused', pauses=(10,)))
    useless, useful, _ = Adaptive(min_resource=10).trusts(curves)
    assert useless.correlation < 0.15 < 0.7 < useful.correlation


def test_a_rung_that_trials_lack_is_left_out_between_others() -> None:
    # Short trials have no second rung.
    rewards = np.array([[i, math.nan, -i] for i in range(6)], float)
    to_next, to_end = links(rewards)
    assert to_next[0] == to_end[0] == pytest.approx((-1.0, 6.0))
    assert to_next[1] == (0.0, 0.0)


def test_a_rung_is_linked_to_the_next_one_and_to_the_end() -> None:
    rewards = np.array([[i, i, -i] for i in range(6)], float)
    to_next, to_end = links(rewards)
    assert [each.correlation for each in to_next] == pytest.approx([1.0, -1.0])
    assert [each.correlation for each in to_end] == pytest.approx([-1.0, -1.0])


def test_of_equal_trials_the_earlier_ones_come_first() -> None:
    equal = [trial(id, 1.0, state='paused', pauses=(10,)) for id in range(1, 6)]
    pause = Adaptive(min_resource=10).decide(trial(9, 1.0), equal, LOSS)
    assert isinstance(pause, Pause) and 'number 6 of 6' in pause.reason


def test_a_rung_where_all_are_equal_orders_nothing() -> None:
    later = np.where(np.arange(300) < 100, np.arange(300.0), math.nan)
    links = [link(np.full(300, 0.1), later)]
    assert expected_correlation(links, 0.1) == pytest.approx(0.0, abs=0.1)
