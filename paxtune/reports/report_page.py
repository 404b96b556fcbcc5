"""A report as one HTML file, which loads nothing and whose policy lets it load nothing."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paxtune.plots.script import Script
from paxtune.reports.study_report import Section
from paxtune.reports.tables import Table, cell, cells
from trainer.command import printable

if TYPE_CHECKING:
    import plotly.graph_objects as go

Figures = Mapping[str, Sequence['go.Figure']]
"""Figures by the key of their section."""

_ASSETS = Path(__file__).parent / 'assets'


def to_html(title: str, sections: Sequence[Section], figures: Figures, script: Script) -> str:
    """Renders a report.

    Args:
        figures: drawn below the tables of their sections.
        script: Plotly's, which draws them.
    """
    named = {
        f'figure-{key}-{i}': each for key, own in figures.items() for i, each in enumerate(own)
    }
    loader = (_ASSETS / 'report.js').read_text()
    parts = [
        '<!doctype html>',
        '<html lang="en">',
        '<head>',
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(loader, script.text)}">',
        '<meta name="viewport" content="width=device-width">',
        f'<title>{_text(title)}</title>',
        f'<style>\n{(_ASSETS / "report.css").read_text()}</style>',
        '</head>',
        '<body>',
        f'<h1>{_text(title)}</h1>',
        '<p id="problem"></p>',
        '<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>',
    ]
    for section in sections:
        parts += _section(
            section, [id_ for id_ in named if id_.startswith(f'figure-{section.key}-')]
        )
    parts += [
        '<!-- plotly.js: Copyright 2012-2026, Plotly, Inc. Licensed under the MIT license. -->',
        _packed('plotly', script.packed),
        _packed('figures', gzip.compress(_data(named).encode(), mtime=0)),
        f'<script>{loader}</script>',
        '</body>',
        '</html>',
    ]
    return '\n'.join(parts) + '\n'


def _policy(*scripts: str) -> str:
    """The content security policy: these scripts alone run, and nothing is loaded or sent."""
    digests = (hashlib.sha256(each.encode()).digest() for each in scripts)
    allowed = ' '.join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _packed(id_: str, content: bytes) -> str:
    """A block of data, which browsers do not run."""
    text = base64.b64encode(content).decode()
    return f'<script type="application/gzip" id="{id_}">{text}</script>'


def _data(figures: 'Mapping[str, go.Figure]') -> str:
    """All figures as JSON, with their common template once."""
    made: dict[str, Any] = {}
    template: Any = {}
    for id_, figure in figures.items():
        content = json.loads(figure.to_json())
        template = content['layout'].pop('template', template)
        made[id_] = content
    return json.dumps({'template': template, 'figures': made}, separators=(',', ':'))


def _section(section: Section, figures: Iterable[str]) -> Iterator[str]:
    yield '<section>'
    yield f'<h2>{_text(section.title)}</h2>'
    for table in section.tables:
        if table.rows:
            yield from _table(table)
    for remark in section.remarks:
        yield f'<p>{_text(remark)}</p>'
    if section.commands:
        yield f'<pre>{html.escape(printable(chr(10).join(section.commands)))}</pre>'
    for id_ in figures:
        yield f'<div class="figure" id="{id_}"></div>'
    yield '</section>'


def _table(table: Table) -> Iterator[str]:
    headings, *lines = cells(table)
    if table.title:
        yield f'<h3>{_text(table.title)}</h3>'
    yield '<div class="scroll"><table>'
    yield f'<thead>{_row("th", headings)}</thead>'
    yield '<tbody>'
    yield from (_row('td', line) for line in lines)
    yield '</tbody></table></div>'
    if table.note:
        yield f'<p class="note">{_text(table.note)}</p>'


def _row(tag: str, line: Iterable[str]) -> str:
    return f'<tr>{"".join(f"<{tag}>{_text(each)}</{tag}>" for each in line)}</tr>'


def _text(value: str) -> str:
    return html.escape(cell(value))
