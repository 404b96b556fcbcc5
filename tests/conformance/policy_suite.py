"""What any policy must do. Use, in a test of the policy:

- `check_stops(policy)` for one that stops trials, and pauses none.
- `check_study(policy)` for any: whole studies in memory, of several workers, with kills.
"""

import random
from collections.abc import Sequence

import pyglove as pg
import pytest

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward, Reward
from paxtune.schedulers import Curve, Policy, Stop
from tests.conformance.toy_study import END, PER_STEP, Toy, crossing, ran
from trainer.symbolic.serialization import from_json_text, to_json_text

REWARDS = (
    MetricReward(metric='loss', goal='minimize'),
    MetricReward(metric='accuracy', goal='maximize'),
)
STEPS = range(10, 110, 10)


def curve(level: float, reward: Reward, steps: Sequence[int] = STEPS) -> list[Measurement]:
    """A curve that improves steadily; the higher the level, the better."""
    values = [(step, level + step / 100) for step in steps]
    return [
        Measurement(step, {'loss': -value, 'accuracy': value}, (reward.score(value),))
        for step, value in values
    ]


def crowd(reward: Reward, count: int = 20) -> list[list[Measurement]]:
    """Trials of all levels from 0 to 1, some of which ended early."""
    rng = random.Random(0)
    ends = [rng.choice([3, 6, 10, 10]) for _ in range(count)]
    return [curve(i / count, reward, STEPS[:end]) for i, end in enumerate(ends)]


