"""Pictures of each view: the guide shows them, and a browser has no complaints."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser

from paxtune.page.live import LiveStudy
from tests.documents import ROOT
from tests.factories.page_searches import HOST, client
from tests.paxtune.page import screenshots
from tests.servers import chromium

MAX_BYTES = 200_000


def test_guide_shows_a_picture_of_each_view(live: LiveStudy) -> None:
    navigation = _labels(client(live).get('/_dash-layout', base_url=HOST).json)
    assert {'Overview', 'Trials', 'Compare'} <= set(navigation)
    guide = (ROOT / 'docs' / 'tuning' / 'page.md').read_text()
    names = {*map(screenshots.file_name, [*navigation, *screenshots.OTHERS])}
    for name in names:
        assert f'](../images/{name})' in guide, (
            f'{name}: python -m tests.paxtune.page.screenshots --write takes it'
        )
    assert {path.name for path in screenshots.DIRECTORY.glob('page-*.png')} == names


@pytest.mark.slow
def test_browser_shows_each_view_without_problems(browser: Browser, tmp_path: Path) -> None:
    pictures = tmp_path / 'pictures'
    pictures.mkdir()
    problems = screenshots.take(browser, pictures, tmp_path)
    assert not any(problems.values()), problems
    taken = {path.name for path in pictures.iterdir()}
    assert taken == {path.name for path in screenshots.DIRECTORY.glob('page-*.png')}
    for path in [*pictures.iterdir(), *screenshots.DIRECTORY.glob('page-*.png')]:
        assert path.stat().st_size < MAX_BYTES, path
        with Image.open(path) as picture:
            width, height = chromium.SIZE
            assert picture.width == width and picture.height >= height
            assert len(picture.getcolors() or []) > 20, (
                path
            )  # Text has many; an empty page has not.


def _labels(layout: Any) -> list[str]:
    """The texts of the links in the navigation of a layout."""
    if isinstance(layout, list):
        return [label for each in layout for label in _labels(each)]
    if not isinstance(layout, dict):
        return []
    properties = layout['props']
    if layout['type'] == 'Nav':
        return [link['props']['children'] for link in properties['children']]
    return _labels(properties.get('children'))
