"""Each page with code belongs to a test that runs the code; links and plain commands of pages."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, commands_of, dead_links, modules_testing, parsed
from trainer.experiment import Experiment
from trainer.symbolic import registry

PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
# The other guides write modules of their own first: see their tests.
PLAIN = (
    'training',
    'fine-tuning',
    'performance',
    'how-a-search-works',
    'quick-start',
    'tutorials/*',
)
COMMANDS = [
    [word for word in words if word != '&']
    for name in PLAIN
    for path in sorted((ROOT / 'docs').glob(f'{name}.md'))
    for words in commands_of(path.read_text())
    if words[:2] == ['python', '-m']
]
_FENCE = re.compile(r'^```(.*)$', re.MULTILINE)
_CODE = {'python', 'py', 'sh'}
_OTHER = {'', 'text', 'json', 'console'}


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_with_code_has_a_test(page: Path) -> None:
    languages = {*_FENCE.findall(page.read_text())}
    # A block in another language would be code that nothing looks for.
    assert languages <= _CODE | _OTHER
    tests = modules_testing(page)
    assert tests or not languages & _CODE, 'no test runs the code: see tests/documents.py'
    for test in tests:
        assert 'pages_of(__file__)' in test.read_text(), test


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_links_lead_to_files_and_headings(page: Path) -> None:
    assert not dead_links(page)


@pytest.mark.parametrize('words', COMMANDS, ids=' '.join)
def test_page_commands_take_their_flags(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exp = getattr(parsed(words, monkeypatch), 'exp', None)
    if exp and not exp.startswith('my_'):
        registry.find(exp, Experiment)
