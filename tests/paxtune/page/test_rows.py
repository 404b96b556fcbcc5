"""Filter, order and pages of the table of trials."""

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
ROWS = [
    {'trial': 1, 'state': 'completed', 'decisions.a.rate': 0.1, 'metrics.loss': 2.0},
    {'trial': 2, 'state': 'completed', 'decisions.a.rate': 0.01, 'metrics.loss': None},
    {'trial': 3, 'state': 'infeasible', 'decisions.a.rate': 10.0, 'metrics.loss': 1.0},
]


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('', [1, 2, 3]),
        ('state=completed', [1, 2]),
        ('state!=completed', [3]),
        ('rate<=0.1', [1, 2]),
        ('a.rate>0.01 state=completed', [1]),
        ('decisions.a.rate=1e-2', [2]),
        ('loss<5', [1, 3]),
        ('infeas', [3]),
        ('"no such text"', []),
        ('state="completed"', [1, 2]),
    ],
)
def test_filter_keeps_rows_that_fulfil_all_conditions(text: str, expected: list[int]) -> None:
    found = rows.filtered(ROWS, rows.parse_filter(text, COLUMNS))
    assert [row['trial'] for row in found] == expected


def test_filter_of_an_unknown_column_names_near_ones() -> None:
    with pytest.raises(UserError, match='no column stat'):
        rows.parse_filter('stat=completed', COLUMNS)
    with pytest.raises(UserError, match='expected a number'):
        rows.parse_filter('rate<fast', COLUMNS)


def test_page_of_rows_stays_within_what_there_is() -> None:
    many = [{'trial': number} for number in range(120)]
    found, number, count = rows.page_of(many, 99)
    assert (len(found), number, count) == (20, 4, 5)
    assert rows.page_of([], 5) == ([], 0, 1)


def test_rows_have_the_columns_of_their_study(live: LiveStudy) -> None:
    trials = live.snapshot().trials
    columns = rows.columns_of(live.study, trials, {2: 'seen'})
    keys = {each.key for each in columns}
    assert keys >= {'trial', 'state', 'loss', 'decisions.rate', 'metrics.size', 'note'}
    made = [row_of(trial, columns) for trial in trials]
    assert made[1]['note'] == 'seen' and made[1]['metrics.size'] == 2
    assert made[3]['reason'] == f'{SCRIPT} failed'
    found = rows.filtered(made, rows.parse_filter('size>=2', columns))
    assert [row['trial'] for row in found] == [2, 3]
