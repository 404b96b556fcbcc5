"""A real Chromium opens the page of a running study, and changes the study."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from paxtune.storage.open_study import load_study
from tests.factories.page_searches import WORKERS, searching
from tests.servers import chromium
from tests.servers.study_page import expect_column, served_when_there, visit

pytestmark = pytest.mark.slow


@pytest.mark.sentinel
def test_browser_follows_and_changes_a_running_study(browser: Browser, tmp_path: Path) -> None:
    directory, gates = tmp_path / 'study', tmp_path / 'gates'
    with (
        searching('held_search', directory, gates) as search,
        served_when_there(directory) as url,
        chromium.tab(browser) as tab,
    ):
        page = tab.page
        visit(page, url)
        expect(page.locator('#running tbody tr')).to_have_count(WORKERS)
        page.evaluate('window.isSameDocument = true')

        page.get_by_role('link', name='Trials').click()
        _expect(page, [3, 2, 1], ['active'] * 3)
        _end(gates, 1)
        _expect(page, [4, 3, 2, 1], ['active', 'active', 'active', 'completed'])
        _end(gates, 2)
        _expect(page, [5, 4, 3, 2, 1], ['active'] * 3 + ['completed'] * 2)

        with load_study(directory) as study:
            rates = {trial.id: trial.decisions['rate'] for trial in study.trials}
        by_rate = sorted(rates, key=rates.__getitem__)
        heading = page.locator('#trials').get_by_role('columnheader', name='rate')
        heading.click()
        _expect(page, by_rate)
        heading.click()
        _expect(page, by_rate[::-1])
        page.locator('#filter').fill('state=completed')
        _expect(page, [number for number in by_rate[::-1] if number < 3])
        lowest = next(number for number in by_rate if number < 3)
        page.locator('#filter').fill(f'state=completed rate<={rates[lowest] * 1.001}')
        _expect(page, [lowest])
        expect(page.locator('#trials-label')).to_have_text('1 of 5 trials')
        page.locator('#filter').fill('')
        _expect(page, by_rate[::-1])

        page.get_by_role('link', name='2', exact=True).click()
        expect(page.get_by_role('heading', name='Trial 2')).to_be_visible()
        expect(page.locator('#trial-live')).to_contain_text('Measurements')
        page.get_by_role('link', name='Compare with the best').click()
        page.locator('#compared').fill('2, 1')
        page.keyboard.press('Enter')
        expect(page.locator('#difference th')).to_have_text(['', '2', '1'])
        expect(page.locator('#difference')).to_contain_text('rate')

        page.get_by_role('link', name='Trials').click()
        page.get_by_role('link', name='3', exact=True).click()
        page.get_by_role('button', name='Stop this trial').click()
        expect(page.locator('#trial-done')).to_contain_text('trial 3')
        expect(page.locator('#trial-live')).to_contain_text('stopped')
        with load_study(directory) as study:
            assert str(study.trial(3).status) == 'stopped'

        page.get_by_role('link', name='Overview').click()
        page.get_by_role('button', name='Pause the search').click()
        expect(page.locator('#view')).to_contain_text('A pause was requested.')
        assert search.wait(timeout=120) == 0
        assert page.evaluate('window.isSameDocument')
        assert not tab.problems


def _end(gates: Path, trial: int) -> None:
    """Lets a running trial end."""
    (gates / str(trial)).touch()


def _expect(page: Page, trials: list[int], states: list[str] | None = None) -> None:
    """Waits until the table shows these trials, in this order."""
    expect_column(page, 'trial', trials)
    if states is not None:
        expect_column(page, 'state', states)
