"""A real Chromium at the page of a study without a search: notes, files, results, deletion."""

import contextlib
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from paxtune.reports.ask_tell import ask
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.trial_paths import trial_directory
from tests.factories.page_searches import SEARCH, SPACE, make_study
from tests.servers import chromium
from tests.servers.study_page import address_of, served, visit

pytestmark = pytest.mark.slow


def test_browser_keeps_notes_reports_results_and_deletes(browser: Browser, tmp_path: Path) -> None:
    directory = tmp_path / 'study'
    make_study(directory)
    with open_study(directory, SPACE, search=SEARCH) as study:
        assert [each['trial'] for each in ask(study, 2)] == [5, 6]
    with served(directory) as url, chromium.tab(browser) as tab:
        page = tab.page
        visit(page, url)
        page.locator('#note').fill('**why** | so')
        page.get_by_role('button', name='Keep the note').click()
        expect(page.locator('#note-shown strong')).to_have_text('why')

        page.get_by_role('link', name='6', exact=True).click()
        expect(page.get_by_text('This trial waits for its result.')).to_be_visible()
        page.locator('#result-metrics').fill('loss=0.125\nsize=4')
        page.get_by_role('button', name='Report the result').click()
        expect(page.locator('#trial-done')).to_contain_text('Trial 6 is completed. loss = 0.125')
        expect(page.get_by_text('This trial waits for its result.')).to_be_hidden()

        expect(page.get_by_role('button', name='Delete it for good')).to_be_hidden()
        page.get_by_text('Delete this trial').click()
        page.get_by_role('button', name='Delete it for good').click()
        expect(page.locator('#trial-done')).to_contain_text('Deleted: trial 6')
        page.get_by_role('link', name='Trials', exact=True).click()
        expect(page.locator('#trials-label')).to_have_text('5 of 5 trials')
        page.locator('#filter').fill('state=completed')
        expect(page.locator('#trials-label')).to_have_text('3 of 5 trials')
        with page.expect_download() as found:
            page.get_by_role('button', name='Download as CSV').click()
        lines = Path(found.value.path()).read_text().splitlines()
        assert lines[0].startswith('trial,state,loss') and len(lines) == 4
        assert not tab.problems
    with load_study(directory) as study:
        assert study.record.note == '**why** | so' and len(study.trials) == 5


def test_browser_shows_files_of_a_trial(browser: Browser, tmp_path: Path) -> None:
    directory = tmp_path / 'study'
    make_study(directory)
    with load_study(directory) as study:
        folder = Path(trial_directory(directory, study.trial(1)))
    folder.mkdir(parents=True)
    Image.new('RGB', (40, 30)).save(folder / 'a picture?.png')
    (folder / 'table.csv').write_text('step,loss\n1,0.5\n')
    with contextlib.ExitStack() as closing:
        url = closing.enter_context(served(directory))
        tab = closing.enter_context(chromium.tab(browser))
        page = tab.page
        visit(page, address_of(url, 'trial/1'))
        page.get_by_role('button', name='table.csv').click()
        expect(page.locator('#file-shown td')).to_have_text(['1', '0.5'])
        page.get_by_role('button', name='a picture?.png').click()
        picture = page.locator('#file-shown img')
        expect(picture).to_have_js_property('naturalWidth', 40)
        with page.expect_download() as found:
            page.get_by_role('link', name='Download').click()
        assert Path(found.value.path()).read_bytes() == (folder / 'a picture?.png').read_bytes()
        assert not tab.problems
