"""Samples of a space, whose values fit together."""

import itertools
from typing import Any

import pyglove as pg
import pytest

from paxtune.search_space.constraints import Constraint, Requires
from paxtune.search_space.space import Space
from paxtune.study.plan import SearchPlan
from paxtune.study.samples import NothingFits, draws, first_fitting, fitting
from tests.factories.tiny import CountingInput
from tests.factories.toys import search
from tests.factories.tunables import rates
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

BUILT: list[float] = []


class Narrow(Component):
    """Half of its widths do not fit."""

    width: int = 1

    def check(self) -> None:
        if self.width > 2:
            raise ValueError(f'{self.width} is too wide')


class Seen(Constraint):
    """Counts the experiments that it sees."""

    def require(self, experiment: Any) -> None:
        BUILT.append(experiment.task.learner.learning_rate)


def narrow(*widths: int) -> Space:
    return Space(pg.Dict(a=Narrow(width=pg.oneof(widths)), b=pg.floatv(0.0, 1.0)))


def test_the_first_sample_is_the_first_draw_of_a_seed_that_fits() -> None:
    space = narrow(1, 2, 3, 4)
    for seed in range(8):
        legal = (each for each in draws(space, seed) if each['a.width'] < 2)
        sample = first_fitting(space, seed)
        assert sample.decisions == next(legal)
        assert sample.values[''].a.width == sample.decisions['a.width'] + 1


def test_all_draws_that_fit_are_samples() -> None:
    space = narrow(1, 2, 3, 4)
    wanted = [each for each in draws(space) if each['a.width'] < 2]
    assert [each.decisions for each in fitting(space, draws(space))] == wanted


def test_a_space_without_samples_says_why() -> None:
    with pytest.raises(NothingFits, match=r'no experiment was found .*: [34] is too wide'):
        first_fitting(narrow(3, 4))


def test_a_reason_without_a_decision_stands_alone() -> None:
    space = Space(pg.Dict(a=Narrow(width=pg.oneof([3, 3])), b=pg.floatv(0.0, 1.0)))
    with pytest.raises(NothingFits, match=r'^a: 3 is too wide$'):
        first_fitting(space)
    made = rates(eval_inputs={'bad name': CountingInput(batch_size=8)})
    with pytest.raises(UserError, match=r"^eval_inputs: 'bad name' is an invalid name for a set"):
        SearchPlan.compile(made)


def test_a_plan_makes_one_experiment_for_all_its_checks() -> None:
    BUILT.clear()
    plan = SearchPlan.compile(rates(search__constraints=[Seen()]))
    sample = first_fitting(plan.space).values['']
    assert [sample.task.learner.learning_rate] == BUILT


def test_a_constraint_on_a_path_of_few_experiments_is_legal() -> None:
    rare = pg.oneof([*itertools.repeat(pg.Dict(y=1), 9), pg.Dict(z=1)])
    value = pg.Dict(x=rare)
    SearchPlan.compile(value, search(constraints=[Requires('x.z > 0', 'small')]))
    with pytest.raises(UserError, match='nowhere'):
        SearchPlan.compile(value, search(constraints=[Requires('x.nowhere > 0', 'small')]))
