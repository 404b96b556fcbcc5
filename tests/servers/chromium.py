"""Debian's Chromium, driven by playwright, and what goes wrong in its pages."""

import contextlib
import shutil
from collections.abc import Iterator
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

NAMES = ('chromium', 'chromium-browser', 'google-chrome')
SIZE = (1280, 800)
LIMIT_MS = 120_000  # The machine may be busy with other tests.
_FLAGS = (
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
)  # fmt: skip


class ChromiumMissingError(Exception):
    """This machine has no Chromium."""


def executable() -> str:
    """Finds the browser on the PATH; raises ChromiumMissingError."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise ChromiumMissingError(
        f'none of {", ".join(NAMES)} is on the PATH: apt-get install chromium'
    )


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Runs the browser, without a window, while entered."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page in a profile of its own.

    Attributes:
        page: the page.
        problems: errors and warnings of its console, of which violations of its content security
            policy are some, errors of its scripts, dialogs, and requests to other hosts.
    """

    def __init__(self, browser: Browser) -> None:
        width, height = SIZE
        self._context = browser.new_context(viewport={'width': width, 'height': height})
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(LIMIT_MS)
        self.problems: list[str] = []
        self.page.on('console', self._on_console)
        self.page.on('pageerror', lambda error: self.problems.append(f'script: {error}'))
        self.page.on('dialog', self._on_dialog)
        self._context.on('request', self._on_request)

    def close(self) -> None:
        """Closes the page and forgets its profile."""
        self._context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ('error', 'warning'):
            self.problems.append(f'console: {message.text}')

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f'dialog: {dialog.message}')
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ('data', 'blob', 'file') and address.hostname != '127.0.0.1':
            self.problems.append(f'request: {request.url}')


@contextlib.contextmanager
def tab(browser: Browser) -> Iterator[Tab]:
    """Opens a tab while entered."""
    with contextlib.closing(Tab(browser)) as opened:
        yield opened
