"""Each page with code belongs to a test that runs the code."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, modules_testing

PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
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
