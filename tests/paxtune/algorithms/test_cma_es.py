import dataclasses
import json
import time

import pyglove as pg
import pytest

from paxtune.algorithms import CMAES, Observation
from paxtune.search_space.decisions import Decisions
from tests.conformance.algorithm_suite import (
    ask,
    check_algorithm,
    run,
    searched,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

BOX = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(3)}))


@pytest.mark.parametrize('algorithm', [CMAES(), CMAES(population_size=4, step=0.3)])
@pytest.mark.fast(1)
@pytest.mark.contract
def test_conforms(algorithm):
    check_algorithm(algorithm)


def _generations(history: list[Observation]) -> list[str]:
    return [trial.algorithm_state['cma_generation'] for trial in history]


def test_the_distribution_adapts_once_a_population_has_ended():
    algorithm = CMAES(population_size=4)
    history = run(algorithm, BOX, 9)
    assert _generations(history) == ['0.0'] * 4 + ['0.1'] * 4 + ['0.2']
    assert [history[i].algorithm_state['observed'] for i in (0, 4, 8)] == [
        '',
        '1 2 3 4',
        '5 6 7 8',
    ]


def test_running_trials_share_one_distribution():
    algorithm = CMAES(population_size=4)
    history = run(algorithm, BOX, 4, infeasible=0.0)
    history[2] = dataclasses.replace(history[2], state='pending', scores=())
    fifth = ask(algorithm, BOX, history)
    assert fifth.algorithm_state['cma_generation'] == '0.0'
    assert fifth.decisions not in [trial.decisions for trial in history]
    history.append(Observation(5, fifth.decisions, 'completed', (0.0,), fifth.algorithm_state))
    sixth = ask(algorithm, BOX, history)
    assert (sixth.algorithm_state['cma_generation'], sixth.algorithm_state['observed']) == (
        '0.1',
        '1 2 4 5',
    )
    # Trial 3 ends now. Earlier updates stay.
    history.append(Observation(6, sixth.decisions, 'pending', (), sixth.algorithm_state))
    before = ask(algorithm, BOX, history)
    history[2] = dataclasses.replace(history[2], state='completed', scores=(9.0,))
    assert ask(algorithm, BOX, history) == before


def test_infeasible_trials_rank_last():
    algorithm = CMAES(population_size=4)
    history = run(algorithm, BOX, 4, infeasible=0.0)
    bad = [*history[:3], dataclasses.replace(history[3], scores=(-1e9,))]
    infeasible = [
        *history[:3],
        dataclasses.replace(history[3], state='infeasible', scores=()),
    ]
    assert ask(algorithm, BOX, bad) == ask(algorithm, BOX, infeasible)
    none = [dataclasses.replace(trial, state='infeasible', scores=()) for trial in history]
    assert (
        ask(algorithm, BOX, none).algorithm_state['cma_generation'] == '0.0'
    )  # No update without scores.


def test_the_first_run_starts_at_the_best_known_trial():
    good: Decisions = {'x0': 0.9, 'x1': 0.1, 'x2': 0.2}
    earlier = [
        Observation(-1, good, 'completed', (2.0,)),
        Observation(0, dict.fromkeys(good, 0.6), 'completed', (1.0,)),
    ]
    drawn = [ask(CMAES(), BOX, earlier, seed) for seed in range(40)]
    assert {suggestion.algorithm_state['observed'] for suggestion in drawn} == {'-1'}
    for id_, value in good.items():
        mean = sum(suggestion.decisions[id_] for suggestion in drawn) / len(drawn)
        assert abs(mean - value) < 0.06


def test_plateaus_and_exhausted_draws_restart_with_twice_the_population():
    algorithm = CMAES(population_size=4)
    history = searched(algorithm, BOX, lambda made: 1.0, 13)
    assert _generations(history) == ['0.0'] * 4 + ['1.0'] * 8 + ['2.0']
    few = pg.dna_spec(pg.Dict(x=pg.oneof([1, 2, 3]), y=pg.oneof(['a', 'b', 'c'])))
    everything = run(algorithm, few, 99)
    assert len(everything) == 9


def test_a_missing_trial_causes_a_restart():
    history = run(CMAES(population_size=4), BOX, 6, infeasible=0.0)
    assert (
        ask(CMAES(population_size=4), BOX, history[1:]).algorithm_state['cma_generation'] == '1.0'
    )


def test_the_distribution_moves_to_better_candidates_and_narrows():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, 'log'), kind=pg.oneof(list('abc'))))
    drawn = searched(
        CMAES(population_size=8), spec, lambda made: -made['x'] + (made['kind'] == 2), 120
    )[64:]
    assert sum(trial.decisions['kind'] == 2 for trial in drawn) > 0.6 * len(drawn)
    assert sum(trial.decisions['x'] < 1e-3 for trial in drawn) > 0.8 * len(drawn)


def test_integers_and_ordinals_keep_a_minimum_probability_to_change():
    ordinals = {'width': intv(1, 9), 'heads': pg.oneof([1, 2, 4, 8]), 'x': pg.floatv(0.0, 1.0)}
    spec = pg.dna_spec(pg.Dict(**ordinals, only=intv(3, 4)))
    drawn = searched(
        CMAES(population_size=8), spec, lambda made: -abs(made['width'] - 2.0) - made['heads'], 120
    )[80:]
    for name, best, at_random in (('width', 2, 1 / 9), ('heads', 0, 1 / 4)):
        assert 2 * at_random < sum(t.decisions[name] == best for t in drawn) / len(drawn) < 1.0


def test_a_thousand_trials_are_replayed_quickly():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(6)}))
    history: list[Observation] = []
    for number in range(1, 1001):
        generation, place = divmod(number - 1, 9)
        observed = (
            ' '.join(str(9 * (generation - 1) + i + 1) for i in range(9)) if generation else ''
        )
        normal = [0.5 + 0.1 * ((7 * number + 3 * i) % 11 - 5) / 5 for i in range(6)]
        algorithm_state = {
            'cma_generation': f'0.{generation}',
            'observed': observed,
            'point': json.dumps([normal, []]),
        }
        decisions: Decisions = {f'x{i}': each for i, each in enumerate(normal)}
        scores = (-float(sum(normal)) - place,)
        history.append(Observation(number, decisions, 'completed', scores, algorithm_state))
    ask(CMAES(), spec, history)
    before = time.process_time()
    suggestion = ask(CMAES(), spec, history)
    assert time.process_time() - before < 0.3
    assert suggestion.algorithm_state['cma_generation'] == '0.111'


def test_too_many_decisions_are_rejected():
    spec = pg.dna_spec(pg.Dict(x=pg.manyof(301, list('ab'), distinct=False)))
    with pytest.raises(UserError, match=r'there are 301.*HillClimbing'):
        CMAES().check_space(spec, 1)


def test_constant_spaces_are_searched():
    spec = pg.dna_spec(pg.Dict(x=pg.oneof(['a'])))
    assert ask(CMAES(), spec, []).decisions == {'x': 0}
