"""Our algorithms as a sampler of Optuna."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

from paxtune.algorithms import Observation, RandomSearch, Suggestion, SuggestionContext
from paxtune.integrations.optuna import PaxtuneSampler
from trainer.symbolic.errors import UserError


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


class Recording(RandomSearch):
    """Random search that records what it sees."""

    seen: ClassVar[list[Sequence[Observation]]] = []

    def suggest(self, context: SuggestionContext) -> Suggestion:
        self.seen.append(context.observations)
        return Suggestion(super().suggest(context).decisions, algorithm_state={'n': '1'})


def conditional(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical('kind', ['adam', 'sgd'])
    rate = trial.suggest_float(f'{kind}.rate', 1e-4, 1.0, log=True)
    loss = 0.0 if kind == 'sgd' else 0.5
    for i in range(trial.suggest_int('depth', 1, 3)):
        loss += abs(trial.suggest_float(f'x{i}', -1.0, 1.0) - 0.3)
    return loss + rate


def params(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials]


@pytest.mark.slow
def test_the_same_seed_makes_the_same_trials_across_a_reload_of_the_storage(
    tmp_path: Path,
) -> None:
    whole = optuna.create_study(sampler=PaxtuneSampler(seed=3))
    whole.optimize(conditional, n_trials=14)
    storage = f'sqlite:///{tmp_path}/optuna.db'
    for count in (8, 6):
        study = optuna.create_study(
            storage=storage, study_name='s', load_if_exists=True, sampler=PaxtuneSampler(seed=3)
        )
        study.optimize(conditional, n_trials=count)
    assert params(study) == params(whole)
    other = optuna.create_study(sampler=PaxtuneSampler(seed=4))
    other.optimize(conditional, n_trials=2)
    assert params(other) != params(whole)[:2]


@pytest.mark.slow
def test_conditional_parameters_are_suggested_together() -> None:
    class Counting(PaxtuneSampler):
        drawn: ClassVar[list[int]] = []

        def sample_independent(
            self,
            study: optuna.Study,
            trial: optuna.trial.FrozenTrial,
            param_name: str,
            param_distribution: BaseDistribution,
        ) -> Any:
            self.drawn.append(trial.number)
            return super().sample_independent(study, trial, param_name, param_distribution)

    study = optuna.create_study(sampler=Counting(seed=1))
    study.optimize(conditional, n_trials=25)
    assert Counting.drawn[0] == 0
    assert sum(number >= 10 for number in Counting.drawn) <= 2
    assert study.best_value < 0.2


def test_failed_and_constrained_trials_are_infeasible_and_pruned_ones_count() -> None:
    study = optuna.create_study(direction='maximize', sampler=PaxtuneSampler(Recording(), seed=0))

    def ask(x: float) -> optuna.Trial:
        study.enqueue_trial({'x': x})
        trial = study.ask()
        trial.suggest_float('x', 0.0, 1.0)
        return trial

    study.tell(ask(0.1), 2.0)
    pruned = ask(0.2)
    pruned.report(7.0, step=1)
    study.tell(pruned, state=TrialState.PRUNED)
    study.tell(ask(0.3), state=TrialState.PRUNED)
    study.tell(ask(0.4), state=TrialState.FAIL)
    violated = ask(0.5)
    violated.set_constraint('memory', 1.0)
    study.tell(violated, 9.0)
    study.tell(ask(0.6), float('inf'))
    ask(0.7)
    Recording.seen.clear()
    study.ask()
    domains = {'x': study.trials[0].distributions['x']}
    study.sampler.sample_relative(study, study.trials[-1], domains)
    found = {
        next(iter(each.decisions.values())): (each.id, each.state, each.scores)
        for each in Recording.seen[0]
    }
    assert found == {
        0.1: (1, 'completed', (2.0,)),
        0.2: (2, 'completed', (7.0,)),
        0.3: (3, 'infeasible', ()),
        0.4: (4, 'infeasible', ()),
        0.5: (5, 'infeasible', ()),
        0.6: (6, 'infeasible', ()),
        0.7: (7, 'pending', ()),
    }


def test_running_trials_are_pending_with_suggested_parameters_and_state_comes_back() -> None:
    study = optuna.create_study(sampler=PaxtuneSampler(Recording(), seed=0))
    study.optimize(lambda trial: trial.suggest_float('x', 0.0, 1.0), n_trials=1)
    running = study.ask()
    suggested = running.relative_params
    Recording.seen.clear()
    assert study.ask().relative_params != suggested
    pending = Recording.seen[0][-1]
    assert (pending.id, pending.state) == (2, 'pending')
    assert list(pending.decisions.values()) == list(suggested.values())
    assert pending.algorithm_state == {'n': '1'}


def test_parallel_trials_differ() -> None:
    study = optuna.create_study(sampler=PaxtuneSampler(seed=0))
    study.optimize(conditional, n_trials=12, n_jobs=2)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 12
    assert len({str(each) for each in params(study)}) == 12


@pytest.mark.slow
def test_regions_where_trials_fail_are_avoided() -> None:
    study = optuna.create_study(sampler=PaxtuneSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float('x', 0.0, 1.0)
        if x > 0.6:
            raise MemoryError
        return 1.0 - x

    study.optimize(objective, n_trials=25, catch=MemoryError)
    failed = [trial for trial in study.trials[10:] if trial.state is TrialState.FAIL]
    assert len(failed) <= 8
    assert study.best_value < 0.45


def test_several_objectives_and_algorithms_by_name() -> None:
    def two(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float('x', 0.0, 1.0)
        return x, -x * trial.suggest_int('n', 1, 8)

    study = optuna.create_study(directions=['minimize', 'maximize'], sampler=PaxtuneSampler(seed=0))
    study.optimize(two, n_trials=6)
    assert len(study.trials) == 6
    study.sampler = PaxtuneSampler('cmaes', seed=0)
    with pytest.raises(UserError, match='CMAES needs one reward; there are 2'):
        study.optimize(two, n_trials=1)
    for name in ('cmaes', 'regularized_evolution', 'quasi_random', 'default'):
        single = optuna.create_study(sampler=PaxtuneSampler(name, seed=0))
        single.optimize(lambda trial: sum(two(trial)), n_trials=4)
        assert len(single.trials) == 4
    with pytest.raises(UserError, match='algorithm=annealing: expected one of'):
        PaxtuneSampler('annealing')


def test_points_repeat_once_all_were_tried() -> None:
    study = optuna.create_study(sampler=PaxtuneSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_int('n', 1, 4), n_trials=7)
    assert {trial.params['n'] for trial in study.trials[:4]} == {1, 2, 3, 4}
    assert len(study.trials) == 7


def test_a_message_without_the_extra() -> None:
    code = """
import sys
sys.modules['optuna'] = None
from trainer.symbolic.errors import UserError
try:
    import paxtune.integrations.optuna
except UserError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert found.stdout == "PaxtuneSampler needs optuna: pip install 'paxtune[optuna]'\n"
