"""Reports as Markdown and as HTML: text of a study has no effect in either."""

import gzip
import html.parser
import re

import pytest

from paxtune.plots.script import Script
from paxtune.reports.report_page import to_html
from paxtune.reports.report_text import inline, to_markdown
from paxtune.reports.study_report import Section
from paxtune.reports.tables import Table

PACKED = gzip.compress(b'window.Plotly = {}')
EVIL = [
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    '</script><script>alert(1)</script>',
    'a | b \\| c \\',
    '`code` ``` fence',
    '@someone #12 user/repo#3 [a](javascript:x) ![i](https://e.example/x.png)',
    '*b* _i_ ~~s~~ $x$ :smile: https://evil.example www.evil.example a@evil.example',
    '# heading',
    '1. list',
    '\x1b[2J\u202e',
]


def report(text: str) -> list[Section]:
    table = Table([{text: text, 'x': 1.5}], [text, 'x'], text, text)
    return [Section('progress', text, {}, [table], [text], [f'echo {text}'])]


class Parser(html.parser.HTMLParser):
    """Collects the tags and the texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ''

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize('text', EVIL)
def test_html_shows_names_as_text(text: str) -> None:
    page = Parser()
    page.feed(to_html(text, report(text), {}, Script(PACKED, True)))
    assert [tag for tag, _ in page.tags].count('script') == 3
    assert not {'img', 'a', 'link', 'iframe'} & {tag for tag, _ in page.tags}
    names = {name for _, attributes in page.tags for name in attributes}
    assert names == {'lang', 'charset', 'http-equiv', 'content', 'name', 'class', 'id', 'type'}
    if text.isprintable():
        # Its title and heading; the section's; of the table the title, a heading, a cell and the
        # note; the remark and the command.
        assert page.text.count(text) == 9


@pytest.mark.parametrize('text', EVIL)
def test_markdown_shows_names_as_text(text: str) -> None:
    lines = to_markdown(text, report(text)).splitlines()
    bare = []
    for line in lines[: next(i for i, each in enumerate(lines) if re.match('`{3,}', each))]:
        spans = re.sub(r'`[^`]*`|<code>[^<]*</code>', 'code', line)
        bare.append(re.sub(r'^#+ ', '', spans))
    assert not re.search(r'[<>`@*_~$\[\]#\\&!/]|:\w+:|www', '\n'.join(bare))
    (head, rule, row) = (line for line in bare if line.startswith('|'))
    assert head.count('|') == rule.count('|') == row.count('|') == 3


def test_a_fence_of_commands_is_longer_than_those_inside() -> None:
    text = to_markdown('t', report('a ```` b'))
    assert text.endswith('`````sh\necho a ```` b\n`````\n')


def test_inline_keeps_numbers_words_and_times() -> None:
    text = 'On 2026-11-25 17:20:45 trial 3 (the best) had 0.25 ± 1e-05, 99.5%.'
    assert inline(text) == text.replace('99.5%.', '`99.5%.`')


def test_the_policy_of_a_page_allows_its_own_scripts_alone() -> None:
    text = to_html('t', report('x'), {}, Script(PACKED, True))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert policy[1].count('sha256-') == 2
    assert "script-src 'unsafe-inline'" not in policy[1]
