"""The study page on a phone: figures and their legends are inside of it."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.servers import chromium
from tests.servers.study_page import address_of, served, visit

pytestmark = pytest.mark.slow

_OUTSIDE = """() => [...document.querySelectorAll('.gtitle, .legend, .xtitle, .modebar')]
    .filter(each => each.getBoundingClientRect().right > window.innerWidth + 1)
    .map(each => each.textContent)"""
_OVERLAPS = """() => {
    const boxes = selector => [...document.querySelectorAll(selector)].map(
        each => each.getBoundingClientRect()).filter(each => each.width);
    return boxes('.legend').some(a => boxes('.modebar').some(
        b => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
}"""


@pytest.mark.parametrize('width', [390, 1280])
def test_browser_has_titles_and_legends_inside(
    browser: Browser, study_directory: Path, width: int
) -> None:
    with served(study_directory) as url, chromium.tab(browser) as tab:
        page = tab.page
        page.set_viewport_size({'width': width, 'height': 844})
        for path in ('', 'decisions', 'learning', 'trial/1'):
            visit(page, address_of(url, path))
            assert page.evaluate(_OUTSIDE) == [], path
            assert not page.evaluate(_OVERLAPS), path
            assert page.evaluate('document.documentElement.scrollWidth') <= width
        visit(page, address_of(url, 'trials'))
        page.locator('#trials').get_by_role('link', name='4', exact=True).click()
        expect(page.get_by_role('heading', name='Trial 4')).to_be_visible()
        assert not tab.problems
