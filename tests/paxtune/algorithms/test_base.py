"""Contracts that several algorithms share, beside those of the conformance suite."""

import pyglove as pg
import pytest

from paxtune.algorithms import (
    CMAES,
    NSGA2,
    TPE,
    ChangeLayer,
    Eagle,
    GPBandit,
    Grid,
    HillClimbing,
    InsertLayer,
    LayerRangeCrossover,
    Observation,
    Portfolio,
    RandomSearch,
    RegularizedEvolution,
    SuggestionContext,
)
from tests.conformance.algorithm_suite import best_of, bowl, bowl_spec, conditional, layer_stack
from trainer.symbolic.errors import UserError

SPEC = pg.dna_spec(conditional())


@pytest.mark.parametrize(('number', 'seen'), [(-3, False), (0, False), (1, True)])
def test_trials_of_earlier_studies_do_not_count_as_tried(number, seen):
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(0.0, 1.0)))
    history = [Observation(number, {'x': 0.5}, 'completed', (1.0,))]
    assert SuggestionContext(spec, 0, 2, lambda: history).seen({'x': 0.5}) == seen


ONE_REWARD = [CMAES(), Eagle(), HillClimbing()]


@pytest.mark.parametrize('algorithm', ONE_REWARD, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize('count', [0, 2])
def test_exactly_one_reward_is_required(algorithm, count):
    message = rf'{type(algorithm).__name__} needs one reward; there are {count}\. Use '
    with pytest.raises(UserError, match=message):
        algorithm.check_space(SPEC, count)
    algorithm.check_space(SPEC, 1)


@pytest.mark.parametrize(
    'algorithm', [NSGA2(), RegularizedEvolution(), GPBandit(), Portfolio(), TPE()]
)
def test_a_reward_is_required(algorithm):
    with pytest.raises(UserError, match=r'needs a reward.*RandomSearch'):
        algorithm.check_space(SPEC, 0)
    algorithm.check_space(SPEC, 4)


@pytest.mark.parametrize('operator', [{'mutation': InsertLayer()}, {'mutation': ChangeLayer()},
                                      {'crossover': LayerRangeCrossover()}])  # fmt: skip
@pytest.mark.parametrize('kind', [NSGA2, RegularizedEvolution])
def test_layer_operators_require_layers(kind, operator):
    with pytest.raises(UserError, match=r'a list with at least two.*Use '):
        kind(**operator).check_space(SPEC, 1)
    kind(**operator).check_space(pg.dna_spec(layer_stack()), 1)


@pytest.mark.parametrize(
    ('kind', 'fields', 'message'),
    [
        (CMAES, {'population_size': 3}, 'population_size must be'),
        (CMAES, {'step': 0.0}, 'step must be'),
        (Grid, {'points_per_range': 0}, 'points_per_range must be at least 1'),
        (HillClimbing, {'starts': 0}, 'starts must be above 0'),
        (HillClimbing, {'step': 0}, 'step must be above 0'),
        (HillClimbing, {'patience': 0}, 'patience must be above 0'),
        (NSGA2, {'population_size': 1}, 'population_size must be at least 2'),
        (NSGA2, {'crossover_rate': 1.5}, 'crossover_rate must lie between 0 and 1'),
        (RegularizedEvolution, {'crossover_rate': -0.1}, 'crossover_rate must lie between 0'),
        (RegularizedEvolution, {'population_size': 4, 'tournament_size': 5}, 'tournament_size'),
        (RegularizedEvolution, {'population_size': 4, 'tournament_size': 0}, 'tournament_size'),
        (RegularizedEvolution, {'population_size': 0, 'tournament_size': 0}, 'tournament_size'),
        (TPE, {'num_candidates': 0}, 'num_candidates must be at least 1'),
        (TPE, {'num_initial': 0}, 'num_initial must be at least 1'),
        (Portfolio, {'prior_strength': -1.0}, 'prior_strength must be at least 0'),
    ],
)
def test_fields_are_checked(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ('algorithm', 'count'),
    [(CMAES(), 80), (HillClimbing(), 50), (NSGA2(10), 80), (RegularizedEvolution(8, 4), 80)],
)
def test_results_beat_random_search(algorithm, count):
    ours, random = (
        [best_of(each, bowl_spec(), bowl, count, seed) for seed in range(3)]
        for each in (algorithm, RandomSearch())
    )
    assert sum(ours) > 0.5 * sum(random)
