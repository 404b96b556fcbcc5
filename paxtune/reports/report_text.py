"""A report as Markdown, for GitHub. Text of a study has no effect there."""

import itertools
import re
from collections.abc import Iterable, Iterator

from paxtune.reports.study_report import Section
from paxtune.reports.tables import Table, cells
from trainer.command import printable

# Words, numbers and times that GitHub does not turn into markup, links or mentions.
_PLAIN = re.compile(
    r"""[(±≤]?(
        [A-Za-z][A-Za-z0-9'-]*[.,:;?)]*
        | [+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?[,;)]*
        | \d{4}-\d\d-\d\d
        | \d\d:\d\d:\d\d
        )""",
    re.VERBOSE,
)
_SIGNS = ('±', '≤', '→')


def to_markdown(title: str, sections: Iterable[Section]) -> str:
    """Renders a report."""
    blocks = [f'# {inline(title)}']
    for section in sections:
        blocks += _blocks(section)
    return '\n\n'.join(blocks) + '\n'


def _blocks(section: Section) -> Iterator[str]:
    yield f'## {inline(section.title)}'
    for table in section.tables:
        if table.rows:
            if table.title:
                yield f'### {inline(table.title)}'
            yield _grid(table)
            if table.note:
                yield inline(table.note)
    yield from (inline(remark) for remark in section.remarks)
    if section.commands:
        yield _fenced(section.commands)


def _grid(table: Table) -> str:
    headings, *lines = cells(table)
    rows = [headings, ['---'] * len(headings), *lines]
    return '\n'.join(
        f'| {" | ".join(each if row is rows[1] else inline(each) for each in row)} |'
        for row in rows
    )


def inline(text: str) -> str:
    """Renders a line of text for a table: words unchanged, anything else as code.

    Example:
        >>> inline('Trial 3 has 0.25.'), inline('the name lr_1 <b> is'), inline('a|b')
        ('Trial 3 has `0.25.`', 'the name `lr_1 <b>` is', '<code>a&#124;b</code>')
    """
    tokens = printable(text).split()
    groups = itertools.groupby(
        tokens, key=lambda each: bool(_PLAIN.fullmatch(each) or each in _SIGNS)
    )
    return ' '.join(' '.join(run) if is_plain else _code(' '.join(run)) for is_plain, run in groups)


def _code(text: str) -> str:
    if not re.search(r'[|`\\]', text):
        return f'`{text}`'
    # A span of code ends at its mark, and a cell at its bar, even within a span.
    return f'<code>{"".join(_entity(character) for character in text)}</code>'


def _entity(character: str) -> str:
    is_plain = character == ' ' or (character.isascii() and character.isalnum())
    return character if is_plain else f'&#{ord(character)};'


def _fenced(lines: Iterable[str]) -> str:
    text = '\n'.join(' '.join(printable(line).split('\n')) for line in lines)
    runs = re.findall(r'`+', text)
    fence = '`' * max(3, *(len(run) + 1 for run in runs)) if runs else '```'
    return f'{fence}sh\n{text}\n{fence}'
