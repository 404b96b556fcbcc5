"""Tables as text and as CSV."""

from paxtune.reports.tables import Table, to_csv, to_text
from tests.paxtune.studies import read_csv


def test_a_table_shows_everything_and_moves_no_cursor() -> None:
    rows = [
        {'name': 'a\x1b[2J\nb\t', 'n': 0.1234567, 'unused': None},
        {'name': '漢字' * 40, 'n': True},
    ]
    lines = to_text(Table(rows, ['name', 'n', 'unused'], 'Title')).splitlines()
    assert lines[0] == 'Title'
    assert lines[1].split() == ['name', 'n']
    assert lines[2].startswith('a�[2J b ')
    assert lines[2].endswith('  0.123457')
    assert lines[3] == '漢字' * 40 + '  yes'


def test_csv_keeps_every_bit() -> None:
    (row,) = read_csv(to_csv([{'x': 0.1 + 0.2, 'text': 'a,"b"\nc'}], ['x', 'text', 'none']))
    assert float(row['x']) == 0.1 + 0.2
    assert row['text'] == 'a,"b"\nc'
    assert row['none'] == ''
