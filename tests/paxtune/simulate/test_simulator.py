"""Simulated studies: what they decide, what it costs, and that real ones decide the same."""

import collections
from collections.abc import Iterable
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms import (
    Algorithm,
    Grid,
    QuasiRandom,
    RandomSearch,
    RegularizedEvolution,
    SuggestionContext,
)
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import Reward
from paxtune.schedulers import (
    Adaptive,
    Asha,
    Fork,
    Hyperband,
    MedianStopping,
    Pause,
    PopulationBasedTraining,
    Promote,
    PromotingAsha,
    RankStopping,
    Scheduler,
    Stop,
    TrialCurve,
)
from paxtune.schedulers.base import Curves
from paxtune.simulate.result import Run
from paxtune.simulate.simulator import simulate
from paxtune.simulate.table import Answers, CurveTable
from paxtune.storage.open_study import open_study
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from tests.factories.curve_tables import STEPS, table
from tests.properties import examples
from trainer.symbolic.errors import UserError

TABLE = table()
SCHEDULERS: list[Scheduler] = [
    MedianStopping(min_trials=3),
    RankStopping(milestones=[[2, 0.5, 2], [5, 0.5, 2]]),
    Asha(min_resource=1, max_resource=STEPS),
    PromotingAsha(min_resource=1, max_resource=STEPS),
    Hyperband(min_resource=1, max_resource=STEPS),
    PopulationBasedTraining(population_size=6, interval=2),
]
ADAPTIVE = Adaptive(min_resource=1, max_resource=STEPS)
NAMES = [type(scheduler).__name__ for scheduler in SCHEDULERS]


# --- As a study ---


def driven(
    made: CurveTable, scheduler: Scheduler | None, algorithm: Algorithm, count: int
) -> Study:
    """A real study, its trials run one after another, with the curves of a table."""
    space = pg.Dict(rate=_range(made, 0), momentum=_range(made, 1))
    search = Search(made.reward, Budget(count), algorithm, scheduler)
    study = open_study(None, space, search=search)
    answers, rows = made.start(), dict[int, int]()
    while (trial := study.ask()) is not None:
        _train(study, trial, made, answers, rows)
    return study


def _range(made: CurveTable, index: int) -> Any:
    point = made.spec.elements[index]
    return pg.floatv(point.min_value, point.max_value, point.scale)


def _train(
    study: Study, trial: RunningTrial, made: CurveTable, answers: Answers, rows: dict[int, int]
) -> None:
    """Trains a trial as a tuner does, from where it was paused or forked."""
    parent, begins = trial.lineage.forked_from or (None, 0)
    if trial.id not in rows:
        rows[trial.id] = answers.take(trial.view.by_id, after=None if parent is None else begins)
    row = made.rows[rows[trial.id]]
    measured: dict[int, Any] = {each.step: each.reward for each in row.measurements}
    if parent is not None:
        known = study.trial(parent).measurements
        measured[begins] = next(each.reward for each in known if each.step == begins)
    for step in range(trial.view.record.paused_at or begins or 1, int(row.steps) + 1):
        if step not in measured:
            trial.fail('it diverged')
            return
        trial.report(step, {'reward': measured[step]})
        if step == row.steps:
            break
        decision = study.decide(trial)
        if isinstance(decision, Pause):
            trial.pause(step, decision.reason)
            return
        if isinstance(decision, Stop):
            trial.stop(decision.reason)
            return
    trial.complete()


def observed(trials: Iterable[Trial]) -> list[tuple[Any, ...]]:
    """All that was decided."""
    return [
        (
            trial.by_id,
            trial.status,
            trial.reward,
            tuple(trial.record.pauses),
            trial.lineage.forked_from,
            trial.lineage.replaces,
            trial.stop_reason,
            [(m.step, m.reward) for m in trial.measurements],
        )
        for trial in trials
    ]


def told(run: Run) -> list[tuple[Any, ...]]:
    return observed(each.trial for each in run.trials)


def assert_as_a_study(
    made: CurveTable, scheduler: Scheduler | None, algorithm: Algorithm, count: int
) -> None:
    run = simulate(made, scheduler, algorithm, num_trials=count)
    with driven(made, scheduler, algorithm, count) as study:
        assert told(run) == observed(study.trials)


