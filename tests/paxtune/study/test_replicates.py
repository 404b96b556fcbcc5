"""Decisions that are tried more than once, each time with another training seed."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import (
    Algorithm,
    RandomSearch,
    RegularizedEvolution,
    Suggestion,
    SuggestionContext,
)
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.storage.open_study import load_study
from paxtune.study.study import Study
from tests.factories.studies import ask, bare_state, opened, ran, start_next, tried
from tests.factories.studies import finish_with as finish
from tests.factories.toys import LOSS
from trainer.symbolic.errors import UserError


def is_exhausted(study: Study) -> bool:
    """As it stands now: mypy takes a property for a constant."""
    return study.exhausted


# --- Which trials there are ---


def test_replicates_come_right_after_the_first(two_decisions: Study) -> None:
    assert tried(two_decisions) == [
        (1, None, 1),
        (2, 1, 2),
        (3, 1, 3),
        (4, None, 1),
        (5, 4, 2),
        (6, 4, 3),
    ]
    assert len({trial.decisions['x'] for trial in two_decisions.trials}) == 2
    assert [trial.lineage.origin for trial in two_decisions.trials[:3]] == [
        'algorithm',
        'replicate',
        'replicate',
    ]


def test_replicates_keep_their_order_with_several_workers(tmp_path: Path) -> None:
    with opened(tmp_path, replicates=3, budget=Budget(7)) as study:
        running = [start_next(study) for _ in range(4)]
        assert tried(study) == [(1, None, 1), (2, 1, 2), (3, 1, 3), (4, None, 1)]
        for trial in reversed(running):
            finish(trial, 1.0)
        ran(study, 1.0, 1.0, 1.0)
        assert tried(study)[4:] == [(5, 4, 2), (6, 4, 3), (7, None, 1)]
        assert study.is_done


def test_decisions_are_those_of_a_study_without_replicates() -> None:
    with opened(replicates=3) as often, opened() as once:
        ran(often, *[1.0] * 12)
        ran(once, *[1.0] * 4)
        assert [trial.decisions for trial in often.trials[::3]] == [
            trial.decisions for trial in once.trials
        ]


@pytest.mark.parametrize('end', ['stop', 'fail'])
def test_stopped_and_infeasible_trials_have_no_further_replicates(end: str) -> None:
    with opened(replicates=2) as study:
        trial = ask(study)
        trial.report(1, {'loss': 1.0})
        getattr(trial, end)('no good')
        ran(study, 1.0, 1.0, 1.0)
        assert tried(study) == [(1, None, 1), (2, None, 1), (3, 2, 2), (4, None, 1)]


def test_a_finite_space_is_tried_so_often_and_the_study_is_done_then(tmp_path: Path) -> None:
    space = pg.Dict(x=pg.oneof([1, 2, 3]))
    with opened(tmp_path, space, replicates=2, budget=Budget(None)) as study:
        assert study.num_trials == 6
        for done in range(6):
            assert not study.is_done
            assert bare_state(study).is_done is False
            ran(study, float(done))
        assert study.is_done
        assert bare_state(study).is_done
        assert study.ask() is None


def test_an_exhausted_space_still_has_replicates() -> None:
    space = pg.Dict(x=pg.oneof([1, 2]))
    with opened(space=space, replicates=3) as study:
        ask(study).fail('no memory')
        ran(study, 1.0, 1.0)
        assert not is_exhausted(study)
        ran(study, 1.0)
        assert study.ask() is None
        assert is_exhausted(study)
        assert study.is_done


def test_initial_and_added_trials_have_replicates_too() -> None:
    with opened(replicates=2, initial_trials=[{'x': 1.0}, {'x': 2.0}]) as study:
        ran(study, 1.0, 1.0)
        study.add({'x': 3.0})
        ran(study, 1.0, 1.0, 1.0, 1.0)
        assert [trial.decisions['x'] for trial in study.trials] == [1.0, 1.0, 3.0, 3.0, 2.0, 2.0]


def test_a_restart_goes_on_in_the_same_way(tmp_path: Path) -> None:
    losses = [float(i * 7 % 5) for i in range(12)]
    algorithm = RegularizedEvolution(2, 2)
    with opened(tmp_path / 'one', replicates=3, algorithm=algorithm) as straight:
        ran(straight, *losses)
        expected = [(trial.decisions, trial.lineage.parent) for trial in straight.trials]
    for loss in losses:
        with opened(tmp_path / 'other', replicates=3, algorithm=algorithm) as study:
            ask(study)  # Its process is killed now.
        with opened(tmp_path / 'other', replicates=3, algorithm=algorithm) as study:
            ran(study, loss)
    with load_study(tmp_path / 'other') as study:
        assert [(trial.decisions, trial.lineage.parent) for trial in study.trials] == expected
        assert {trial.lineage.parent for trial in study.trials[6:]} <= {1, 4, 7}
        assert None not in {trial.lineage.parent for trial in study.trials[6:]}


def test_replicates_cannot_change_while_a_study_goes_on(tmp_path: Path) -> None:
    opened(tmp_path, replicates=2).close()
    with pytest.raises(UserError, match='replicates'):
        opened(tmp_path, replicates=3)
    with pytest.raises(ValueError, match='replicates must be at least 1: 0'):
        Search(LOSS, replicates=0)


# --- What the algorithm sees ---


class Looking(Algorithm):
    """Draws at random, and remembers what it has seen."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        seen[:] = context.observations
        drawn = RandomSearch().suggest(context)
        return Suggestion(drawn.decisions, algorithm_state={'number': str(context.number)})


seen: list[Any] = []


def test_algorithms_see_a_decision_once() -> None:
    with opened(replicates=3, algorithm=Looking()) as study:
        ran(study, 1.0, 2.0, 6.0)
        trial = ask(study)
        assert [(each.id, each.state, each.scores) for each in seen] == [(1, 'completed', (-3.0,))]
        finish(trial, 1.0)
        trial = ask(study)
        trial.report(1, {'loss': 4.0})
        trial.stop('no good')
        trial = ask(study)
        # What was stopped early counts, as it does alone.
        assert [(each.id, each.scores) for each in seen] == [(1, (-3.0,)), (4, (-2.5,))]
        trial.fail('no memory')
        ran(study, 1.0)
        assert [(each.id, each.state) for each in seen][2:] == [(6, 'infeasible')]
        assert [each.algorithm_state for each in seen] == [
            {'number': '1'},
            {'number': '2'},
            {'number': '3'},
        ]


def test_a_decision_is_pending_until_a_trial_of_it_was_completed() -> None:
    with opened(replicates=2, algorithm=Looking()) as study:
        one, two = start_next(study), start_next(study)
        two.fail('no memory')
        start_next(study)
        assert [(each.id, each.state) for each in seen] == [(1, 'pending')]
        finish(one, 1.0)
        start_next(study)  # The replicate of trial 3.
        start_next(study)
        assert [(each.id, each.state) for each in seen] == [(1, 'completed'), (3, 'pending')]
        assert seen[0].scores == (-1.0,)
