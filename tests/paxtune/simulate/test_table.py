"""Tables of recorded curves: their space, and what answers a suggestion."""

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.objectives.measurement import Measurement
from paxtune.simulate.table import CurveTable, Row, Value
from tests.factories import curve_tables
from trainer.symbolic.errors import UserError


def row(end: float | None, steps: int = 1, **decisions: Value) -> Row:
    count = steps if end is not None else steps - 1
    measurements = [Measurement(i, {}, (end or 0.0,)) for i in range(1, count + 1)]
    return Row(decisions, measurements, {'steps': [float(i) for i in range(1, steps + 1)]}, end)


def table(*rows: Row) -> CurveTable:
    return CurveTable(rows, 'minimize', 'loss', 'table')


def test_the_space_has_the_columns_that_differ() -> None:
    made = table(
        row(1.0, rate=1e-4, depth=2, name='a', same=7, flag=True),
        row(2.0, rate=1e-1, depth=8, name='b', same=7, flag=False),
        row(3.0, rate=1e-2, depth=4, name='a', same=7, flag=None),
    )
    rate, depth, name, flag = made.spec.elements
    assert (rate.id.path, rate.min_value, rate.max_value, rate.scale) == ('rate', 1e-4, 1e-1, 'log')
    assert (depth.min_value, depth.max_value, depth.scale) == (2.0, 8.0, None)
    assert isinstance(name, pg.geno.Choices) and len(name.candidates) == 2
    assert len(flag.candidates) == 3, 'what is no number has its own place, None too'
    assert (made.best, made.median) == (1.0, 2.0)


def test_a_suggestion_takes_the_nearest_unused_row() -> None:
    made = table(row(1.0, rate=1e-4), row(2.0, rate=1e-2), row(3.0, rate=1.0))
    answers = made.start()
    assert [answers.take({'rate': 3e-2}) for _ in range(3)] == [1, 2, 0]
    assert answers.left == 0
    with pytest.raises(LookupError):
        answers.take({'rate': 3e-2})
    assert made.start().take({'rate': 3e-2}) == 1, 'another run has used none'


def test_another_category_is_as_far_as_the_ends_of_a_range() -> None:
    made = table(row(1.0, x=0.0, kind='a'), row(2.0, x=1.0, kind='b'), row(3.0, x=0.4, kind='b'))
    assert made.start().take({'x': 0.9, 'kind': 0}) == 0
    assert made.start().take({'x': 0.9, 'kind': 1}) == 1


def test_a_missing_number_counts_as_the_middle() -> None:
    made = table(row(1.0, x=0.0), row(2.0, x=1.0), row(3.0))
    assert made.start().take({'x': 0.45}) == 2


def test_forks_take_rows_that_were_trained_longer() -> None:
    made = table(row(1.0, 2, x=0.0), row(2.0, 4, x=0.5), row(None, 4, x=1.0))
    assert made.start().take({'x': 0.0}, after=2) == 1
    assert made.start().take({'x': 0.9}, after=2) == 2, 'it goes on until it diverges'


def test_names_of_any_kind_are_decisions() -> None:
    name = 'task.learner[0].learning_rate'
    made = table(row(1.0, 1, **{name: 1.0}), row(2.0, 1, **{name: 2.0}))
    assert made.start().take({made.spec.elements[0].id.path: 1.9}) == 1


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=8, unique=True))
def test_decisions_of_a_row_take_that_row(numbers: list[float]) -> None:
    made = table(*(row(1.0, x=number) for number in numbers))
    for index, number in enumerate(numbers):
        # Numbers that are nearly the same may have the same place in the box.
        assert numbers[made.start().take({'x': number})] == pytest.approx(numbers[index], rel=1e-9)


def test_compute_is_in_seconds_where_all_rows_have_them() -> None:
    assert curve_tables.table().unit == 'seconds'
    assert table(row(1.0, x=0.0), row(2.0, x=1.0)).unit == 'steps'


@pytest.mark.parametrize(
    ('rows', 'message'),
    [
        ([], 'table: expected at least two trials'),
        ([row(1.0, x=0.0), row(None, x=1.0)], 'table: expected at least two trials'),
        ([row(1.0, x=0.0), row(2.0, x=0.0)], 'table: the decisions of all trials are the same'),
    ],
)
def test_an_invalid_table_is_refused(rows: list[Row], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table(*rows)
