"""Functions whose trials go on from where they were paused or forked, such as in a population."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import MetricReward, tune
from paxtune.algorithms import QuasiRandom
from paxtune.schedulers import PopulationBasedTraining, PromotingAsha
from paxtune.studies.__main__ import main
from paxtune.study.study import Study
from paxtune.study.trial import Trial

SPACE = {'rate': pg.floatv(0.01, 1.0, 'log')}
LOSS = MetricReward('minimize', 'loss')
STEPS, START = 60, 10.0


def trained(loss: float, rate: float) -> float:
    """A step of SGD on a quadratic with noisy gradients: what is expected of its loss.

    Far from the optimum a large rate is best, which jumps there; near it a small one, whose noise
    is small: `loss / (loss + 1)` at every step, and no constant one is.
    """
    return (1 - rate) ** 2 * loss + rate**2


class Training:
    """Trains, and keeps what it has come to at each step, as checkpoints would."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, int], float] = {}
        self.steps_done = 0

    def __call__(self, values: Any, trial: Trial) -> Iterator[Any]:
        begun = trial.continues_from
        loss, step = (START, 0) if begun is None else (self.states[begun], begun[1])
        if begun is not None:
            self.states[trial.id, step] = loss
            yield step, {'loss': loss}
        for now in range(step + 1, STEPS + 1):
            loss = trained(loss, values.rate)
            self.steps_done += 1
            self.states[trial.id, now] = loss
            yield now, {'loss': loss}


def constant(rate: float) -> float:
    loss = START
    for _ in range(STEPS):
        loss = trained(loss, rate)
    return loss


@pytest.fixture(scope='module')
def population(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Study, Training]]:
    training = Training()
    scheduler = PopulationBasedTraining(
        population_size=8, interval=5, perturbation=2.0, resample_probability=0.0
    )
    with tune(
        training,
        space=SPACE,
        num_trials=30,
        job_log_dir=tmp_path_factory.mktemp('population'),
        objective=LOSS,
        algorithm=QuasiRandom(),
        scheduler=scheduler,
    ) as study:
        yield study, training


@pytest.mark.slow
def test_a_population_beats_the_best_constant_rate(population: tuple[Study, Training]) -> None:
    study, training = population
    # The same compute would try this number of constant rates; ten times as many are tried.
    affordable = training.steps_done // STEPS
    grid = [0.01 * 100 ** (i / (10 * affordable)) for i in range(10 * affordable + 1)]
    best = study.best
    assert best is not None and best.reward is not None
    assert best.reward < 0.8 * min(map(constant, grid))
    # Nothing was trained twice: every step of every trial once.
    assert training.steps_done == sum(
        len(trial.measurements) - (trial.lineage.forked_from is not None) for trial in study.trials
    )


def schedule(study: Study, trial: Trial) -> list[tuple[int, float]]:
    """From which step on which rate, back to where its lineage began."""
    if trial.lineage.forked_from is None:
        return [(0, trial.decisions['rate'])]
    parent, step = trial.lineage.forked_from
    return [*schedule(study, study.trial(parent)), (step, trial.decisions['rate'])]


@pytest.mark.slow
def test_its_best_schedule_decays(population: tuple[Study, Training]) -> None:
    study, _ = population
    assert study.best is not None
    found = schedule(study, study.best)
    assert len(found) >= 3
    assert found[0][1] > 4 * found[-1][1]


@pytest.mark.slow
def test_its_lineage_is_drawn(
    population: tuple[Study, Training], capsys: pytest.CaptureFixture[str]
) -> None:
    study, _ = population
    assert study.best is not None and study.best.lineage.forked_from is not None
    assert main(['lineage', str(study.directory)]) == 0
    out = capsys.readouterr().out
    parent, step = study.best.lineage.forked_from
    (line,) = [line for line in out.splitlines() if f'─ {study.best.id} completed' in line]
    assert f'from step {step} of trial {parent}' in line and ' → ' in line
    for trial in study.trials:
        if trial.lineage.forked_from is not None:
            assert f' {trial.id} {trial.status}' in out


def test_a_promoted_function_goes_on_where_it_was_paused() -> None:
    training = Training()
    scheduler = PromotingAsha(min_resource=10, max_resource=STEPS, reduction_factor=2)
    with tune(training, space=SPACE, num_trials=6, objective=LOSS, scheduler=scheduler) as study:
        assert any(len(trial.record.pauses) > 1 for trial in study.trials)
        assert training.steps_done == sum(len(trial.measurements) for trial in study.trials)
        assert study.best is not None and study.best.final is not None
        assert study.best.final.step == STEPS
        assert study.best.reward == constant(study.best.decisions['rate'])


