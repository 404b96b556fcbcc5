"""The quick start and the tutorials lead to what they say: their files, commands and output."""

from pathlib import Path

import pytest

from tests.documents import ROOT, links, pages_of
from tests.followed import differences, files_of, follow

PAGES = [page for page in pages_of(__file__) if page.name != 'README.md']
CONCEPT = ROOT / 'docs' / 'how-a-search-works.md'
FOLLOWED = [page for page in PAGES if page != CONCEPT]
INDEX = ROOT / 'docs' / 'tutorials' / 'README.md'

each_page = pytest.mark.parametrize('page', FOLLOWED, ids=lambda path: path.stem)


@pytest.mark.slow(reason='a page is followed whole, as its reader does')
@each_page
def test_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    followed = follow(page.read_text(), tmp_path)
    assert not [*differences(followed)], followed.printed


@each_page
def test_tutorial_names_its_files(page: Path) -> None:
    for name, text in files_of(page.read_text()).items():
        compile(text, name, 'exec')


def test_the_index_lists_every_tutorial() -> None:
    listed = {(INDEX.parent / link).resolve() for link in links(INDEX.read_text())}
    assert {*FOLLOWED} <= listed


_PAGE = """
This is a file `count.py`.

```python
print('counted to', 3)
```

```sh
python count.py
```

```text
counted to 12
```
"""


@pytest.mark.parametrize('line', ['counted to 12', 'counted   to 3', 'counted … 4.5e-06', '…3'])
def test_followed_output_may_differ_in_numbers(line: str, tmp_path: Path) -> None:
    page = _PAGE.replace('counted to 12', line)
    assert not [*differences(follow(page, tmp_path))]


@pytest.mark.parametrize('line', ['counted to', 'counting to 3', 'counted to 3\ncounted to 3'])
def test_other_output_is_a_difference(line: str, tmp_path: Path) -> None:
    page = _PAGE.replace('counted to 12', line)
    assert len([*differences(follow(page, tmp_path))]) == 1


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match='No such file'):
        follow(_PAGE.replace('python count.py', 'cat nothing\npython count.py'), tmp_path)


def test_a_page_that_fails_beside_a_service_ends(tmp_path: Path) -> None:
    page = _PAGE.replace('python count.py', 'sleep 600 &\ncat nothing')
    with pytest.raises(AssertionError, match='No such file'):
        follow(page, tmp_path)
