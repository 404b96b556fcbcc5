"""Ranking of the paths of a supernet."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from paxtune.algorithms import RandomSearch, RegularizedEvolution
from paxtune.objectives.limits import Limit
from paxtune.objectives.rewards import MetricReward, WeightedSum
from paxtune.search_space.constraints import Requires
from paxtune.search_space.decisions import Decisions
from paxtune.study.trial_costs import static_costs
from paxtune.study.trial_experiments import parts_of
from paxtune.supernet.ranking import PathEvaluator, ranked
from paxtune.supernet.supernet import Supernet, supernet
from tests.factories.tunables import REWARD, layers
from trainer.layers.lora import LoRA, is_adapter
from trainer.learner.paths import leaves
from trainer.loop.evaluate import evaluate
from trainer.loop.train_loop import run
from trainer.metrics import with_nan
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError


def index(path: Decisions) -> int:
    return sum(int(value) for value in path.values())


def made(**search: object) -> Supernet:
    return supernet(layers(**search))


@pytest.mark.slow
def test_all_paths_of_a_small_space_are_ranked_once() -> None:
    supernet = made()
    found = ranked(supernet, layers().search, index, num_paths=100)
    assert len(found) == len({str(each.decisions) for each in found}) == 16
    assert [each.reward for each in found] == sorted(index(each.decisions) for each in found)


def test_larger_rewards_come_first_where_they_are_better() -> None:
    search = layers(objective=MetricReward('maximize', 'eval/log_pplx')).search
    found = [each.reward for each in ranked(made(), search, index, num_paths=8)]
    assert found == sorted(found, reverse=True) and len(found) == 8


@pytest.mark.slow
def test_evolution_proposes_better_paths_than_random_search() -> None:
    evolution = RegularizedEvolution(population_size=3, tournament_size=3)
    means = [
        sum(each.reward for each in ranked(made(), layers().search, index, 12, algorithm))
        for algorithm in (evolution, RandomSearch())
    ]
    assert means[0] < means[1]


@pytest.mark.slow
def test_a_supernet_of_adapters_is_evaluated_beside_its_frozen_parameters(tmp_path: Path) -> None:
    adapted = supernet(layers().rebind({'task.adapters': LoRA(2)}))
    for _ in run(adapted.experiment, tmp_path):
        pass
    found = PathEvaluator(adapted, REWARD, tmp_path)
    program, values = compiled(localized(adapted.experiment))
    begun = program.init(program.random_key(adapted.experiment.train.random_seed), values)
    before, after = (
        {path: x for path, x in leaves(state.params).items() if not is_adapter(path[-1])}
        for state in (begun, found.state)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)
    path = adapted.choices[0].decisions[0] | adapted.choices[1].decisions[1]
    assert np.isfinite(found.metrics(path)['eval/loss'])


@pytest.mark.slow
def test_constraints_and_limits_hold_for_paths() -> None:
    smaller = Limit('num_params', at_most=1800)
    search = layers(limits=[smaller]).search
    supernet = made()
    found = ranked(supernet, search, index, num_paths=100)
    costs = [static_costs(parts_of(supernet.space, each.decisions)) for each in found]
    assert 0 < len(found) < 16 and max(each['num_params'] for each in costs) <= 1800
    nothing = Requires('task.learner.learning_rate > 1', 'too slow')
    with pytest.raises(UserError, match='too slow'):
        ranked(supernet, layers(constraints=[nothing]).search, index, num_paths=100)


@pytest.mark.slow
def test_paths_without_a_finite_reward_are_left_out() -> None:
    def reward(path: Decisions) -> float | None:
        return None if index(path) == 0 else index(path)

    search = layers().search
    assert len(ranked(made(), search, reward, num_paths=100)) == 15
    with pytest.raises(UserError, match='none of 16 paths has a finite reward'):
        ranked(made(), search, lambda path: None, num_paths=100)


@pytest.mark.pax('Weight-sharing NAS hooks')
@pytest.mark.slow
def test_a_path_has_the_metrics_of_its_own_model_with_the_shared_weights(tmp_path: Path) -> None:
    supernet = made()
    for _ in run(supernet.experiment, tmp_path):
        pass
    evaluator = PathEvaluator(supernet, REWARD, tmp_path)
    for number in (0, 3):
        path = supernet.choices[0].decisions[number] | supernet.choices[1].decisions[1]
        expected = _alone(supernet, evaluator.state, path, {0: number, 1: 1})
        metrics = evaluator.metrics(path)
        for name in ('eval/loss', 'eval/accuracy'):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-5)
        assert evaluator.reward(path) == metrics['eval/log_pplx']


def _alone(
    supernet: Supernet, state: TrainState, path: Decisions, chosen: dict[int, int]
) -> dict[str, float]:
    """Evaluates the model of a trial with the weights of its candidates."""
    experiment = localized(parts_of(supernet.space, path)[''])
    program, values = compiled(experiment)
    params = jax.device_get(state.params)
    stack = {
        f'layers_{at}': params['stack'][f'layers_{at}'].get(f'candidates_{index}', {})
        for at, index in chosen.items()
    }
    stack = {name: weights for name, weights in stack.items() if weights}
    own = dataclasses.replace(state, params={**params, 'stack': stack})
    return with_nan(evaluate(experiment, program, own, values))


@pytest.mark.slow
def test_a_reward_may_need_the_costs_of_a_path(tmp_path: Path) -> None:
    supernet = made()
    for _ in run(supernet.experiment, tmp_path):
        pass
    path = supernet.choices[0].decisions[0] | supernet.choices[1].decisions[0]
    params = static_costs(parts_of(supernet.space, path))['num_params']
    reward = WeightedSum('minimize', ['num_params'], [1.0])
    assert PathEvaluator(supernet, reward, tmp_path).reward(path) == params
    with pytest.raises(UserError, match='eval/lost'):
        PathEvaluator(supernet, MetricReward('minimize', 'eval/lost'), tmp_path).reward(path)


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='there is no checkpoint of a supernet in'):
        PathEvaluator(made(), REWARD, tmp_path)
