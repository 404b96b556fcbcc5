"""Costs of trials before their first step, and trials that cost too much."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    Algorithm,
    RandomSearch,
    Suggestion,
    SuggestionContext,
)
from paxtune.algorithms.encoding.sampling import draw
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.experiment import Tunable
from paxtune.objectives.limits import Limit
from paxtune.objectives.metrics import Metric
from paxtune.objectives.rewards import MetricReward, Objectives
from paxtune.running.experiment_runner import ExperimentRunner
from paxtune.running.runner import Refusal
from paxtune.running.trial_spec import TrialSpec
from paxtune.running.tuner import Tuner
from paxtune.search_space.space import Space
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.feasibility import Feasibility
from tests.factories import tunables
from tests.factories.studies import beyond, never_trained
from tests.factories.tiny import VOCAB, experiment
from trainer.program import costs
from trainer.program.costs import memory_cost

HIDDEN = 'task.model.stack.layers[0].feed_forward.hidden_dims'


def widths(**search: Any) -> Tunable:
    """Two widths; the wider one has more parameters and needs more memory."""
    made = Tunable(
        **dict(experiment(num_steps=2).sym_init_args),
        search=Search(MetricReward('minimize', 'eval/log_pplx'), budget=Budget(2), **search),
    )
    made.rebind({HIDDEN: pg.oneof([32, 512])})
    return made


def costs_of(hidden: int, name: str) -> float:
    made = experiment(num_steps=2)
    made.rebind({HIDDEN: hidden})
    return memory_cost(made)[name]


def test_a_limit_on_parameters_keeps_the_algorithm_from_suggesting(tmp_path: Path) -> None:
    made = widths(limits=[Limit(metric='num_params', at_most=5000)])
    with tune(made, job_log_dir=tmp_path) as study:
        assert [trial.decisions[HIDDEN] for trial in study.trials] == [32]
        assert study.done_reason == 'there are no more than 1 different experiment in its space'
    with load_study(tmp_path) as loaded:
        assert loaded.is_done


@pytest.mark.slow
def test_a_limit_on_memory_makes_a_trial_infeasible_without_a_step(tmp_path: Path) -> None:
    name = 'device_memory_bytes'
    between = (costs_of(32, name) + costs_of(512, name)) / 2
    made = widths(limits=[Limit(metric=name, at_most=between)])
    with tune(made, job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].state == 'COMPLETED'
        assert by_width[32].metrics[name] < between
        assert str(by_width[512].reason).startswith('device_memory_bytes is ')
        assert never_trained(study, by_width[512])


@pytest.mark.slow
def test_a_trial_beyond_the_device_memory_is_infeasible_without_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = 'device_memory_bytes'
    between = int((costs_of(32, name) + costs_of(512, name)) / 2)
    # A CPU does not say how much memory it has.
    monkeypatch.setattr('trainer.program.costs.device_memory_limit', lambda: between)
    with tune(widths(), job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].state == 'COMPLETED'
        assert 'GiB of device memory, and the device has' in str(by_width[512].reason)
        assert never_trained(study, by_width[512])
        assert not by_width[512].is_failed


class Careless(Algorithm):
    """Draws without a look at what is infeasible."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        return Suggestion(draw(context.spec, context.rng()))


WIDTHS = [16, 32, 64, 128, 256, 512]


def parameters(made: Any) -> int:
    """Counted by hand: embedding, norms, attention, feed-forward layer."""
    width, hidden = 16, made.task.model.stack.layers[0].feed_forward.hidden_dims
    return VOCAB * width + 3 * width + 4 * width**2 + 2 * width * hidden


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', [Careless(), RandomSearch()], ids=['careless', 'random'])
def test_no_trial_over_the_limit_trains_a_step(algorithm: Algorithm, tmp_path: Path) -> None:
    at_most = 4000
    made = widths(limits=[Limit('num_params', at_most=at_most)], algorithm=algorithm)
    made.rebind(
        {
            HIDDEN: pg.oneof(WIDTHS),
            'task.learner.learning_rate': pg.floatv(1e-3, 1e-1, 'log'),
            'search.budget.trials': 6,
        }
    )
    with tune(made, job_log_dir=tmp_path) as study:
        assert len(study.trials) == 6
        too_large = beyond(study, parameters, at_most)
        for trial in too_large:
            assert trial.state == 'INFEASIBLE'
            assert str(trial.reason).startswith('num_params is ')
            assert never_trained(study, trial)
        kept = [trial for trial in study.trials if trial not in too_large]
        assert {trial.state for trial in kept} == {'COMPLETED'}
        assert all(trial.metrics['num_params'] == parameters(trial.materialize()) for trial in kept)
        assert not any(never_trained(study, trial) for trial in kept)
        # What looks at the limits beforehand wastes no trial on them.
        assert bool(too_large) == isinstance(algorithm, Careless)


@pytest.mark.slow
def test_a_limit_on_the_state_keeps_the_algorithm_from_suggesting(tmp_path: Path) -> None:
    wide = experiment()
    wide.rebind({HIDDEN: 512})
    most = 4 * 3 * parameters(wide)  # AdamW, whose counters come on top.
    made = widths(limits=[Limit(Metric.state_bytes(), at_most=most)])
    with tune(made, job_log_dir=tmp_path) as study:
        assert [trial.decisions[HIDDEN] for trial in study.trials] == [32]
        assert 0 < study.trials[0].metrics['state_bytes'] < most


