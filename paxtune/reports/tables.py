import contextlib
import csv
import dataclasses
import datetime
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from paxtune.reports.folding import folded, longest_name
from trainer import command

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.tree import Tree

FORMATS = ('table', 'json', 'csv')

Row: TypeAlias = Mapping[str, Any]

_WIDEST = 10_000  # Columns of a tree, whose lines are not broken.
_MAX_DRAWN = 1000  # Rows of a table that is fitted to the terminal: that takes 1 ms a row.
_FEW_ROWS = 3  # A table with fewer rows has no columns that are the same in all.
_GAP = 2
_MIN_WIDTH = 20  # A narrower column of texts is never broken over lines, but at narrow terminals.
_MIN_NARROW = 12  # The longest number.

_FORMULA = ('=', '+', '-', '@', '＝', '＋', '－', '＠')
"""Starts of formulas. Spreadsheets take both widths."""

_NUMBER = re.compile(r'[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?', re.ASCII | re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows for people.

    Attributes:
        rows: the cells by column; a column that is empty in all rows is left out.
        columns: their keys, in order; numbers by importance.
        note: a line below.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    title: str = ''
    note: str = ''

    @classmethod
    def of(cls, title: str, columns: Sequence[str], lines: Iterable[Iterable[Any]]) -> 'Table':
        """Makes a table of lines of cells."""
        return cls([dict(zip(columns, line, strict=True)) for line in lines], columns, title)

    @classmethod
    def compact(
        cls,
        rows: Sequence[Row],
        columns: Sequence[str],
        decided: Mapping[str, str],
        title: str = '',
    ) -> 'Table':
        """Makes a table of the values that differ between rows; the note has the equal ones.

        Args:
            columns: as of the table; the first one always stays.
            decided: names, by key, of the values in the column `decisions`.

        Example:
            >>> rows = [{'trial': n, 'state': 'stopped', 'x': n / 10} for n in (1, 2, 3)]
            >>> print(to_text(Table.compact(rows, ['trial', 'state', 'decisions'], {'x': 'rate'})))
            trial  decisions
            1      rate=0.1
            2      rate=0.2
            3      rate=0.3
            The same in all: state=stopped
        """
        names = {name: name for name in columns[1:]} | dict(decided)
        same = {}
        if len(rows) >= _FEW_ROWS:
            values = {key: {cell(row.get(key)) for row in rows} for key in names}
            same = {key: names[key] for key, own in values.items() if len(own) == 1 and own != {''}}
        different = {key: name for key, name in decided.items() if key not in same}
        note = f'The same in all: {assignments(rows[0], same)}' if same else ''
        rows = [{**row, 'decisions': assignments(row, different)} for row in rows]
        return cls(rows, [key for key in columns if key not in same], title, note)


@dataclasses.dataclass(frozen=True)
class Document:
    """The output of a command, in every format.

    Attributes:
        data: as JSON.
        rows: as CSV; none if the command changes something.
        columns: of the CSV, in order.
        tables: for people.
        remark: for people, at the end.
    """

    data: Any
    rows: Sequence[Row] = ()
    columns: Sequence[str] = ()
    tables: Sequence[Table] = ()
    remark: str = ''


def write(document: Document, format_: str) -> None:
    """Writes a document to standard output, in one of `FORMATS`."""
    if format_ == 'json':
        say(json.dumps(document.data, indent=2, allow_nan=False, default=_json))
    elif format_ == 'csv':
        say(to_csv(document.rows, document.columns))
    else:
        say(command.fitted(_tables(document), sys.stdout))


def say(text: str) -> bool:
    """Writes to standard output. Returns False if it is closed."""
    with contextlib.suppress(BrokenPipeError):
        print(text.rstrip('\n'))
    return command.has_reader()


def to_csv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """Rows as CSV; exact numbers, nothing for None, JSON for lists, no control characters.

    A text that a spreadsheet would run as a formula has an apostrophe before it.

    Example:
        >>> to_csv([{'x': 0.1, 'y': None}, {'x': True, 'y': [1, 2]}], ['x', 'y'])
        'x,y\\n0.1,\\ntrue,"[1, 2]"\\n'
        >>> to_csv([{'=x': '=1+1'}, {'=x': '-1.5'}], ['=x'])
        "'=x\\n'=1+1\\n-1.5\\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow([_csv(column) for column in columns])
    writer.writerows([_csv(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def assignments(values: Row, names: Mapping[str, str]) -> str:
    """Renders values on one line, without missing ones, by their names by key."""
    return ' '.join(f'{names[key]}={cell(values[key]) or None}' for key in names if key in values)


def to_text(table: Table) -> str:
    """A table as wide as it needs to be, a line for each row: for a pager, and for other programs.

    Example:
        >>> print(to_text(Table([{'x': 1, 'name': 'a b'}, {'x': 22, 'name': 'c'}], ['x', 'name'])))
        x   name
        1   a b
        22  c
    """
    from rich.cells import cell_len

    lines = cells(table)
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        '  '.join(
            cell + ' ' * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        )
        for line in lines
    ]
    about = [table.title, *(line.rstrip() for line in aligned), table.note]
    return '\n'.join(command.printable(line) for line in about if line)


def _tables(document: Document) -> str:
    from rich.console import Console

    console = Console(highlight=False)
    blocks = []
    for table in document.tables:
        if table.rows:
            with console.capture() as capture:
                print_table(console, table)
            blocks.append(capture.get().rstrip('\n'))
    return '\n\n'.join([*blocks, *filter(None, [command.printable(document.remark)])])


def print_table(console: 'Console', table: Table) -> None:
    """Prints a table: fitted to a terminal, elsewhere as `to_text` renders it."""
    if console.is_terminal and len(table.rows) <= _MAX_DRAWN:
        console.print(Drawn(table), markup=False)
    else:
        print_line(console, to_text(table))


class Drawn:
    """A table fitted to the width of a terminal, for `rich` to print.

    Only long texts are broken over lines. Columns for which there is no room are left out, the
    last ones first, and are named below.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: 'Console', options: 'ConsoleOptions') -> Iterator[Any]:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        headings, *lines = cells(self._table)

        def broken(text: str, width: int) -> str:
            return '\n'.join(folded(text, width))

        widths = _widths(headings, lines, options.max_width)
        grid = Grid(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0),
        )  # fmt: skip
        for column, width in widths.items():
            grid.add_column(Text(broken(headings[column], width)), width=width)
        # As text, so that brackets in it are no markup.
        for line in lines:
            grid.add_row(*(Text(broken(line[column], width)) for column, width in widths.items()))
        if self._table.title:
            yield Text(cell(self._table.title))
        yield grid
        left_out = [name for column, name in enumerate(headings) if column not in widths]
        if left_out:
            yield Text(f'{options.max_width} columns are too few for: {", ".join(left_out)}')
        if self._table.note:
            yield Text(cell(self._table.note))


