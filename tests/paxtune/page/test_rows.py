"""Filter, order and texts of the table of trials."""

from typing import Any

import pytest

from paxtune.page import rows
from paxtune.page.live import LiveStudy
from paxtune.study.columns import Column, row_of
from tests.factories.page_searches import SCRIPT
from trainer.symbolic.errors import UserError

COLUMNS = [
    Column(key, header, lambda trial: None)
    for key, header in (
        ('trial', 'trial'), ('state', 'state'), ('decisions.a.rate', 'rate'),
        ('metrics.loss', 'loss'),
    )
]  # fmt: skip


def _columns(live: LiveStudy) -> list[Column]:
    snapshot = live.snapshot()
    return rows.columns_of(live.study, snapshot.trials, snapshot.record.notes)


def _found(live: LiveStudy, terms: list[rows.Term]) -> list[int]:
    return [each.id for each in rows.found_in(live.snapshot().trials, _columns(live), terms)]


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('', [1, 2, 3, 4, 5]),
        ('state=completed', [1, 2, 3]),
        ('state!=completed', [4, 5]),
        ('loss<=0.5', [2, 3]),
        ('size>=2 state=completed', [2, 3]),
        ('metrics.size=2e0', [2]),
        ('infeas', [4]),
        ('reason~FAILED', [4]),
        ('"no such text"', []),
        ('state="completed" loss=1', [1]),
        ('reason!=""', [4]),
    ],
)
def test_filter_keeps_rows_that_fulfil_all_conditions(
    live: LiveStudy, text: str, expected: list[int]
) -> None:
    assert _found(live, rows.parse_filter(text, _columns(live))) == expected


@pytest.mark.parametrize(
    ('model', 'expected'),
    [
        (None, [1, 2, 3, 4, 5]),
        ({'loss': {'type': 'lessThan', 'filter': 1}}, [2, 3]),
        ({'metrics.size': {'type': 'inRange', 'filter': 1, 'filterTo': 2}}, [1, 2]),
        (
            {'state': {'type': 'contains', 'filter': 'comp'},
             'loss': {'type': 'equals', 'filter': 1}},
            [1],
        ),
        ({'reason': {'type': 'notBlank'}}, [4]),
        (
            {'reason': {'type': 'blank'}, 'state': {'type': 'notEqual', 'filter': 'active'}},
            [1, 2, 3],
        ),
    ],
)  # fmt: skip
def test_filters_of_columns_keep_rows_that_fulfil_all(
    live: LiveStudy, model: Any, expected: list[int]
) -> None:
    assert _found(live, rows.terms_of(model, _columns(live))) == expected


@pytest.mark.parametrize(
    'model',
    [
        7, 'x', [1], {'loss': 1}, {'loss': {}}, {'loss': {'type': ['x']}},
        {'no': {'type': 'equals'}},
        {'loss': {'type': 'lessThan', 'filter': 'x'}}, {'loss': {'type': 'equals', 'filter': {}}},
        {'loss': {'type': 'inRange', 'filter': 1}},
    ],
)  # fmt: skip
def test_filters_that_no_grid_makes_are_refused_in_one_line(live: LiveStudy, model: Any) -> None:
    with pytest.raises(UserError, match=r'^[^\n]+$'):
        rows.terms_of(model, _columns(live))


def test_filter_of_an_unknown_column_names_near_ones() -> None:
    with pytest.raises(UserError, match='no column stat'):
        rows.parse_filter('stat=completed', COLUMNS)
    with pytest.raises(UserError, match='expected a number'):
        rows.parse_filter('rate<fast', COLUMNS)


def test_order_is_that_of_several_columns(live: LiveStudy) -> None:
    trials, columns = live.snapshot().trials, _columns(live)

    def ids(*order: str) -> list[int]:
        return [each.id for each in rows.sorted_by(trials, columns, order)]

    assert ids('-trial') == [5, 4, 3, 2, 1] and ids('loss') == [3, 2, 1, 4, 5]
    assert ids('state', '-loss') == [5, 1, 2, 3, 4]
    with pytest.raises(UserError, match='no column nothing'):
        ids('nothing')
    assert rows.order_of([]) == rows.NEWEST
    for odd in (7, [7], [{'colId': 'loss'}], [{'colId': 1, 'sort': 'asc'}]):
        with pytest.raises(UserError, match='the order'):
            rows.order_of(odd)


def test_rows_have_the_columns_of_their_study(live: LiveStudy) -> None:
    trials = live.snapshot().trials
    columns = rows.columns_of(live.study, trials, {2: 'seen'})
    keys = {each.key for each in columns}
    assert keys >= {'trial', 'state', 'loss', 'decisions.rate', 'metrics.size', 'note'}
    made = [row_of(trial, columns) for trial in trials]
    assert made[1]['note'] == 'seen' and made[1]['metrics.size'] == 2
    assert made[3]['reason'] == f'{SCRIPT} failed'
    shown = rows.shown_first(columns, ['loss'])
    assert {'trial', 'loss', 'decisions.kind', 'metrics.size', 'reason'} <= {*shown}
    assert not {'attempt', 'worker', 'origin', 'metrics.loss'} & {*shown}


def test_few_trials_have_the_names_of_all(live: LiveStudy) -> None:
    trials = live.snapshot().trials
    few = rows.examples(trials)
    assert len(few) == 2  # The infeasible trial has measured nothing.
    assert {name for trial in few for name in trial.metrics} == {'loss', 'size'}


def test_numbers_of_a_column_align(live: LiveStudy) -> None:
    columns, trials = _columns(live), live.snapshot().trials
    loss = next(each for each in columns if each.key == 'loss')
    is_number, text = rows.text_of(loss, trials)
    assert is_number and [text(loss.value(each)) for each in trials[:4]] == [
        '1.0000', '0.5000', '0.3333', '',
    ]  # fmt: skip
    state = next(each for each in columns if each.key == 'state')
    is_number, text = rows.text_of(state, trials)
    assert not is_number and text(trials[0].status) == 'completed'
    assert rows.text_of(loss, [])[0] is False
