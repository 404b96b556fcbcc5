"""Small HTML tables, as notebooks show objects."""

import html
from collections.abc import Iterable

_MAX_CHARACTERS = 200


def html_table(caption: str, headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Renders a table. All text is escaped, and long text is shortened.

    Example:
        >>> print(html_table('Trials <1>', ['x'], [['a & b']]))
        <table><caption style="text-align: left"><b>Trials &lt;1&gt;</b></caption>
        <thead><tr><th style="text-align: left">x</th></tr></thead>
        <tbody>
        <tr><td style="text-align: left">a &amp; b</td></tr>
        </tbody></table>
    """
    title = f'<caption style="text-align: left"><b>{_text(caption)}</b></caption>'
    head = f'<thead>{_row("th", headings)}</thead>'
    body = '\n'.join(['<tbody>', *(_row('td', row) for row in rows), '</tbody>'])
    return f'<table>{title}\n{head}\n{body}</table>'


def _row(tag: str, cells: Iterable[object]) -> str:
    style = 'style="text-align: left"'
    return f'<tr>{"".join(f"<{tag} {style}>{_text(cell)}</{tag}>" for cell in cells)}</tr>'


def _text(value: object) -> str:
    text = '' if value is None else f'{value:.6g}' if isinstance(value, float) else str(value)
    if len(text) > _MAX_CHARACTERS:
        text = text[: _MAX_CHARACTERS - 1] + '…'
    return html.escape(text)