def _widths(
    headings: Sequence[str], lines: Sequence[Sequence[str]], available: int
) -> dict[int, int]:
    """Widths by column; a column without room has none."""
    from rich.cells import cell_len

    content = [max(map(cell_len, column), default=0) for column in zip(*lines, strict=True)]
    widest = [max(own, cell_len(heading)) for own, heading in zip(content, headings, strict=True)]
    narrow = min(_MIN_WIDTH, max(_MIN_NARROW, available // 3))
    # Also a heading may be broken.
    widths = {
        column: max(own if own <= _MIN_WIDTH else narrow, min(longest_name(heading), _MIN_WIDTH))
        for column, (own, heading) in enumerate(zip(content, headings, strict=True))
    }
    short = [column for column, own in enumerate(content) if column and own <= _MIN_WIDTH]
    long = [column for column in widths if column and column not in short]
    while (short or long[1:]) and _total(widths) > available:
        # Texts leave half of the room to numbers.
        is_crowded = not short or 2 * sum(widths[column] for column in long) > available
        del widths[(long if long[1:] and is_crowded else short).pop()]
    least, widths = widths, {column: min(widest[column], available) for column in widths}
    while _total(widths) > available:
        broken = [i for i in widths if widths[i] > least[i]]
        if not broken:
            break
        # The column whose texts then have the fewest lines; the widest of several.
        narrowed = min(broken, key=lambda i: (-(-widest[i] // (widths[i] - 1)), -widths[i]))
        widths[narrowed] -= 1
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def print_line(console: 'Console', text: str) -> None:
    """Prints a line without folding it."""
    console.print(command.printable(text), markup=False, soft_wrap=True)


def branches(roots: 'Iterable[Tree]') -> str:
    """Renders trees for people, one below the other, without folding lines.

    Example:
        >>> from rich.tree import Tree
        >>> tree = Tree('1')
        >>> child, _ = tree.add('2').add('4'), tree.add('3')
        >>> print(branches([tree, Tree('5')]))
        1
        ├── 2
        │   └── 4
        └── 3
        5
    """
    from rich.console import Console

    console = Console(width=_WIDEST, no_color=True, highlight=False)
    with console.capture() as capture:
        for root in roots:
            console.print(root)
    return '\n'.join(line.rstrip() for line in capture.get().splitlines())


def cells(table: Table) -> list[list[str]]:
    """Formats a table for people: a line of headings, then one for each row."""
    columns = [
        column
        for column in table.columns
        if any(row.get(column) not in (None, '', []) for row in table.rows)
    ]
    lines = [[cell(row.get(column)) for column in columns] for row in table.rows]
    return [[cell(column) for column in columns], *lines]


def cell(value: Any) -> str:
    """Formats a value for people, on one line."""
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.6g}'
    if isinstance(value, datetime.datetime):
        return value.astimezone().isoformat(' ', 'seconds')[:19]
    # Text of a file must not move the cursor of a terminal, nor break a line.
    return command.printable(re.sub(r'\s', ' ', str(value)))


def _csv(value: Any) -> Any:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, default=_json)
    if isinstance(value, str):
        is_formula = value.lstrip().startswith(_FORMULA) or value[:1] in ('\t', '\r')
        is_number = _NUMBER.fullmatch(value) is not None
        return ("'" if is_formula and not is_number else '') + command.printable(value)
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _json(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f'not JSON data: {value!r}')
