import random
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms.base import SuggestionContext
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.schedulers import Fork, Pause, PopulationBasedTraining, Promote, TrialCurve, Wait
from paxtune.schedulers.base import State
from paxtune.schedulers.perturbation import perturbed
from tests.conformance.scheduler_suite import check_study
from tests.conformance.toy_study import ToyStudy, ran
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

LOSS = MetricReward(metric='loss', goal='minimize')
SPEC = pg.dna_spec(
    pg.Dict(
        rate=pg.floatv(1e-4, 1.0, 'log'),
        width=intv(1, 9),
        kind=pg.oneof([pg.Dict(heads=intv(2, 4)), 'b']),
    )
)
MADE = {'rate': 0.01, 'width': 3, 'kind': 0, 'kind[=0/2].heads': 3}
SCHEDULER = PopulationBasedTraining(population_size=4, interval=20)


def member(
    id: int, reward: float, *, state: State = 'paused', step: int = 20, **fields: Any
) -> TrialCurve:
    """A member that was paused at a step."""
    measured = [Measurement(step, {}, (reward,))]
    return TrialCurve(id, state, measured, [float(step)], 100.0, [step], MADE, **fields)


def request(number: int = 9, infeasible=lambda decisions: None) -> SuggestionContext:
    return SuggestionContext(SPEC, 0, number, list, infeasible)


@pytest.mark.parametrize(
    'scheduler',
    [
        PopulationBasedTraining(population_size=5, interval=20),
        PopulationBasedTraining(
            population_size=4, interval=240, unit='tokens', quantile=0.5, decisions=['x']
        ),
        PopulationBasedTraining(population_size=6, interval=15, resample_probability=1.0),
        PopulationBasedTraining(population_size=3, interval=5, unit='seconds'),
        PopulationBasedTraining(population_size=5, interval=10, grace_period=0.4),
    ],
)
def test_it_conforms(scheduler):
    check_study(scheduler)


def test_the_outcome_is_the_same_for_any_number_of_workers():
    def outcome(workers: int) -> list[tuple[object, ...]]:
        trials = ran(SCHEDULER, LOSS, workers=workers)
        return [(each.decisions, each.state, each.forked_from, each.pauses) for each in trials]

    assert outcome(1) == outcome(3) == outcome(8)


def test_kills_do_not_change_the_result():
    def outcome(kills: random.Random | None) -> list[tuple[object, ...]]:
        trials = ran(SCHEDULER, LOSS, workers=2, kills=kills)
        return [(each.decisions, each.state, each.forked_from, each.pauses) for each in trials]

    calm = outcome(None)
    for seed in range(5):
        assert outcome(random.Random(seed)) == calm


def test_members_are_forked_as_long_as_there_is_room():
    study = ToyStudy(SCHEDULER, LOSS, num_trials=6).run()
    assert len(study.forks) == 2
    assert sum(each.state == 'completed' for each in study.trials.values()) == 4
    assert not ToyStudy(SCHEDULER, LOSS, num_trials=4).run().forks


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'population_size': 1}, 'population_size must be at least 2'),
        ({'interval': 0}, 'interval must be greater than 0'),
        ({'quantile': 0.0}, 'quantile'),
        ({'quantile': 0.6}, 'quantile'),
        ({'perturbation': 1.0}, 'perturbation must be greater than 1'),
        ({'resample_probability': 1.1}, 'resample_probability'),
        ({'decisions': []}, 'must name a number'),
    ],
)
def test_invalid_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PopulationBasedTraining(**({'population_size': 4, 'interval': 10} | fields))


def test_members_pause_once_in_each_generation():
    def running(*steps: int, pauses: tuple[int, ...] = ()) -> TrialCurve:
        measured = [Measurement(step, {}, (1.0,)) for step in steps]
        return TrialCurve(1, 'running', measured, [float(step) for step in steps], 100.0, pauses)

    assert SCHEDULER.decide(running(10), [], LOSS) is None
    assert SCHEDULER.decide(running(10, 25), [], LOSS) == Pause(
        'reward 1 at step 25, in generation 1'
    )
    assert SCHEDULER.decide(running(10, 25, pauses=(25,)), [], LOSS) is None
    assert SCHEDULER.decide(running(10, 25, 35, pauses=(25,)), [], LOSS) is None
    assert isinstance(SCHEDULER.decide(running(10, 25, 45, pauses=(25,)), [], LOSS), Pause)


def test_a_fork_belongs_to_the_generation_of_its_parent():
    parent, replaced = member(1, 0.1), member(2, 0.9, state='stopped')
    measured = [Measurement(30, {}, (1.0,)), Measurement(40, {}, (1.0,))]
    for others in ([parent, replaced], [parent], [replaced], []):
        fork = TrialCurve(
            5, 'running', measured[:1], [30.0], 100.0, forked_from=(1, 20), replaces=2
        )
        assert SCHEDULER.decide(fork, others, LOSS) is None
        fork = TrialCurve(
            5, 'running', measured, [30.0, 40.0], 100.0, forked_from=(1, 20), replaces=2
        )
        assert isinstance(SCHEDULER.decide(fork, others, LOSS), Pause)