@pytest.mark.parametrize('scheduler', [None, *SCHEDULERS], ids=['none', *NAMES])
@pytest.mark.parametrize('seed', [0, 1])
def test_one_worker_decides_as_a_study_does(scheduler: Scheduler | None, seed: int) -> None:
    assert_as_a_study(table(seed=seed), scheduler, RandomSearch(), 16)


def test_learning_algorithms_observe_the_same_as_in_a_study() -> None:
    algorithm = RegularizedEvolution(population_size=4, tournament_size=2)
    assert_as_a_study(TABLE, PromotingAsha(min_resource=1, max_resource=STEPS), algorithm, 16)


def test_the_last_new_trial_begins_before_another_is_promoted() -> None:
    assert_as_a_study(TABLE, ADAPTIVE, RandomSearch(), 40)


def test_paused_trials_of_an_exhausted_space_end() -> None:
    assert_as_a_study(TABLE, ADAPTIVE, Grid(), 40)
    states = simulate(TABLE, ADAPTIVE, Grid(), num_trials=40, workers=4).outcomes()
    assert {*states} <= {'completed', 'stopped', 'infeasible'}


# --- By itself ---


@pytest.mark.parametrize('workers', [1, 5])
@pytest.mark.parametrize('scheduler', [None, *SCHEDULERS], ids=['none', *NAMES])
def test_the_same_arguments_give_the_same_run(scheduler: Scheduler | None, workers: int) -> None:
    first, again = (
        simulate(TABLE, scheduler, QuasiRandom(), num_trials=20, workers=workers, seed=3)
        for _ in range(2)
    )
    assert told(first) == told(again)
    assert (first.compute, first.time, first.progress) == (
        again.compute,
        again.time,
        again.progress,
    )


@examples(25)
@given(
    index=st.integers(0, len(SCHEDULERS) - 1),
    workers=st.integers(1, 12),
    num_trials=st.integers(1, 30),
    seed=st.integers(0, 100),
)
def test_every_trial_ends_once_with_any_number_of_workers(
    index: int, workers: int, num_trials: int, seed: int
) -> None:
    run = simulate(
        TABLE, SCHEDULERS[index], RandomSearch(), num_trials=num_trials, workers=workers, seed=seed
    )
    assert len(run.trials) <= num_trials
    assert len({trial.row for trial in run.trials}) == len(run.trials)
    assert {trial.trial.status for trial in run.trials} <= {'completed', 'stopped', 'infeasible'}
    assert run.compute == pytest.approx(sum(trial.compute for trial in run.trials))
    assert run.time <= run.compute + 1e-9 <= workers * run.time + 2e-9
    rewards = [each.reward for each in run.progress]
    assert rewards == sorted(rewards, reverse=True)
    for trial, row in ((each.trial, TABLE.rows[each.row]) for each in run.trials):
        if trial.status == 'completed':
            assert trial.reward == row.end
            assert trial.measurements[-1].step == row.steps
        if trial.lineage.forked_from is None:
            own = [each for each in row.measurements if each.step <= trial.measurements[-1].step]
            assert [(m.step, m.reward) for m in trial.measurements] == [
                (m.step, m.reward) for m in own
            ]


def test_full_runs_cost_what_was_recorded() -> None:
    run = simulate(TABLE, None, RandomSearch(), num_trials=40, workers=8)
    assert run.compute == sum(row.resources['seconds'][-1] for row in TABLE.rows)
    assert run.outcomes() == {'completed': 35, 'infeasible': 5}
    assert run.best == TABLE.best and run.regret == 0.0


def test_a_diverging_trial_costs_until_it_diverges_and_is_not_stopped() -> None:
    run = simulate(TABLE, MedianStopping(min_trials=2), RandomSearch(), num_trials=40)
    diverged = [each for each in run.trials if each.trial.status == 'infeasible']
    assert diverged and all(each.trial.reward is None for each in diverged)
    for trial in diverged:
        assert trial.compute == TABLE.rows[trial.row].resources['seconds'][-1]


def test_a_promoted_trial_is_paid_for_once() -> None:
    run = simulate(TABLE, SCHEDULERS[3], RandomSearch(), num_trials=30, workers=4)
    promoted = [each for each in run.trials if len(each.trial.record.pauses) == 2]
    assert any(each.trial.status == 'completed' for each in promoted)
    for each in promoted:
        if each.trial.status != 'infeasible':
            assert each.compute == pytest.approx(0.5 * each.trial.measurements[-1].step)