class Clock:
    """In place of the clock: a step takes a millisecond for each hidden unit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timed: list[int] = []
        monkeypatch.setattr(costs, 'step_cost', self._step_cost)

    def _step_cost(self, made: Any) -> dict[str, float]:
        self.timed.append(made.task.model.stack.layers[0].feed_forward.hidden_dims)
        return {'step_seconds': self.timed[-1] / 1000 + len(self.timed) / 10**6}


def test_a_limit_on_the_step_makes_a_trial_infeasible_without_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    made = widths(limits=[Limit('step_seconds', at_most=0.1)])
    with tune(made, job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].state == 'COMPLETED'
        assert [each.metrics['step_seconds'] for each in by_width[32].measurements] == [
            pytest.approx(0.032, abs=1e-4)
        ]
        reason = str(by_width[512].reason)
        assert reason.startswith('step_seconds is 0.512')
        assert reason.endswith(', above its limit of 0.1')
        assert never_trained(study, by_width[512])
        assert not by_width[512].is_failed
    assert sorted(clock.timed) == [32, 512]


@pytest.mark.slow
def test_a_measured_step_time_beyond_its_limit_ends_a_trial(tmp_path: Path) -> None:
    made = widths(limits=[Limit(Metric.step_seconds(), at_most=1e-9)])
    with tune(made, job_log_dir=tmp_path) as study:
        assert len(study.trials) == 2
        for trial in study.trials:
            assert str(trial.reason).startswith('step_seconds is ')
            assert never_trained(study, trial)


@pytest.mark.slow
def test_infeasible_trials_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    name = 'device_memory_bytes'
    between = (costs_of(32, name) + costs_of(512, name)) / 2
    limits = [Limit('step_seconds', at_most=1.0), Limit(name, at_most=between)]
    with tune(widths(limits=limits), job_log_dir=tmp_path) as study:
        assert sorted(trial.state for trial in study.trials) == ['COMPLETED', 'INFEASIBLE']
    assert clock.timed == [32]


@pytest.mark.slow
def test_steps_are_timed_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with tune(widths(), job_log_dir=tmp_path) as study:
        assert all('step_seconds' not in trial.metrics for trial in study.trials)
    assert not clock.timed


@pytest.mark.slow
def test_the_step_time_can_be_an_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    made = widths()
    seconds = MetricReward('minimize', Metric.step_seconds())
    made.rebind({'search.objective': Objectives([MetricReward('maximize', 'num_params'), seconds])})
    with tune(made, job_log_dir=tmp_path) as study:
        assert len(study.pareto_front) == 2


@pytest.mark.slow
def test_a_trial_is_timed_once_however_often_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, runner = Clock(monkeypatch), ExperimentRunner()
    made = widths(limits=[Limit('step_seconds', at_most=1.0)])
    with open_study(tmp_path, made) as study:
        trial = study.ask()
        assert trial is not None
        assert trial.view.record.costs == {}
        assert not isinstance(runner.prepare(study, trial), Refusal)
        first = trial.view.record.costs
        assert first.keys() == {''}
    with open_study(tmp_path, made) as study:
        again = study.ask()
        assert again is not None and again.id == trial.id
        assert not isinstance(runner.prepare(study, again), Refusal)
        assert again.view.record.costs == first == TrialSpec.of(study, again.view).measured
    with open_study(tmp_path, made) as study:
        Tuner(study, runner).run()
        assert study.trials[0].metrics['step_seconds'] == first['']['step_seconds']
    assert sorted(clock.timed) == [32, 512]


@pytest.mark.slow
def test_each_sub_experiment_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    total = Limit(Metric.step_seconds(aggregator='sum'), at_most=0.6)
    made = widths(limits=[total])
    made.rebind(
        {
            'sub_experiments': {'one': {}, 'other': {'train.random_seed': 7}},
            'search.objective': MetricReward(
                'minimize', Metric('eval/log_pplx', aggregator='mean')
            ),
        }
    )
    with tune(made, job_log_dir=tmp_path) as study:
        by_width = {trial.decisions[HIDDEN]: trial for trial in study.trials}
        assert by_width[32].metrics['step_seconds:one'] == pytest.approx(0.032, abs=1e-4)
        assert by_width[32].metrics['step_seconds:other'] == pytest.approx(0.032, abs=1e-4)
        reason = str(by_width[512].reason)
        assert reason.startswith('sum of step_seconds is 1.02')
        assert never_trained(study, by_width[512])
    assert sorted(clock.timed) == [32, 32, 512, 512]


@pytest.mark.slow
def test_several_threads_look_at_the_costs_of_models() -> None:
    """State of PyGlove, the trainer and JAX during tracing is thread-local."""

    def reasons(threads: int, batch_size: int) -> list[str | None]:
        # The costs of an experiment are computed once, and these two were never made before.
        made = tunables.Kinds().rebind({'train_input.batch_size': batch_size})
        space, limit = Space(made), Limit('num_params', at_most=1)
        wanted = [draw(space.spec, random.Random(seed)) for seed in range(6)]
        feasibility = Feasibility(space, made.search.rebind({'limits': [limit]}))
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(feasibility.why_infeasible, wanted))

    alone = reasons(1, batch_size=5)
    assert None not in alone and len({*alone}) > 1
    assert reasons(3, batch_size=7) == alone
