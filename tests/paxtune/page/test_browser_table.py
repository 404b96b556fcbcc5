"""A real Chromium at the table of trials: order, filters, columns, selection, and addresses."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.factories.page_searches import make_study
from tests.servers import chromium
from tests.servers.study_page import address_of, expect_column, served, visit

pytestmark = pytest.mark.slow

COUNT = 95


@pytest.fixture(scope='module')
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of more trials than are in sight; the reward falls with the number."""
    made = tmp_path_factory.mktemp('table') / 'study'
    make_study(made, COUNT)
    return made


def test_browser_sorts_filters_and_shares_a_view(browser: Browser, directory: Path) -> None:
    with served(directory) as url, chromium.tab(browser) as tab, chromium.tab(browser) as other:
        page = tab.page
        visit(page, address_of(url, 'trials'))
        expect(page.locator('#trials-label')).to_have_text(f'{COUNT + 1} of {COUNT + 1} trials')
        assert '?' not in page.url
        _filter(page, 'loss', '0.2')
        expect(page).to_have_url(re.compile('where='))
        expect(page.locator('#trials-label')).to_have_text(f'1 of {COUNT + 1} trials')
        expect_column(page, 'trial', [5])
        _filter(page, 'loss', '')
        page.locator('#filter').fill('state=completed size<=4')
        expect_column(page, 'trial', [4, 3, 2, 1])
        page.locator('#trials').get_by_role('columnheader', name='loss').click()
        expect_column(page, 'trial', [4, 3, 2, 1])
        expect(page).to_have_url(re.compile('sort=loss'))
        page.locator('#trials').get_by_role('columnheader', name='loss').click()
        expect_column(page, 'trial', [1, 2, 3, 4])
        page.get_by_text('Columns', exact=True).click()
        page.get_by_label('attempt', exact=True).check()
        expect_column(page, 'attempt', [1, 1, 1, 1])
        shared = page.url
        page.reload()
        expect_column(page, 'trial', [1, 2, 3, 4])
        expect_column(page, 'attempt', [1, 1, 1, 1])
        expect(page.locator('#filter')).to_have_value('state=completed size<=4')
        visit(other.page, address_of(url, 'trials' + shared.partition('/trials')[2]))
        expect_column(other.page, 'trial', [1, 2, 3, 4])
        # The table has no time to follow in between.
        page.go_back()
        page.go_back()
        expect_column(page, 'trial', [4, 3, 2, 1])
        expect(page.locator('#trials [col-id=attempt]')).to_have_count(0)
        expect(page).to_have_url(re.compile('sort=loss'))
        page.go_forward()
        page.go_forward()
        expect_column(page, 'attempt', [1, 1, 1, 1])
        expect_column(page, 'trial', [1, 2, 3, 4])
        assert page.url == shared
        assert not tab.problems and not other.problems


def test_browser_selects_trials_and_compares_them(browser: Browser, directory: Path) -> None:
    with served(directory) as url, chromium.tab(browser) as tab:
        page = tab.page
        visit(page, address_of(url, 'trials?sort=trial'))
        boxes = page.locator('#trials input[type=checkbox]')
        expect_column(page, 'trial', range(1, 1 + boxes.count()))
        for place in (1, 2, 4):
            page.locator(f'#trials .ag-row[row-index="{place}"] input[type=checkbox]').click()
        expect(page).to_have_url(re.compile(r'trials=2,3,5$'))
        # Rows far below are drawn when they are in sight.
        page.locator('#trials .ag-center-cols-container').hover()
        page.mouse.wheel(0, 28 * 75)
        expect(page.locator('#trials .ag-row a', has_text=re.compile('^80$'))).to_be_visible()
        page.get_by_role('link', name='Compare', exact=True).click()
        expect(page.locator('#difference th')).to_have_text(['', '2', '3', '5'])
        page.locator('#compared').fill('2, best')
        page.keyboard.press('Enter')
        expect(page.locator('#difference th')).to_have_text(['', '2', f'{COUNT - 1}'])
        page.go_back()
        expect(page.locator('#difference th')).to_have_text(['', '2', '3', '5'])
        page.get_by_role('link', name='Overview').click()
        page.wait_for_selector('#figure-history .main-svg')
        outlined = '#figure-history path.point[style*="stroke-width: 1.5px"]'
        expect(page.locator(outlined)).to_have_count(3)
        page.get_by_role('link', name='Trials', exact=True).click()
        expect(page.locator('#trials .ag-pinned-left-cols-container .chosen')).to_have_count(3)
        page.emulate_media(color_scheme='dark')
        for part, colored in (('.ag-root-wrapper', 'backgroundColor'), ('.ag-row', 'color')):
            color = f'each => getComputedStyle(each).{colored}'
            expected = page.locator('body').evaluate(color)
            assert page.locator(f'#trials {part}').first.evaluate(color) == expected
        page.get_by_role('link', name='Overview').click()
        page.evaluate('window.isSameDocument = true')
        page.locator('#overview-best a.trial').click()
        expect(page.get_by_role('heading', name=f'Trial {COUNT - 1}')).to_be_visible()
        assert 'trials=2,3,5' in page.url and page.evaluate('window.isSameDocument')
        assert not tab.problems


def _filter(page: Page, column: str, text: str) -> None:
    """Types into the filter below a heading of the table."""
    cells = page.locator('#trials .ag-header-viewport .ag-floating-filter')
    place = page.locator('#trials .ag-header-viewport .ag-header-cell:not(.ag-floating-filter)')
    names = place.evaluate_all('all => all.map(each => each.getAttribute("col-id"))')
    cells.nth(names.index(column)).locator('input').first.fill(text)
