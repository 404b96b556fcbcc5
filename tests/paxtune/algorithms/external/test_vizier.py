"""Vizier's algorithms, and a user's designer, as algorithms of a study."""

import dataclasses
import json
import random
import sys
import time

import jax
import jax.numpy as jnp
import pyglove as pg
import pytest
from vizier import algorithms as vza
from vizier import pyvizier as vz

from paxtune.algorithms import Eagle, Observation, VizierDesigner
from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.external.vizier_problem import FlatProblem
from tests.conformance.algorithm_suite import (
    SPACES,
    ask,
    check_algorithm,
    conditional,
    log_range,
    past,
    run,
    searched,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

pytestmark = pytest.mark.contract

RANDOM = 'vizier._src.algorithms.designers.random.RandomDesigner'
GP_BANDIT = 'vizier._src.algorithms.designers.gp_bandit.VizierGPBandit'
GP_UCB_PE = 'vizier._src.algorithms.designers.gp_ucb_pe.VizierGPUCBPEBandit'


class Recorder(vza.Designer):
    """Suggests the middle of the space, and records the trials that it gets."""

    shown: list['Recorder'] = []

    def __init__(self, problem: vz.ProblemStatement, seed: int, note: str = ''):
        self.problem, self.seed, self.note = problem, seed, note
        self.shown.append(self)

    def update(self, completed: vza.CompletedTrials, all_active: vza.ActiveTrials) -> None:
        self.completed, self.active = completed.trials, all_active.trials

    def suggest(self, count: int | None = None) -> list[vz.TrialSuggestion]:
        number = len(self.completed) + len(self.active)
        suggestion = vz.TrialSuggestion({'rate': 10.0 ** -(2 + number / 10), 'width': 32.0})
        suggestion.metadata.ns('mine')['note'] = self.note
        return [suggestion]


class Picky(Recorder):
    """A designer that raises."""

    def update(self, completed: vza.CompletedTrials, all_active: vza.ActiveTrials) -> None:
        raise ValueError('too many categories')


def recorder(problem: vz.ProblemStatement) -> Recorder:
    return Recorder(problem, 0)


def unsaid(problem):
    return Recorder(problem, 0)


@pytest.mark.parametrize('make', SPACES)
def test_flat_problems_round_trip_decisions(make):
    spec, rng = pg.dna_spec(make()), random.Random(0)
    problem = FlatProblem(spec, 2)
    assert not problem.statement.search_space.is_conditional
    assert [m.name for m in problem.statement.metric_information] == ['objective_0', 'objective_1']
    for _ in range(10):
        decisions = draw(spec, rng)
        parameters = problem.parameters(decisions)
        problem.statement.search_space.assert_contains(vz.ParameterDict(parameters))
        assert problem.decisions(parameters) == pytest.approx(decisions)


@pytest.mark.parametrize(
    'hyper',
    [
        pg.floatv(-1e301, 1e301),
        pg.floatv(5e-324, 1e301, 'log'),
        pg.floatv(0.0, 1e301),
        pg.floatv(1e6, 1e6 + 1e-6),
    ],
    ids=['both signs', 'widest', 'wide', 'narrow'],
)
def test_ranges_beyond_single_precision_are_searched(hyper):
    history = run(Eagle(), pg.dna_spec(pg.Dict(x=hyper, y=pg.floatv(0.0, 1.0))), 4)
    found = {trial.decisions['x'] for trial in history}
    assert len(found) == 4
    assert all(hyper.min_value <= each <= hyper.max_value for each in found)


def test_invalid_suggestions_of_a_designer_are_repaired():
    spec = pg.dna_spec(pg.Dict(some=pg.manyof(2, ['a', 'b', 'c']), fixed=pg.oneof([7])))
    problem = FlatProblem(spec, 1)
    assert list(problem.parameters({'some[0]': 0, 'some[1]': 2, 'fixed': 0})) == [
        'some[0]',
        'some[1]',
    ]
    assert problem.decisions({'some[0]': '2', 'some[1]': '2'}) == {
        'some[0]': 2,
        'some[1]': 0,
        'fixed': 0,
    }


def _measured(trial: vz.Trial) -> dict[str, vz.Metric]:
    assert trial.final_measurement is not None
    return dict(trial.final_measurement.metrics)


def test_a_designer_sees_the_trials():
    spec = pg.dna_spec(log_range())
    algorithm = VizierDesigner(f'{__name__}.Recorder', {'note': 'hello'})
    first = ask(algorithm, spec, [])
    assert first.decisions == {'rate': pytest.approx(0.01), 'width': 1}
    completed = past(1, first)
    history = [
        Observation(0, {'rate': 0.1, 'width': 0}, 'completed', (2.5,)),
        completed,
        Observation(2, {'rate': 0.05, 'width': 2}, 'infeasible'),
        Observation(3, {'rate': 0.04, 'width': 3}, 'pending'),
    ]
    Recorder.shown.clear()
    ask(algorithm, spec, history)
    ask(algorithm, spec, history, seed=1)
    seen, other = Recorder.shown
    assert seen.seed != other.seed
    assert [trial.id for trial in seen.completed] == [1, 2, 3]
    assert [trial.infeasible for trial in seen.completed] == [False, False, True]
    assert seen.completed[1].metadata.ns('mine')['note'] == 'hello'
    assert _measured(seen.completed[0])['objective_0'].value == 2.5
    assert _measured(seen.completed[1])['objective_0'].value == completed.scores[0]
    times = [trial.completion_time for trial in seen.completed if trial.completion_time]
    assert len(times) == 3
    assert times == sorted(set(times))
    (pending,) = seen.active
    assert pending.parameters.as_dict() == {'rate': 0.04, 'width': 128}
    goals = {metric.goal for metric in seen.problem.metric_information}
    assert goals == {vz.ObjectiveMetricGoal.MAXIMIZE}


def test_several_rewards_are_several_metrics():
    spec = pg.dna_spec(log_range())
    algorithm = VizierDesigner(f'{__name__}.Recorder')
    history = [Observation(1, {'rate': 0.1, 'width': 0}, 'completed', (1.0, 2.0))]
    Recorder.shown.clear()
    ask(algorithm, spec, history)
    (measured,) = Recorder.shown[0].completed
    assert {name: metric.value for name, metric in _measured(measured).items()} == {
        'objective_0': 1.0,
        'objective_1': 2.0,
    }


def test_functions_may_return_a_designer():
    spec = pg.dna_spec(log_range())
    algorithm = VizierDesigner(f'{__name__}.recorder')
    algorithm.check_space(spec, 1)
    assert ask(algorithm, spec, []).decisions['width'] == 1


@pytest.mark.parametrize(
    ('designer', 'message'),
    [
        ('os.system', r'^search.algorithm.designer: os.system is no Designer'),
        ('vizier._src.algorithms.nothing.X', 'has no nothing'),
        (f'{__name__}.unsaid', 'nor a function with this return type'),
        ('my_designers.Mine', 'its module is not imported'),
        ('vizier._src.algorithms.designers.bocs.BOCSDesigner', 'cannot be imported'),  # No cvxpy.
        (
            f'{__name__}.Picky',
            'cannot search this space: ValueError: too many categories. Use RandomSearch',
        ),
    ],
)
def test_a_wrong_designer_is_refused_before_the_first_trial(designer, message):
    with pytest.raises(UserError, match=message):
        VizierDesigner(designer).check_space(pg.dna_spec(conditional()), 1)


def test_a_missing_reward_is_rejected():
    with pytest.raises(UserError, match='needs a reward'):
        VizierDesigner(RANDOM).check_space(pg.dna_spec(log_range()), 0)


@pytest.mark.parametrize('algorithm', [Eagle(), VizierDesigner(GP_BANDIT)])
def test_without_their_extra_designers_name_it_before_the_first_trial(algorithm, monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_probability', None)  # As if not installed.
    message = r"needs tensorflow_probability: pip install 'paxtune\[vizier\]'"
    with pytest.raises(UserError, match=message):
        algorithm.check_space(pg.dna_spec(log_range()), 1)


@pytest.mark.pax("Vizier's algorithms")
@pytest.mark.slow
def test_a_vizier_designer_conforms():
    check_algorithm(VizierDesigner(RANDOM))


@pytest.mark.slow
def test_eagle_conforms():
    check_algorithm(Eagle())


def test_eagle_moves_to_the_best_trials():
    spec = pg.dna_spec(pg.Dict(x=pg.floatv(1e-4, 1.0, 'log'), y=intv(1, 64)))
    history = searched(Eagle(), spec, lambda made: -abs(made['y'] - 20) / 64, 80)
    late = sum(trial.scores[0] for trial in history[-20:]) / 20
    early = sum(trial.scores[0] for trial in history[:12]) / 12
    assert late > 0.5 * early


def test_eagle_restores_its_pool_from_the_last_trial():
    """The pool is stored: other earlier trials have no effect."""
    spec = pg.dna_spec(conditional())
    history = run(Eagle(), spec, 30)
    history += [
        dataclasses.replace(past(i, ask(Eagle(), spec, history)), id=i, state='pending', scores=())
        for i in (31,)
    ]
    swarm = json.loads(history[-1].algorithm_state['pool'])
    needed = {fly[1] for fly in swarm['flies']} | {29, 30, 31}
    fewer = [trial for trial in history if trial.id in needed]
    assert len(fewer) < len(history)
    assert ask(Eagle(), spec, fewer) == ask(Eagle(), spec, history)


def test_eagle_tolerates_missing_trials():
    spec = pg.dna_spec(log_range())
    history = run(Eagle(), spec, 20, infeasible=0.0)
    best = max(history, key=lambda trial: trial.scores)
    suggestion = ask(Eagle(), spec, [trial for trial in history if trial != best])
    assert json.loads(suggestion.algorithm_state['pool'])['flies']


def test_eagle_is_fast_after_a_thousand_trials():
    spec = pg.dna_spec(pg.Dict({f'x{i}': pg.floatv(0.0, 1.0) for i in range(20)}))
    rng = random.Random(0)
    history = [
        Observation(i + 1, draw(spec, rng), 'completed', (rng.random(),)) for i in range(900)
    ]
    suggestion = ask(Eagle(), spec, history)
    history.append(past(901, suggestion))
    history += [
        Observation(i, draw(spec, rng), 'infeasible', algorithm_state=suggestion.algorithm_state)
        for i in range(902, 1001)
    ]
    begin = time.process_time()
    suggestion = ask(Eagle(), spec, history)
    assert time.process_time() - begin < 0.2
    assert len(suggestion.algorithm_state['pool']) < 4000


def test_the_jax_configuration_is_restored():
    before = dict(jax.config.values)
    spec = pg.dna_spec(log_range())
    ask(VizierDesigner(RANDOM), spec, [])
    ask(Eagle(), spec, run(Eagle(), spec, 3))
    assert dict(jax.config.values) == before
    assert jnp.ones(()).dtype == jnp.float32


class Careless(Recorder):
    """A designer that changes JAX's configuration, as some of Vizier's modules do."""

    def suggest(self, count: int | None = None) -> list[vz.TrialSuggestion]:
        jax.config.update('jax_enable_x64', True)
        assert jnp.ones(()).dtype == jnp.float64
        return super().suggest(count)


def test_changes_of_the_jax_configuration_are_undone():
    ask(VizierDesigner(f'{__name__}.Careless'), pg.dna_spec(log_range()), [])
    assert not jax.config.values['jax_enable_x64']
    assert jnp.ones(()).dtype == jnp.float32


@pytest.mark.pax("Vizier's algorithms, natively")
@pytest.mark.slow
def test_a_gaussian_process_of_vizier_suggests():
    before = dict(jax.config.values)
    spec = pg.dna_spec(conditional())
    algorithm = VizierDesigner(GP_UCB_PE)
    algorithm.check_space(spec, 1)
    history = run(VizierDesigner(RANDOM), spec, 4)
    decisions = ask(algorithm, spec, history).decisions
    assert decisions == ask(algorithm, spec, history).decisions
    assert dict(jax.config.values) == before
    assert jnp.ones(()).dtype == jnp.float32