def test_a_fork_goes_on_where_its_parent_was() -> None:
    run = simulate(TABLE, SCHEDULERS[-1], RandomSearch(), num_trials=12)
    trials = [each.trial for each in run.trials]
    forks = [each for each in run.trials if each.trial.lineage.forked_from is not None]
    assert forks
    for fork, lineage in ((each.trial, each.trial.lineage) for each in forks):
        assert lineage.forked_from is not None and lineage.replaces is not None
        parent, step = trials[lineage.forked_from[0] - 1], lineage.forked_from[1]
        replaced = trials[lineage.replaces - 1]
        assert step in parent.record.pauses
        assert fork.measurements[0] in parent.measurements
        assert fork.measurements[0].step == step
        assert (replaced.status, replaced.reason) == ('stopped', f'replaced by trial {fork.id}')
        if fork.status != 'infeasible':
            cost = run.trials[fork.id - 1].compute
            assert cost == pytest.approx(0.5 * (fork.measurements[-1].step - step))


def test_workers_share_the_work() -> None:
    alone, many = (
        simulate(TABLE, None, RandomSearch(), num_trials=32, workers=workers) for workers in (1, 8)
    )
    assert alone.time == alone.compute == many.compute
    assert many.time < alone.time / 6


def test_a_target_ends_the_run() -> None:
    full = simulate(TABLE, None, RandomSearch(), num_trials=40)
    target = full.progress[1].reward
    run = simulate(TABLE, None, RandomSearch(), num_trials=40, target=target)
    assert run.best == target
    assert run.compute == full.compute_to(target) == full.progress[1].compute
    assert full.compute_to(-100.0) is None
    cut = simulate(
        TABLE, Asha(min_resource=1), RandomSearch(), num_trials=40, workers=4, target=2.0
    )
    assert cut.compute == pytest.approx(sum(trial.compute for trial in cut.trials))


def test_rungs_have_rank_correlations_with_the_ends() -> None:
    run = simulate(TABLE, Asha(min_resource=1), RandomSearch(), num_trials=40)
    rungs = run.rungs()
    assert [rung.step for rung in rungs] == [1, 3]
    stopped = [each.trial for each in run.trials if each.trial.status == 'stopped']
    by_step = collections.Counter(each.measurements[-1].step for each in stopped)
    assert {rung.step: rung.cut for rung in rungs} == by_step
    assert rungs[0].trials == 35, 'the ends of those that were stopped are known, too'
    assert rungs[0].correlation is not None and rungs[0].correlation > 0.9


def test_missing_units_and_rows_are_refused() -> None:
    with pytest.raises(UserError, match='in tokens'):
        simulate(TABLE, Asha(min_resource=1, unit='tokens'), RandomSearch(), num_trials=4)
    with pytest.raises(UserError, match='41 trials'):
        simulate(TABLE, None, RandomSearch(), num_trials=41)


def test_resources_may_be_counted_in_seconds() -> None:
    scheduler = Asha(min_resource=0.5, max_resource=4.5, unit='seconds')
    run = simulate(TABLE, scheduler, RandomSearch(), num_trials=20)
    by_steps = simulate(TABLE, Asha(min_resource=1), RandomSearch(), num_trials=20)
    assert [each[-1] for each in told(run)] == [each[-1] for each in told(by_steps)]


class Mistaken(Scheduler):
    """Promotes a trial that was never added, or forks one at a step without a pause."""

    pauses = forks = True

    is_forking: bool

    def _decide(self, curve: TrialCurve, others: Curves, reward: Reward | None) -> Pause:
        return Pause('why')

    def next_action(
        self, curves: Curves, reward: Reward | None, context: SuggestionContext, may_begin: bool
    ) -> Promote | Fork | None:
        if not curves:
            return None
        return (
            Fork(1, 99, dict(curves[0].decisions), 1, 'why')
            if self.is_forking
            else Promote(2, 'why')
        )


@pytest.mark.parametrize(
    ('is_forking', 'message'),
    [
        (False, 'the scheduler goes on with trial 2, which is not paused'),
        (True, 'the scheduler forks trial 1 where it was not paused'),
    ],
)
def test_an_impossible_decision_of_a_scheduler_is_refused(is_forking: bool, message: str) -> None:
    scheduler = Mistaken(is_forking=is_forking)
    with pytest.raises(ValueError, match=message):
        simulate(TABLE, scheduler, RandomSearch(), num_trials=4)
    with pytest.raises(ValueError, match=message):
        driven(TABLE, scheduler, RandomSearch(), 4)
