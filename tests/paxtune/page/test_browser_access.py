"""Accessibility of the page in a real Chromium: axe-core, keyboard, colours, names of tabs."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.factories.page_searches import make_study
from tests.servers import axe, chromium
from tests.servers.study_page import address_of, draw_all, served, views, visit
from tools import hatch_build

pytestmark = pytest.mark.slow

_FOCUSED = """() => {
    const each = document.activeElement, style = getComputedStyle(each);
    if (each === document.body) return ['', true];  // After the last element.
    return [each.textContent, style.outlineStyle !== 'none' || style.boxShadow !== 'none'];
}"""
_COLOUR = 'getComputedStyle(document.body).backgroundColor'
_LIGHT, _DARK = 'rgb(255, 255, 255)', 'rgb(20, 24, 30)'


@pytest.fixture(scope='module')
def url_of_studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two studies and a damaged one."""
    root = tmp_path_factory.mktemp('all') / 'runs'
    for name in ('first', 'second'):
        make_study(root / name)
    (root / 'broken').mkdir()
    (root / 'broken' / 'study.db').write_text('no database')
    return root


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_axe_finds_nothing_serious_on_any_view(
    browser: Browser, url_of_studies: Path, scheme: str
) -> None:
    try:
        axe.script()
    except hatch_build.BuildError as error:
        pytest.skip(str(error))
    found = {}
    with served(url_of_studies) as url, chromium.tab(browser) as tab:
        page = tab.page
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        visit(page, address_of(url, 'study/first/'))
        paths = [*views(page).values(), '/study/first/trial/1', '/study/first/compare?trials=1,2']
        for path in ('', 'compare', *paths):
            visit(page, address_of(url, path))
            draw_all(page)
            if faults := axe.faults(page):
                found[path] = faults
        assert not tab.problems
    assert not found, found


def test_tabs_have_names_and_a_view_is_reached_by_the_keyboard(
    browser: Browser, url_of_studies: Path
) -> None:
    with served(url_of_studies) as url, chromium.tab(browser) as tab:
        page = tab.page
        visit(page, url)
        expect(page).to_have_title('Studies · Studies in runs')
        assert page.evaluate('document.documentElement.lang') == 'en'
        page.keyboard.press('Tab')
        assert page.evaluate(_FOCUSED) == ['Skip to the content', True]
        page.keyboard.press('Enter')
        assert page.evaluate('document.activeElement.id') == 'view'
        _follow(page, 'first')
        expect(page).to_have_title('Overview · first')
        _follow(page, 'Decisions')
        expect(page).to_have_title('Decisions · first')
        expect(page.locator('nav a[aria-current=page]')).to_have_text('Decisions')
        _follow(page, 'All studies')
        expect(page).to_have_title('Studies · Studies in runs')
        expect(page.locator('.damaged')).to_have_count(1)
        assert not tab.problems


def _follow(page: Page, name: str) -> None:
    """Presses Tab until a link has the focus, which is seen, and then Enter."""
    for _ in range(60):
        page.keyboard.press('Tab')
        text, is_seen = page.evaluate(_FOCUSED)
        assert is_seen, text
        if text == name:
            page.keyboard.press('Enter')
            return
    raise AssertionError(f'no Tab leads to {name}')


def test_the_switch_of_colours_is_remembered(browser: Browser, study_directory: Path) -> None:
    with served(study_directory) as url, chromium.tab(browser) as tab:
        page = tab.page
        page.emulate_media(color_scheme='light')
        visit(page, url)
        switch = page.get_by_role('button', name='Dark')
        assert page.evaluate(_COLOUR) == _LIGHT
        switch.click()
        assert page.evaluate(_COLOUR) == _DARK
        visit(page, address_of(url, 'trials'))
        assert page.evaluate(_COLOUR) == _DARK
        expect(switch).to_have_attribute('aria-pressed', 'true')
        switch.click()  # The same as the browser: its preference counts again.
        page.emulate_media(color_scheme='dark')
        page.wait_for_function(f'() => {_COLOUR} == "{_DARK}"')  # The event comes later.
        assert not tab.problems
