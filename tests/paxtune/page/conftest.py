"""Fixtures of tests of the study page."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from paxtune.page.live import LiveStudy
from tests.factories.page_searches import make_study, opened
from tests.servers import chromium


@pytest.fixture(scope='session')
def study_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that tests only read."""
    directory = tmp_path_factory.mktemp('page') / 'study'
    make_study(directory)
    return directory


@pytest.fixture
def live(study_directory: Path) -> Iterator[LiveStudy]:
    """The same, opened."""
    with closing(opened(study_directory)) as live:
        yield live


# Playwright has a running event loop, with which other modules could not call `asyncio.run`.
@pytest.fixture(scope='module')
def browser() -> Iterator[Browser]:
    """Debian's browser. A skip is a failure in CI."""
    try:
        chromium.executable()
    except chromium.ChromiumMissingError as error:
        pytest.skip(str(error))
    expect.set_options(timeout=chromium.LIMIT_MS)
    with chromium.started() as browser:
        yield browser
