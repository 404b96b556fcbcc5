"""Tables as text and as CSV."""

import io

import pytest
from rich.console import Console

from paxtune.reports.tables import (
    FORMATS,
    Document,
    Table,
    print_line,
    print_table,
    to_csv,
    to_text,
    write,
)
from tests.factories.studies import read_csv


def test_a_table_shows_everything_and_moves_no_cursor() -> None:
    rows = [
        {'name': 'a\x1b[2J\nb\t', 'n': 0.1234567, 'unused': None},
        {'name': '漢字' * 40, 'n': True},
    ]
    lines = to_text(Table(rows, ['name', 'n', 'unused'], 'Title')).splitlines()
    assert lines[0] == 'Title'
    assert lines[1].split() == ['name', 'n']
    assert lines[2].startswith(r'a\x1b[2J b ')
    assert lines[2].endswith('  0.123457')
    assert lines[3] == '漢字' * 40 + '  yes'


ESCAPE = '\x1b]0;owned\x07\x9b2J\u202e'


def test_control_characters_are_escaped_in_every_part_of_a_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {'trial': 1, ESCAPE: 0.5, 'reason': ESCAPE, 'list': [ESCAPE]}
    table = Table([row], list(row), ESCAPE, ESCAPE)
    for format_ in FORMATS:
        write(Document([row], [row], list(row), [table], ESCAPE), format_)
        out = capsys.readouterr().out
        assert 'owned' in out
        assert all(character.isprintable() or character == '\n' for character in out), format_


def test_control_characters_are_escaped_in_a_terminal() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system=None, width=200)
    print_table(console, Table([{'x': 1, ESCAPE: ESCAPE}], ['x', ESCAPE], ESCAPE, ESCAPE))
    print_line(console, ESCAPE)
    out = written.getvalue()
    assert out.count('owned') == 5
    assert not set(ESCAPE) & set(out) - set('[]0;owned2J')


@pytest.mark.parametrize('width', [32, 44, 60, 80])
def test_headings_fold_at_slashes_and_no_number_is_cut(width: int) -> None:
    row = {
        'trial': 12345, 'state': 'completed', 'dev/bits_per_byte': -1.23457e-105, 'seconds': 0.25,
        'decisions': ' '.join(f'learning_rate.{i}=0.0046589{i}' for i in range(9)),
    }  # fmt: skip
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system=None, width=width)
    print_table(console, Table([row] * 2, list(row)))
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = written.getvalue().split()
    assert '12345' in words and '…' not in written.getvalue()
    if not any(word.startswith('dev/bits_per_byte') for word in words):
        assert 'dev/' in words and 'bits_per_byte' in words
    for i in range(9):
        assert any(word.endswith(f'0.0046589{i}') for word in words), words


@pytest.mark.parametrize(
    'text',
    [
        '=HYPERLINK("http://evil")',
        '+1+cmd|x',
        '-1+1',
        '-x',
        '@SUM(1)',
        '\t=1',
        '\r=1',
        ' =1',
        '＝1',
    ],
)
def test_csv_has_no_formulas(text: str) -> None:
    (row,) = read_csv(to_csv([{text: text}], [text]))
    ((name, value),) = row.items()
    assert name.startswith("'")
    assert value.startswith("'")


@pytest.mark.parametrize('text', ['-1.5', '+2', '-1e-3', '-.5', 'a=1', "it's", '1-2', ''])
def test_csv_keeps_numbers_and_other_texts(text: str) -> None:
    assert read_csv(to_csv([{'x': text, 'y': -0.5}], ['x', 'y'])) == [{'x': text, 'y': '-0.5'}]


def test_csv_keeps_every_bit() -> None:
    (row,) = read_csv(to_csv([{'x': 0.1 + 0.2, 'text': 'a,"b"\nc'}], ['x', 'text', 'none']))
    assert float(row['x']) == 0.1 + 0.2
    assert row['text'] == 'a,"b"\nc'
    assert row['none'] == ''
