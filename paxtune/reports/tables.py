import csv
import dataclasses
import datetime
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

FORMATS = ('table', 'json', 'csv')

Row: TypeAlias = Mapping[str, Any]

_WIDEST = 10_000  # Columns of a tree, whose lines are not broken.
_MOST_DRAWN = 1000  # Rows of a table with lines around them: drawing takes 1 ms a row.


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows for people.

    Attributes:
        rows: what is aligned; a column that is empty in all of them is left out.
        columns: their keys, in order.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    title: str = ''


@dataclasses.dataclass(frozen=True)
class Document:
    """The output of a command, in every format.

    Attributes:
        data: as JSON.
        rows: as CSV.
        columns: of the CSV, in order.
        tables: for people.
        remark: for people, at the end.
    """

    data: Any
    rows: Sequence[Row]
    columns: Sequence[str]
    tables: Sequence[Table]
    remark: str = ''


def write(document: Document, format_: str) -> None:
    """Writes a document to standard output, in one of `FORMATS`."""
    if format_ == 'json':
        say(json.dumps(document.data, indent=2, allow_nan=False, default=_json))
    elif format_ == 'csv':
        say(to_csv(document.rows, document.columns))
    else:
        say(_tables(document))


def say(text: str) -> bool:
    """Writes to standard output. Returns False if it is closed."""
    try:
        print(text.rstrip('\n'), flush=True)
    except BrokenPipeError:
        # The reader has left: `… | head`. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def to_csv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """Rows as CSV; exact numbers, nothing for None, JSON for lists.

    Example:
        >>> to_csv([{'x': 0.1, 'y': None}, {'x': True, 'y': [1, 2]}], ['x', 'y'])
        'x,y\\n0.1,\\ntrue,"[1, 2]"\\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows([_csv(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def to_text(table: Table) -> str:
    """A table without lines, as wide as it needs to be.

    Example:
        >>> print(to_text(Table([{'x': 1, 'name': 'a b'}, {'x': 22, 'name': 'c'}], ['x', 'name'])))
        x   name
        1   a b
        22  c
    """
    from rich.cells import cell_len

    lines = _cells(table)
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    aligned = [
        '  '.join(
            cell + ' ' * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        )
        for line in lines
    ]
    return '\n'.join([*filter(None, [table.title]), *(line.rstrip() for line in aligned)])


def _tables(document: Document) -> str:
    from rich.console import Console

    console = Console(highlight=False)
    blocks = []
    for table in document.tables:
        if not table.rows:
            continue
        if console.is_terminal and len(table.rows) <= _MOST_DRAWN:
            with console.capture() as capture:
                console.print(drawn(table))
            blocks.append(capture.get().rstrip('\n'))
        else:
            blocks.append(to_text(table))
    return '\n\n'.join([*blocks, *filter(None, [document.remark])])


def drawn(table: Table) -> Any:
    """A table with lines, for `rich` to print."""
    headings, *lines = _cells(table)
    return _drawn(table.title, headings, lines)


def print_table(
    console: 'Console', title: str, headings: Iterable[str], lines: Iterable[Iterable[str]]
) -> None:
    """Prints a table with lines, empty columns included."""
    console.print(_drawn(title, headings, lines), markup=False)


def _drawn(title: str, headings: Iterable[str], lines: Iterable[Iterable[str]]) -> Any:
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=title or None, title_justify='left')
    for heading in headings:
        drawn.add_column(heading, overflow='fold')
    for line in lines:
        # As text, so that brackets in it are no markup.
        drawn.add_row(*map(Text, line))
    return drawn


def print_line(console: 'Console', text: str) -> None:
    """Prints a line, as long as it is."""
    console.print(text, markup=False, soft_wrap=True)


def branches(roots: 'Iterable[Tree]') -> str:
    """Trees for people, one below the other, each line as long as it is.

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


def _cells(table: Table) -> list[list[str]]:
    columns = [
        column
        for column in table.columns
        if any(row.get(column) not in (None, '', []) for row in table.rows)
    ]
    return [columns, *([cell(row.get(column)) for column in columns] for row in table.rows)]


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
    # What a file says must not move the cursor of a terminal, nor break a line.
    return ''.join(c if c.isprintable() else ' ' if c.isspace() else '�' for c in str(value))


def _csv(value: Any) -> Any:
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, default=_json)
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _json(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    raise TypeError(f'not JSON data: {value!r}')
