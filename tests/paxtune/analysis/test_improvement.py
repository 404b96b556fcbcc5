"""The room for improvement of a study."""

import pytest

from paxtune.analysis.improvement import improvements
from tests.paxtune.analysis.test_surrogate import study_of
from trainer.symbolic.errors import UserError


def test_the_room_shrinks_with_more_trials() -> None:
    axis, found = improvements(study_of(count=40))
    assert axis.name == 'y'
    assert [found[0].trial.id, found[-1].trial.id] == [5, 40]
    assert len(found) <= 10
    assert all(each.room > 0 for each in found[:3])
    assert found[-1].room < 0.2 * found[0].room
    assert found[-1].error < found[0].error


def test_the_error_is_larger_in_a_noisy_study() -> None:
    _, quiet = improvements(study_of(count=30))
    _, noisy = improvements(study_of(count=30, noise=0.3))
    assert noisy[-1].error > 5 * quiet[-1].error


def test_a_maximized_reward_has_the_same_room() -> None:
    _, less = improvements(study_of(count=12))
    _, more = improvements(study_of('maximize', count=12))
    assert [each.room for each in more] == pytest.approx([each.room for each in less])


def test_few_trials_have_no_room() -> None:
    study = study_of(count=4)
    assert improvements(study)[1] == []
    with pytest.raises(UserError, match='no such reward or metric'):
        improvements(study, 'z')