def test_the_worst_are_replaced_by_children_of_the_best_and_then_all_go_on():
    scheduler = PopulationBasedTraining(population_size=8, interval=20)
    curves = [member(id, id / 10) for id in range(1, 9)]
    first = scheduler.next_action(curves, LOSS, request(), True)
    assert isinstance(first, Fork)
    assert (first.replaces, first.step) == (8, 20)
    assert first.trial in (1, 2)
    assert first.decisions['kind'] == 0
    fork = TrialCurve(9, 'waiting', [], [], 100.0, (), MADE, (first.trial, 20), 8)
    second = scheduler.next_action([*curves, fork], LOSS, request(10), True)
    assert isinstance(second, Fork)
    assert second.replaces == 7
    assert second.reason.startswith('trial 7 was number 7 of 8 in generation 1, trial ')
    last = TrialCurve(10, 'waiting', [], [], 100.0, (), MADE, (second.trial, 20), 7)
    going_on = scheduler.next_action([*curves, fork, last], LOSS, request(11), True)
    assert going_on == Promote(1, 'the population has reached generation 1')
    # Without room no trial is replaced.
    assert isinstance(scheduler.next_action(curves, LOSS, request(), False), Promote)


def test_the_population_waits_for_its_last_member():
    curves = [member(id, id / 10) for id in (1, 2, 3)]
    assert SCHEDULER.next_action(curves, LOSS, request(), True) is None
    late = TrialCurve(4, 'running', [], [], 100.0)
    assert isinstance(SCHEDULER.next_action([*curves, late], LOSS, request(), True), Wait)
    waiting = TrialCurve(4, 'waiting', [], [], 100.0)
    assert SCHEDULER.next_action([*curves, waiting], LOSS, request(), True) is None
    ended = TrialCurve(4, 'completed', [], [], 100.0)
    assert isinstance(SCHEDULER.next_action([*curves, ended], LOSS, request(), True), Fork)
    over = SCHEDULER.next_action([ended] * 4, LOSS, request(), True)
    assert over == Wait('the population has trained to its end, in 8 trials of the budget')


def test_a_population_without_living_members_begins_anew():
    fork = member(5, 0.5, forked_from=(1, 20), replaces=4)
    others = [member(id, id / 10, state='stopped') for id in (3, 4)]
    assert SCHEDULER.next_action(others, LOSS, request(), True) is None
    assert isinstance(SCHEDULER.next_action([*others, fork], LOSS, request(), True), Promote)


def test_no_trial_is_forked_at_the_last_step():
    curves = [member(id, id / 10) for id in (1, 2, 3, 4)]
    ended = member(5, 0.1, state='completed')
    longer = member(6, 0.1, state='completed', step=30)
    assert isinstance(SCHEDULER.next_action(curves, LOSS, request(), True), Fork)
    assert isinstance(SCHEDULER.next_action([*curves, ended], LOSS, request(), True), Promote)
    assert isinstance(SCHEDULER.next_action([*curves, ended, longer], LOSS, request(), True), Fork)


def test_where_no_perturbation_is_feasible_numbers_are_inherited():
    curves = [member(id, id / 10) for id in (1, 2, 3, 4)]
    fork = SCHEDULER.next_action(curves, LOSS, request(infeasible=lambda _: 'no'), True)
    assert isinstance(fork, Fork)
    assert fork.decisions == MADE
    fork = SCHEDULER.next_action(curves, LOSS, request(), True)
    assert isinstance(fork, Fork)
    assert fork.decisions != MADE


def test_the_space_must_have_the_numbers():
    named = SCHEDULER.clone(override={'decisions': ['kind.heads', 'rte']})
    with pytest.raises(
        UserError, match=r"decisions\[1\]: 'rte' is not a number.*Did you mean rate"
    ):
        named.check_space(request().spec)
    with pytest.raises(UserError, match='the space has none'):
        SCHEDULER.check_space(pg.dna_spec(pg.Dict(x=pg.oneof([1, 2]))))


@pytest.mark.parametrize('factor', [1.01, 1.2, 100.0])
def test_numbers_move_within_their_ranges(factor):
    for seed in range(50):
        made = perturbed(SPEC, MADE, random.Random(seed), factor, 0.0, None)
        assert list(made) == list(MADE)
        assert made['rate'] == pytest.approx(0.01 * factor) or made['rate'] == pytest.approx(
            max(0.01 / factor, 1e-4)
        )
        assert isinstance(made['width'], int)
        assert made['width'] != 3
        assert made['kind[=0/2].heads'] in (2, 4)
        assert made['kind'] == 0


def test_only_named_numbers_move():
    for names in (['kind.heads'], ['kind[=0/2].heads']):
        made = perturbed(SPEC, MADE, random.Random(0), 2.0, 0.0, names)
        assert {id_ for id_ in made if made[id_] != MADE[id_]} == {'kind[=0/2].heads'}


def test_numbers_are_resampled():
    made = {
        perturbed(SPEC, MADE, random.Random(seed), 1.2, 1.0, ['width'])['width']
        for seed in range(100)
    }
    assert made == set(range(1, 10))