def with_gaps(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The same trial, which was also measured where there was nothing to go by yet."""
    gaps = [Measurement(each.step - 5, {'other': 1e9}) for each in measurements]
    return sorted([*measurements, *gaps], key=lambda each: each.step)


def seen(policy: Policy, id: int, measurements: Sequence[Measurement]) -> Curve:
    """A trial as a policy sees it, in its unit."""
    per_step = PER_STEP[policy.unit]
    spent = [per_step * each.step for each in measurements]
    budget = None if policy.unit == 'seconds' else END * per_step
    return Curve(id, 'running', measurements, spent, budget)


def verdict(
    policy: Policy,
    own: Sequence[Measurement],
    others: Sequence[Sequence[Measurement]],
    reward: Reward | None,
) -> str | None:
    """Why a trial is stopped; None if it goes on."""
    curves = [seen(policy, id, other) for id, other in enumerate(others, start=1)]
    found = policy.verdict(seen(policy, len(curves) + 1, own), curves, reward)
    assert found is None or isinstance(found, Stop)
    return None if found is None else found.reason


def stops_at(
    policy: Policy,
    own: Sequence[Measurement],
    others: Sequence[Sequence[Measurement]],
    reward: Reward | None,
) -> int | None:
    """The step at which a trial is stopped that is judged after each measurement."""
    for count in range(1, len(own) + 1):
        if verdict(policy, own[:count], others, reward) is not None:
            return own[count - 1].step
    return None


def check_stops(policy: Policy) -> None:
    """What must hold of each verdict."""
    check_json(policy)
    check_says_whether_it_needs_a_reward(policy)
    for reward in REWARDS:
        check_the_best_goes_on(policy, reward)
        check_answers_are_repeatable(policy, reward)
        check_the_order_of_others_is_no_matter(policy, reward)
        check_measurements_with_nothing_to_go_by_are_no_matter(policy, reward)
        check_the_worse_stop_no_later(policy, reward)
        check_gives_reasons(policy, reward)


def check_json(policy: Policy) -> None:
    text = to_json_text(policy)
    assert pg.eq(from_json_text(text, Policy, source='text'), policy)


def check_says_whether_it_needs_a_reward(policy: Policy) -> None:
    own, others = curve(-1000.0, REWARDS[0]), crowd(REWARDS[0])
    if policy.needs_reward:
        with pytest.raises(ValueError, match='exactly one reward'):
            verdict(policy, own, others, None)
    else:
        stops = stops_at(policy, own, others, None)
        assert stops is not None
        assert all(stops_at(policy, own, others, reward) == stops for reward in REWARDS)


def check_the_best_goes_on(policy: Policy, reward: Reward) -> None:
    assert stops_at(policy, curve(1000.0, reward), crowd(reward), reward) is None


def check_answers_are_repeatable(policy: Policy, reward: Reward) -> None:
    """A trial that is judged again after a kill, by another process, is judged the same."""
    for level in (-1000.0, 0.3, 0.6):
        own, others = curve(level, reward), crowd(reward)
        again = from_json_text(to_json_text(policy), Policy, source='text')
        counts = range(1, len(own) + 1)
        assert [verdict(policy, own[:n], others, reward) for n in counts] == [
            verdict(again, own[:n], others, reward) for n in counts
        ]


def check_the_order_of_others_is_no_matter(policy: Policy, reward: Reward) -> None:
    others = crowd(reward)
    shuffled = random.Random(1).sample(others, len(others))
    for level in (-1000.0, 0.1, 0.3, 0.6):
        own = curve(level, reward)
        assert stops_at(policy, own, others, reward) == stops_at(policy, own, shuffled, reward)


def check_measurements_with_nothing_to_go_by_are_no_matter(policy: Policy, reward: Reward) -> None:
    others = crowd(reward)
    gaps = [with_gaps(other) for other in others]
    for level in (-1000.0, 0.1, 0.3, 0.6):
        own = curve(level, reward)
        stops = stops_at(policy, own, others, reward)
        assert stops_at(policy, with_gaps(own), gaps, reward) == stops


def check_the_worse_stop_no_later(policy: Policy, reward: Reward) -> None:
    ends = [
        stops_at(policy, curve(level, reward), crowd(reward), reward) or max(STEPS) + 1
        for level in (-1000.0, -1.0, 0.2, 0.4, 0.6, 0.8, 1000.0)
    ]
    assert ends == sorted(ends)
    assert ends[0] < ends[-1], 'the worst trial is never stopped'


def check_gives_reasons(policy: Policy, reward: Reward) -> None:
    own = curve(-1000.0, reward)
    step = stops_at(policy, own, crowd(reward), reward)
    reason = verdict(policy, [m for m in own if m.step <= (step or 0)], crowd(reward), reward)
    assert reason and str(step) in reason


def check_study(policy: Policy) -> None:
    """What must hold of studies, whoever runs them; much of it is checked at each answer."""
    check_json(policy)
    for reward, workers in zip(REWARDS, (1, 4), strict=True):
        check_the_best_completes(ran(policy, reward, workers=workers))
        check_each_ends_once(ran(policy, reward, workers=3, value=crossing))
        kills = random.Random(workers)
        check_the_best_completes(ran(policy, reward, workers=workers, kills=kills))
    check_the_best_completes(ran(policy, reward, stride=5, infeasible={3, 6}))
    kills = random.Random(0)
    check_the_best_completes(ran(policy, reward, workers=3, infeasible={5, 6}, kills=kills))
    if policy.pauses:
        check_a_small_study_completes_a_trial(policy)


def check_each_ends_once(trials: Sequence[Toy]) -> None:
    assert all(trial.num_ends == 1 for trial in trials)


def check_the_best_completes(trials: Sequence[Toy]) -> None:
    check_each_ends_once(trials)
    feasible = [trial for trial in trials if trial.state != 'infeasible']
    assert max(feasible, key=lambda trial: trial.decisions['x']).state == 'completed'
    assert any(trial.state == 'stopped' for trial in feasible)


def check_a_small_study_completes_a_trial(policy: Policy) -> None:
    for count in (1, 2, 3):
        trials = ran(policy, REWARDS[0], num_trials=count, workers=2)
        check_each_ends_once(trials)
        assert any(trial.state == 'completed' for trial in trials)
