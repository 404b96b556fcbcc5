"""Changes of a definition: budgets may change, what is searched may not."""

import dataclasses
import json

import pytest

from paxtune.config.budget import Budget
from paxtune.study.plan import SearchPlan
from paxtune.study.record import StudyRecord
from paxtune.study.redefinition import fingerprint, is_redefinition, redefined
from tests.factories.toys import search, toy


def record(num_trials: int = 5, is_apart: bool = False, **changes: object) -> StudyRecord:
    configuration = search(budget=Budget(num_trials))
    value = toy(search=configuration, **changes)
    return SearchPlan.compile(value, configuration if is_apart else None).record(False, [])


@pytest.mark.parametrize('is_apart', [False, True])
def test_a_budget_may_change(is_apart: bool) -> None:
    stored, now = record(is_apart=is_apart), record(9, is_apart=is_apart)
    merged = redefined(stored, now)
    assert merged != stored
    assert redefined(merged, now) == merged
    assert is_redefinition(stored, merged)
    assert fingerprint(merged) == fingerprint(stored)


def test_another_definition_is_refused() -> None:
    stored, other = record(), record(rate=0.5)
    assert not is_redefinition(stored, other)
    assert fingerprint(stored) != fingerprint(other)
    assert json.loads(redefined(stored, other).value) == json.loads(stored.value)
    for value in ('[]', '{', '3', '{"search": 3}'):
        assert not is_redefinition(stored, dataclasses.replace(stored, value=value))


def test_requests_may_change() -> None:
    stored = record()
    assert is_redefinition(stored, dataclasses.replace(stored, pause_requested=True))


@dataclasses.dataclass(frozen=True)
class Grown(StudyRecord):
    """A record of a later version, with one more field."""

    added: str = ''


def test_a_new_field_is_fixed() -> None:
    stored = Grown(**vars(record()))
    assert is_redefinition(stored, dataclasses.replace(stored, note='for people'))
    assert not is_redefinition(stored, dataclasses.replace(stored, added='by a worker'))
