"""Settings of a search that would have no effect."""

from pathlib import Path
from typing import Any

import pytest

from paxtune.algorithms import (
    Algorithm,
    Default,
    GPBandit,
    HillClimbing,
    QuasiRandom,
    RegularizedEvolution,
)
from paxtune.api import tune
from paxtune.config.faults import Faults
from paxtune.schedulers import (
    Asha,
    MedianStopping,
    PopulationBasedTraining,
    Scheduler,
    ThresholdStopping,
)
from paxtune.schedulers.resources import without_effect
from paxtune.search_space.space import Space
from paxtune.study.plan import SearchPlan
from paxtune.study.samples import first_fitting
from tests.factories.tunables import rates
from trainer.experiment import Evaluation
from trainer.symbolic.errors import UserError


@pytest.mark.parametrize('algorithm', [Default(), GPBandit(), QuasiRandom()])
def test_a_warm_start_needs_an_algorithm_that_names_parents(algorithm: Algorithm) -> None:
    plan = rates(search__algorithm=algorithm, search__warm_start='parent')
    with pytest.raises(UserError, match=r'^search\.warm_start: \w+ derives no trial from another'):
        SearchPlan.compile(plan)


@pytest.mark.parametrize('algorithm', [RegularizedEvolution(), HillClimbing()])
def test_a_warm_start_needs_checkpoints(algorithm: Algorithm) -> None:
    made = rates(search__algorithm=algorithm, search__warm_start='parent')
    SearchPlan.compile(made)
    with pytest.raises(UserError, match=r'^search\.warm_start: .*train\.checkpoints is None'):
        SearchPlan.compile(made.rebind({'train.checkpoints': None}))


def test_a_trial_timeout_needs_workers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^search\.faults\.trial_timeout .*--workers=1'):
        tune(rates(), faults=Faults(trial_timeout=9.0), job_log_dir=tmp_path)
    assert not (tmp_path / 'study.db').exists()


@pytest.mark.parametrize(
    ('scheduler', 'fields'),
    [
        (Asha(min_resource=4), []),
        (Asha(min_resource=5), ['min_resource']),  # The next evaluation is at the end.
        (Asha(min_resource=4 * 64, unit='tokens'), []),
        (Asha(min_resource=5 * 64, unit='tokens'), ['min_resource']),
        (Asha(min_resource=9, max_resource=99, unit='seconds'), []),
        (Asha(min_resource=1, grace_period=0.9), ['grace_period']),
        (ThresholdStopping(milestones=[[4, 1.0], [6, 1.0], [9, 1.0]]), [1, 2]),
        (PopulationBasedTraining(population_size=2, interval=4), []),
        (PopulationBasedTraining(population_size=2, interval=6), ['interval']),
        (MedianStopping(warmup_steps=100), ['warmup_steps']),
    ],
)
def test_a_scheduler_for_which_training_is_too_short_is_named(
    scheduler: Scheduler, fields: list[Any]
) -> None:
    """The six steps are evaluated after every second one."""
    parts = first_fitting(Space(rates())).values
    found = [text.split(':')[0] for text in without_effect(scheduler, parts)]
    names = [f'milestones[{each}]' if isinstance(each, int) else each for each in fields]
    assert found == [f'search.scheduler.{name}' for name in names]


def test_an_evaluation_at_the_end_alone_is_too_late_for_a_scheduler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    SearchPlan.compile(
        rates(search__scheduler=Asha(min_resource=1), train__evaluation=Evaluation(6))
    )
    (text,) = caplog.messages
    assert 'at 1 steps. The last evaluation before the end is at 0.' in text
