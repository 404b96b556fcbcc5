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
from paxtune.schedulers.base import State
from paxtune.schedulers.winners import FAR, NEAR, is_drawn, rescue_chance, survivals
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


def ended(order: int) -> list[TrialCurve]:
    """Twelve trials whose early losses order their ends well (1), or in reverse (-1)."""
    return [
        trial(number, *[float(order * i)] * 9, float(i), state='completed')
        for i, number in enumerate(range(401, 413))
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
def test_a_cut_trial_is_rescued_by_its_number_alone(seed: int, number: int) -> None:
    rng, scheduler = random.Random(seed), Adaptive(min_resource=10)
    others = [trial(id, rng.random(), state='paused', pauses=(10,)) for id in range(201, 220)]
    paused = scheduler.decide(trial(number, 1e9), others, LOSS)
    assert (paused is None) == is_drawn(number, rescue_chance(number, [1.0], [1 / 3]))
    best = scheduler.decide(trial(number, -1e9), others, LOSS)
    assert best is None


def test_a_rescued_trial_goes_on_at_all_later_rungs() -> None:
    number = next(each for each in range(1, 200) if is_drawn(each, FAR))
    others = [trial(id, 0.0, 0.0, 0.0, state='paused', pauses=(30,)) for id in range(201, 220)]
    assert Adaptive(min_resource=10).decide(trial(number, 1e9, 1e9, 1e9), others, LOSS) is None


def test_more_trials_are_rescued_next_to_the_part_that_goes_on() -> None:
    numbers = range(1, 9601)
    assert sum(is_drawn(each, NEAR) for each in numbers) == pytest.approx(400, abs=3)
    assert sum(is_drawn(each, FAR) for each in numbers) == pytest.approx(150, abs=3)
    assert rescue_chance(1, [0.9, 0.4], [1 / 3, 1 / 3]) == NEAR
    assert rescue_chance(1, [0.2, 0.9], [1 / 3, 1 / 3]) == FAR
    assert rescue_chance(1, [0.2, 0.3], [1 / 3, 1 / 3]) == 0.0


def test_more_trials_are_rescued_in_a_long_study() -> None:
    chances = [rescue_chance(number, [0.9], [1 / 3]) for number in (1, 96, 192, 384, 9999)]
    assert chances == [FAR, FAR, 2 * FAR, 4 * FAR, 4 * FAR]


def test_reliable_rungs_let_the_best_third_go_on() -> None:
    trusts = Adaptive(min_resource=10).trusts(ended(1), LOSS)
    # The last rung is so late that the rest costs less than a winner.
    assert [each.share for each in trusts] == pytest.approx([1 / 3, 1 / 3, 1.0])
    assert [(each.ended, each.winners, each.kept) for each in trusts] == [(12, 2, 2)] * 3


def test_misleading_rungs_let_all_trials_go_on() -> None:
    scheduler = Adaptive(min_resource=10)
    trusts = scheduler.trusts(ended(-1), LOSS)
    assert [each.share for each in trusts] == [1.0, 1.0, 1.0]
    assert scheduler.decide(trial(1, 1e9), ended(-1), LOSS) is None


def test_paused_trials_go_on_when_rungs_turn_out_to_mislead() -> None:
    scheduler = Adaptive(min_resource=10)
    waiting = [trial(id, 50.0 + id, state='paused', pauses=(10,)) for id in range(1, 7)]
    assert scheduler.next_action([*waiting, *ended(1)], LOSS, CONTEXT, True) is None
    answer = scheduler.next_action([*waiting, *ended(-1)], LOSS, CONTEXT, True)
    assert isinstance(answer, Promote) and answer.trial == 1
    assert answer.reason == (
        'number 13 of 18 trials by predicted end at the rung of 10 steps, where 2 of the 2 trials '
        'that ended best, of 12, stood in the best 100%: 100% go on'
    )


def test_paused_trials_go_on_where_the_winners_stood() -> None:
    # Losses at the rung are 0 to 39. The best ends stood at 19 to 21.
    known = [
        trial(100 + i, *[float(i)] * 9, abs(20.0 - i), state='completed') for i in range(0, 40, 2)
    ]
    known += [trial(100 + i, float(i), state='paused', pauses=(10,)) for i in range(1, 40, 2)]
    answer = Adaptive(min_resource=10).next_action(known, LOSS, CONTEXT, True)
    assert isinstance(answer, Promote) and 113 <= answer.trial <= 127


def test_a_pause_says_what_the_rung_is_worth() -> None:
    found = Adaptive(min_resource=10).decide(trial(1, 50.0), ended(1), LOSS)
    assert found == Pause(
        'reward 50 at step 10 is number 13 of 13 trials by predicted end at the rung of 10 steps, '
        'where 2 of the 2 trials that ended best, of 12, stood in the best 33%: 33% go on'
    )


def test_a_trial_that_its_decisions_delay_is_not_paused_for_it() -> None:
    # A point is how long the warm-up is: it costs up to one early, and nothing in the end.
    def delayed(number: int, loss: float, warmup: float, state: State = 'completed') -> TrialCurve:
        losses = [loss + warmup, *[loss] * 9]
        made = trial(number, *losses[: 10 if state == 'completed' else 1], state=state)
        return dataclasses.replace(made, point=[warmup])

    known = [delayed(i, i % 8 / 4, warmup=i % 3 / 2) for i in range(2, 17)]
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
    # 4 trials in 100 are rescued besides.
    assert compute(own) < 1.3 * compute(other)
    assert compute(own) < 0.4 * 100 * 100


@pytest.mark.parametrize('value', [noise, crossing])
def test_it_trains_nearly_all_to_the_end_where_rungs_mislead(value) -> None:
    trials = ran(Adaptive(min_resource=10), LOSS, num_trials=200, value=value)
    assert compute(trials) > 0.75 * 200 * 100


def test_the_report_has_a_line_for_each_rung() -> None:
    assert Adaptive(min_resource=30).findings(ended(1), LOSS) == [
        f'{share}% of the trials go on from the rung of {rung} steps, where 2 of the 2 trials '
        f'that ended best, of 12, stood in the best {share}%'
        for rung, share in ((30, 33), (90, 100))
    ]
    assert PromotingAsha(min_resource=30).findings(ended(1), LOSS) == []


@given(
    st.lists(st.lists(st.floats(0.001, 0.999), min_size=3, max_size=3), max_size=9),
    st.sampled_from([2, 3, 4]),
)
def test_shares_lie_between_the_least_and_all(places: list[list[float]], factor: int) -> None:
    found = survivals(
        np.array(places).reshape(-1, 3),
        np.arange(len(places)),
        [0.4] * 3,
        [0.04, 0.12, 0.36],
        factor,
    )
    assert all(1 / factor <= each.share <= 1.0 for each in found)
    assert all(1 / factor <= each.last_share <= 1.0 for each in found)


def test_more_trials_go_on_where_winners_stood_behind() -> None:
    shares = [
        survivals(np.full((4, 1), place), np.ones(4), [0.4], [0.1], 3)[0].share
        for place in (0.05, 0.2, 0.4, 0.7, 0.95)
    ]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(1 / 3) and shares[-1] == 1.0


def test_winners_in_the_second_quarter_let_half_of_the_trials_go_on() -> None:
    first, second = survivals(
        np.stack([np.linspace(0.26, 0.49, 20), np.full(20, 0.05)], axis=1),
        np.arange(20), [0.5, 1 / 3], [0.04, 0.2], 3,
    )  # fmt: skip
    assert 0.5 <= first.share <= 0.7 and second.share == pytest.approx(1 / 3)


@pytest.mark.parametrize('widest', [0.3, 0.6, 0.98])
def test_neither_the_cut_nor_rescues_bias_the_share_of_winners(widest: float) -> None:
    rng = np.random.default_rng(0)
    places = rng.uniform(0.02, widest, 2000)
    chance = np.where(places <= 1 / 3, 1.0, np.where(places <= 2 / 3, NEAR, FAR))
    known = places[rng.random(len(places)) < chance]
    # The least share that has 80 % of the winners.
    found = survivals(known[:, None], np.ones(len(known)), [1 / 3], [0.05], 3)[0].last_share
    assert found == pytest.approx(max(1 / 3, np.quantile(places, 0.8)), abs=0.15)


def test_trials_that_lack_a_rung_are_left_out_there() -> None:
    # Short trials have no second rung.
    places = np.array([[0.1, math.nan], [0.1, math.nan], [0.1, math.nan]])
    first, second = survivals(places, np.ones(3), [1 / 3, 0.0], [0.1, 0.3], 3)
    assert first.winners > second.winners


def test_of_equal_trials_the_earlier_ones_come_first() -> None:
    equal = [trial(id, 1.0, state='paused', pauses=(10,)) for id in range(1, 6)]
    pause = Adaptive(min_resource=10).decide(trial(9, 1.0), equal, LOSS)
    assert isinstance(pause, Pause) and 'number 6 of 6' in pause.reason