@pytest.mark.parametrize(
    ('yielded', 'reason'),
    [
        ([(5, 1.0), (5, 1.0)], 'yields step 5 after step 5'),
        ([1.0, 1.0, (2, 1.0)], 'yields step 2 after step 2'),
        ([('5', 1.0)], 'must yield metrics, or \\(step, metrics\\)'),
        ([(1, 2, 3)], 'must yield metrics, or \\(step, metrics\\)'),
    ],
)
def test_steps_only_grow(yielded: list[Any], reason: str) -> None:
    with tune(lambda _: iter(yielded), space=SPACE, num_trials=1, objective='minimize') as study:
        (trial,) = study.trials
        assert trial.is_failed and trial.reason is not None
        assert re.search(reason, trial.reason)


def test_plain_metrics_go_on_after_a_step() -> None:
    def function(values: Any) -> Iterator[Any]:
        yield from [(10, 3.0), 2.0, {'objective': 1.0}, (20, 0.5)]

    with tune(function, space=SPACE, num_trials=1, objective='minimize') as study:
        measured = [(each.step, each.reward) for each in study.trials[0].measurements]
        assert measured == [(10, 3.0), (11, 2.0), (12, 1.0), (20, 0.5)]


def test_a_trial_continues_from_a_state(tmp_path: Path) -> None:
    seen: dict[int, list[Any]] = {}

    def function(values: Any, trial: Trial) -> Iterator[Any]:
        seen.setdefault(trial.id, []).append(trial.continues_from)
        start = trial.continues_from[1] if trial.continues_from else 1
        for step in range(start, 7):
            yield step, values.rate

    scheduler = PopulationBasedTraining(population_size=2, interval=2, resample_probability=0.0)
    with tune(
        function,
        space=SPACE,
        num_trials=3,
        objective='minimize',
        scheduler=scheduler,
        job_log_dir=tmp_path,
    ) as study:
        (fork,) = [trial for trial in study.trials if trial.lineage.forked_from is not None]
        survivor, replaced = fork.lineage.forked_from, fork.lineage.replaces
    assert survivor is not None and replaced is not None
    assert seen[survivor[0]][:2] == [None, (survivor[0], 2)]
    assert seen[fork.id][:2] == [survivor, (fork.id, 4)]
    assert seen[replaced] == [None]


def trained_population(function: Any, size: int = 4, interval: float = 2, **others: Any) -> Study:
    """Trains a population with a budget that it does not need."""
    scheduler = PopulationBasedTraining(population_size=size, interval=interval)
    given = {'space': SPACE, 'num_trials': 30, 'objective': 'minimize', 'scheduler': scheduler}
    return tune(function, **{**given, 'algorithm': 'random_search', 'callbacks': [], **others})


def continuing(values: Any, trial: Trial) -> Iterator[Any]:
    """Eight steps, of which a fork runs those that its parent did not."""
    start = trial.continues_from[1] if trial.continues_from else 0
    for step in range(start + 1, 9):
        yield step, values.rate + 1 / step


@pytest.mark.parametrize(('size', 'interval'), [(4, 2), (4, 1), (4, 3), (2, 4)])
def test_a_population_ends_with_the_last_step_of_the_function(size: int, interval: int) -> None:
    study = trained_population(continuing, size, interval)
    count = len(study.trials)
    assert {trial.state for trial in study.trials} == {'COMPLETED'}
    assert study.done_reason == (
        f'the population has trained to its end, in {count} trials of the budget'
    )
    # The last step is not known until a trial ends there.
    late = [trial for trial in study.trials if trial.lineage.forked_from]
    late = [trial for trial in late if trial.lineage.forked_from[1] == 8]  # type: ignore[index]
    assert len(late) == (8 % interval == 0)
    for fork in late:
        assert fork.lineage.parent is not None
        assert fork.reward == study.trial(fork.lineage.parent).reward


@pytest.mark.parametrize('invalid', [math.nan, math.inf])
def test_a_new_population_begins_when_all_members_are_infeasible(invalid: float) -> None:
    def dying(values: Any, trial: Trial) -> Iterator[Any]:
        for step in range(1, 9):
            yield invalid if step == 3 and trial.id <= 5 else values.rate + 1 / step

    study = trained_population(dying)
    assert [trial.id for trial in study.trials if trial.state == 'INFEASIBLE'] == [1, 3, 4, 5]
    random = [trial.id for trial in study.trials if trial.lineage.forked_from is None]
    assert random == [1, 2, 3, 4, 6, 7, 8, 9]
    assert study.best is not None
    assert 'has trained to its end' in str(study.done_reason)
