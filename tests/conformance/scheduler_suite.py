"""The contract of schedulers. Use, in a test of the scheduler:

- `check_stops(scheduler)` for one that stops trials, and pauses none.
- `check_study(scheduler)` for any: whole studies in memory, of several workers, with kills.
"""

import random
from collections.abc import Sequence

import pyglove as pg
import pytest

from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward, Reward
from paxtune.schedulers import Scheduler, Stop, TrialCurve
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
    """The same trial, with additional measurements that lack a reward."""
    gaps = [Measurement(each.step - 5, {'other': 1e9}) for each in measurements]
    return sorted([*measurements, *gaps], key=lambda each: each.step)


def seen(scheduler: Scheduler, id: int, measurements: Sequence[Measurement]) -> TrialCurve:
    """A trial as a scheduler sees it, in its unit."""
    per_step = PER_STEP[scheduler.unit]
    resources = [per_step * each.step for each in measurements]
    max_resource = None if scheduler.unit == 'seconds' else END * per_step
    return TrialCurve(id, 'running', measurements, resources, max_resource)


def decision(
    scheduler: Scheduler,
    own: Sequence[Measurement],
    others: Sequence[Sequence[Measurement]],
    reward: Reward | None,
) -> str | None:
    """The reason for which a trial is stopped; None if it goes on."""
    curves = [seen(scheduler, id, other) for id, other in enumerate(others, start=1)]
    found = scheduler.decide(seen(scheduler, len(curves) + 1, own), curves, reward)
    assert found is None or isinstance(found, Stop)
    return None if found is None else found.reason


def stops_at(
    scheduler: Scheduler,
    own: Sequence[Measurement],
    others: Sequence[Sequence[Measurement]],
    reward: Reward | None,
) -> int | None:
    """The step at which a trial is stopped, with a decision after each measurement."""
    for count in range(1, len(own) + 1):
        if decision(scheduler, own[:count], others, reward) is not None:
            return own[count - 1].step
    return None


def check_stops(scheduler: Scheduler) -> None:
    """Checks each decision."""
    check_json(scheduler)
    check_says_whether_it_needs_a_reward(scheduler)
    for reward in REWARDS:
        check_the_best_goes_on(scheduler, reward)
        check_answers_are_repeatable(scheduler, reward)
        check_the_order_of_others_is_no_matter(scheduler, reward)
        check_measurements_with_nothing_to_go_by_are_no_matter(scheduler, reward)
        check_the_worse_stop_no_later(scheduler, reward)
        check_gives_reasons(scheduler, reward)


def check_json(scheduler: Scheduler) -> None:
    text = to_json_text(scheduler)
    assert pg.eq(from_json_text(text, Scheduler, source='text'), scheduler)


def check_says_whether_it_needs_a_reward(scheduler: Scheduler) -> None:
    own, others = curve(-1000.0, REWARDS[0]), crowd(REWARDS[0])
    if scheduler.needs_reward:
        with pytest.raises(ValueError, match='exactly one reward'):
            decision(scheduler, own, others, None)
    else:
        stops = stops_at(scheduler, own, others, None)
        assert stops is not None
        assert all(stops_at(scheduler, own, others, reward) == stops for reward in REWARDS)


def check_the_best_goes_on(scheduler: Scheduler, reward: Reward) -> None:
    assert stops_at(scheduler, curve(1000.0, reward), crowd(reward), reward) is None


def check_answers_are_repeatable(scheduler: Scheduler, reward: Reward) -> None:
    """Decides on a resumed trial, in another process, as if it had not been interrupted."""
    for level in (-1000.0, 0.3, 0.6):
        own, others = curve(level, reward), crowd(reward)
        again = from_json_text(to_json_text(scheduler), Scheduler, source='text')
        counts = range(1, len(own) + 1)
        assert [decision(scheduler, own[:n], others, reward) for n in counts] == [
            decision(again, own[:n], others, reward) for n in counts
        ]


def check_the_order_of_others_is_no_matter(scheduler: Scheduler, reward: Reward) -> None:
    others = crowd(reward)
    shuffled = random.Random(1).sample(others, len(others))
    for level in (-1000.0, 0.1, 0.3, 0.6):
        own = curve(level, reward)
        assert stops_at(scheduler, own, others, reward) == stops_at(
            scheduler, own, shuffled, reward
        )


def check_measurements_with_nothing_to_go_by_are_no_matter(
    scheduler: Scheduler, reward: Reward
) -> None:
    others = crowd(reward)
    gaps = [with_gaps(other) for other in others]
    for level in (-1000.0, 0.1, 0.3, 0.6):
        own = curve(level, reward)
        stops = stops_at(scheduler, own, others, reward)
        assert stops_at(scheduler, with_gaps(own), gaps, reward) == stops


def check_the_worse_stop_no_later(scheduler: Scheduler, reward: Reward) -> None:
    ends = [
        stops_at(scheduler, curve(level, reward), crowd(reward), reward) or max(STEPS) + 1
        for level in (-1000.0, -1.0, 0.2, 0.4, 0.6, 0.8, 1000.0)
    ]
    assert ends == sorted(ends)
    assert ends[0] < ends[-1], 'the worst trial is never stopped'


def check_gives_reasons(scheduler: Scheduler, reward: Reward) -> None:
    own = curve(-1000.0, reward)
    step = stops_at(scheduler, own, crowd(reward), reward)
    reason = decision(scheduler, [m for m in own if m.step <= (step or 0)], crowd(reward), reward)
    assert reason and str(step) in reason


def check_study(scheduler: Scheduler) -> None:
    """Checks whole studies, with any number of workers; most checks run at each decision."""
    check_json(scheduler)
    for reward, workers in zip(REWARDS, (1, 4), strict=True):
        check_the_best_completes(ran(scheduler, reward, workers=workers))
        check_each_ends_once(ran(scheduler, reward, workers=3, value=crossing))
        kills = random.Random(workers)
        check_the_best_completes(ran(scheduler, reward, workers=workers, kills=kills))
    check_the_best_completes(ran(scheduler, reward, stride=5, infeasible={3, 6}))
    kills = random.Random(0)
    check_the_best_completes(ran(scheduler, reward, workers=3, infeasible={5, 6}, kills=kills))
    if scheduler.pauses:
        check_a_small_study_completes_a_trial(scheduler)


def check_each_ends_once(trials: Sequence[Toy]) -> None:
    assert all(trial.num_ends == 1 for trial in trials)


def check_the_best_completes(trials: Sequence[Toy]) -> None:
    check_each_ends_once(trials)
    feasible = [trial for trial in trials if trial.state != 'infeasible']
    assert max(feasible, key=lambda trial: trial.decisions['x']).state == 'completed'
    assert any(trial.state == 'stopped' for trial in feasible)


def check_a_small_study_completes_a_trial(scheduler: Scheduler) -> None:
    for count in (1, 2, 3):
        trials = ran(scheduler, REWARDS[0], num_trials=count, workers=2)
        check_each_ends_once(trials)
        assert any(trial.state == 'completed' for trial in trials)
