"""`paxtune.studies report`: its files, and the page in a real browser."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paxtune.plots import script
from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main
from tests.factories.studies import EVIL, ask, finish, make_long_study
from tests.factories.toys import OBJECTIVES, search, toy
from trainer.symbolic.errors import UserError

Shown = Callable[..., str]

CHROMIUM = '/usr/bin/chromium'
ARGUMENTS = ['--no-sandbox', '--disable-gpu', '--disable-background-networking']
MAX_BYTES = 1_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A study with two completed trials."""
    with open_study(tmp_path / 'study', toy()) as study:
        for _ in range(2):
            finish(ask(study))
    return tmp_path / 'study'


def test_a_report_in_markdown_is_written_and_printed(directory: Path, shown: Shown) -> None:
    printed = shown('report', directory)
    out = directory / 'report.md'
    assert shown('report', directory, f'--out={out}').startswith(f'The report is in {out} (')
    assert out.read_text() == printed
    headings = [line for line in printed.splitlines() if line.startswith('## ')]
    assert headings == [
        '## What was searched',
        '## How it was searched',
        '## States and faults',
        '## Best trials',
        '## Checks',
        '## Importance of decisions',
        '## Edges of ranges',
        '## Next trials',
        '## Commands',
        '## Versions',
    ]


def test_json_of_a_report_is_its_content_or_its_file(directory: Path, shown: Shown) -> None:
    content = json.loads(shown('report', directory, '--json'))
    assert content['progress']['states'] == {'completed': 2}
    assert content['next']['trials'][0]['trial'] == 3
    out = directory / 'report.md'
    written = json.loads(shown('report', directory, f'--out={out}', '--json'))
    assert written == {'file': str(out), 'bytes': out.stat().st_size, 'remark': None}


@pytest.mark.parametrize('name', ['report.pdf', 'report', 'report.html.gz'])
def test_a_report_of_another_kind_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(UserError, match=r'FILE\.html or FILE\.md'):
        main(['report', str(directory), f'--out={name}'])


def test_a_report_that_cannot_be_written_is_refused(directory: Path) -> None:
    with pytest.raises(UserError, match='cannot be written'):
        main(['report', str(directory), f'--out={directory}/missing/../../no/report.md'])


def test_without_its_small_script_a_report_has_that_of_plotly(
    directory: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, 'BUNDLE', directory / 'missing')
    out = directory / 'report.html'
    written = json.loads(shown('report', directory, f'--out={out}', '--json'))
    assert 'contains all of plotly.js' in written['remark']
    assert MAX_BYTES < written['bytes'] < 2.5 * MAX_BYTES


def test_a_report_of_100_long_trials_is_below_1_mb(tmp_path: Path, shown: Shown) -> None:
    make_long_study(tmp_path / 'study')
    out = tmp_path / 'report.html'
    written = json.loads(shown('report', tmp_path / 'study', f'--out={out}', '--json'))
    assert written['remark'] is None, written
    assert out.stat().st_size == written['bytes'] < MAX_BYTES
    text = out.read_text()
    assert EVIL not in text
    assert EVIL.replace('<', '&lt;').replace('>', '&gt;').replace('"', '&quot;') in text
    assert text.count('id="plotly"') == 1


@pytest.mark.slow
def test_a_browser_draws_the_report_without_a_network(tmp_path: Path, shown: Shown) -> None:
    make_long_study(tmp_path / 'study')
    out = tmp_path / 'report.html'
    shown('report', tmp_path / 'study', f'--out={out}')
    figures, title = drawn(out)
    assert figures == {
        'Optimization history',
        'Learning curves',
        'Rank correlation with the final loss',
        'Slices: 90 of 100 trials',
        'Decisions: 90 of 100 trials',
        'Importance for loss, of 90 completed trials',
        'Workers and attempts',
    }
    assert title == 'Search of study'


@pytest.mark.slow
def test_a_browser_draws_the_front_and_the_timeline(tmp_path: Path, shown: Shown) -> None:
    with open_study(tmp_path / 'study', toy(search=search(objective=OBJECTIVES))) as study:
        for loss, accuracy in ((1.0, 0.5), (0.5, 0.4), (2.0, 0.3)):
            study.tell(ask(study), {'loss': loss, 'accuracy': accuracy})
    out = tmp_path / 'report.html'
    shown('report', tmp_path / 'study', f'--out={out}')
    figures, _ = drawn(out)
    assert 'Workers and attempts' in figures
    assert 'Pareto front: 2 of 3 trials' in figures


def drawn(page_file: Path) -> tuple[set[str], str]:
    """Opens a page; returns the titles of its figures, and its own."""
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(offline=True)
        page.on('console', lambda message: problems.append(message.text))
        page.on('pageerror', lambda error: problems.append(str(error)))
        page.on('request', lambda request: problems.append(request.url))
        page.goto(page_file.as_uri())
        page.wait_for_selector('body[data-drawn=yes]', timeout=60_000)
        figures = page.locator('.figure').count()
        titles = page.locator('.figure .gtitle').all_text_contents()
        empty = page.evaluate(
            "[...document.querySelectorAll('.figure')].filter("
            "each => !each.querySelector('.trace, .bars .point')).length"
        )
        title = page.title()
        browser.close()
    assert problems == [page_file.as_uri()]
    assert len(titles) == figures
    assert empty == 0
    return set(titles), title
