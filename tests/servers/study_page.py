"""The command that serves the study page, as a process, and the views of its page."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from playwright.sync_api import Page, expect

from paxtune.storage.open_study import load_study
from tests.servers.processes import environment
from trainer.symbolic.errors import UserError

# Drawn: a view is there, no callback of it runs, and each graph has a plot, for half a second.
_IS_DRAWN = """() => {
    const view = document.querySelector('#view');
    const all = selector => [...document.querySelectorAll(selector)];
    const isDrawn = view !== null && view.children.length > 0
        && view.dataset.dashIsLoading !== 'true'
        && view.querySelector('[data-dash-is-loading="true"]') === null
        && !view.textContent.includes('Drawing …')
        && all('.dash-graph').every(graph => graph.querySelector('.main-svg') !== null);
    window.drawnSince = isDrawn ? window.drawnSince || performance.now() : 0;
    return isDrawn && performance.now() - window.drawnSince > 500;
}"""


@contextlib.contextmanager
def served(directory: Path, *flags: str) -> Iterator[str]:
    """Runs the command on a study while entered; yields the address that it prints.

    It has the token: see `address_of`.
    """
    command = [sys.executable, '-m', 'paxtune.studies', 'page', '--json', '--port=0']
    root = directory.parents[1]  # The page shows short paths.
    # A file: a pipe that no process reads fills up.
    with open(directory.with_suffix('.page'), 'w+') as errors:
        process = subprocess.Popen(
            [*command, str(directory.relative_to(root)), *flags], cwd=root, env=environment(),
            stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            errors.seek(0)
            assert line, errors.read()
            yield json.loads(line)['url']
        finally:
            process.terminate()
            process.communicate()
        errors.seek(0)
        written = errors.read()
    assert 'Traceback' not in written, written


@contextlib.contextmanager
def served_when_there(directory: Path) -> Iterator[str]:
    """The same for a study that a search is about to make."""
    deadline = time.monotonic() + 120.0
    while True:
        try:
            load_study(directory).close()
            break
        except UserError:
            assert time.monotonic() < deadline, directory.with_suffix('.out').read_text()
            time.sleep(0.1)
    with served(directory) as url:
        yield url


def address_of(url: str, path: str) -> str:
    """Returns the address of a view, with the token that the printed address has."""
    base, _, token = url.partition('?')
    return f'{base.rstrip("/")}/{path.lstrip("/")}{"&" if "?" in path else "?"}{token}'


def views(page: Page) -> dict[str, str]:
    """Maps the views in the navigation of an open page to their paths."""
    page.wait_for_selector('nav a')
    found: dict[str, str] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('nav a')].map(
            link => [link.innerText, link.getAttribute('href')]))"""
    )
    return found


def visit(page: Page, address: str) -> None:
    """Opens an address of the page and waits until the view is drawn."""
    page.goto(address)  # The network is never idle: the page asks for changes.
    _wait(page)


def _wait(page: Page) -> None:
    page.evaluate('window.drawnSince = 0')
    page.wait_for_function(_IS_DRAWN)


def expect_column(page: Page, column: str, expected: Sequence[object]) -> None:
    """Waits until a column of the table of trials has these texts, from the top."""
    page.wait_for_function(
        """([column, expected]) => {
            const cells = [...document.querySelectorAll(`#trials .ag-row [col-id="${column}"]`)];
            const place = cell => Number(cell.closest('.ag-row').getAttribute('row-index'));
            cells.sort((a, b) => place(a) - place(b));
            return JSON.stringify(cells.map(cell => cell.innerText)) === JSON.stringify(expected);
        }""",
        arg=[column, [*map(str, expected)]],
    )


def draw_all(page: Page) -> None:
    """Asks for each figure of the view that waits for that, one after the other."""
    buttons = page.get_by_role('button', name='Draw', exact=True)
    while count := buttons.count():
        buttons.first.click()
        expect(buttons).to_have_count(count - 1)
        _wait(page)
