"""The documentation site builds strictly, its links lead somewhere, and it loads nothing else."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import paxtune
import trainer
from tests.documents import ROOT
from tests.servers import chromium


class Page(NamedTuple):
    """The addresses in a page of the site.

    Attributes:
        anchors: the ids of its elements.
        links: the targets of its links, to pages of the site and others.
        loaded: the addresses of what a browser loads with it.
        tags: the kinds of its elements.
    """

    anchors: set[str]
    links: list[str]
    loaded: list[str]
    tags: set[str]


class Reader(HTMLParser):
    """Collects the addresses in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.page = Page(set(), [], [], set())
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.page.tags.add(tag)
        if 'id' in given:
            self.page.anchors.add(given['id'])
        if tag == 'a' and 'href' in given:
            self.page.links.append(given['href'])
        elif 'href' in given:
            self.page.loaded.append(given['href'])
        if 'src' in given:
            self.page.loaded.append(given['src'])


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site; a warning is an error."""
    directory = tmp_path_factory.mktemp('site')
    done = subprocess.run(
        [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', directory],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope='module')
def pages(site: Path) -> dict[Path, Page]:
    """Reads all pages of the site; that of an error has absolute links, which need a server."""
    files = [path for path in site.rglob('*.html') if path.name != '404.html']
    return {path: Reader(path.read_text()).page for path in files}


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def test_links_and_anchors_exist(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if not is_elsewhere(link):
                parts = urlsplit(link)
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                anchor = unquote(parts.fragment)
                if not target.is_file() or (anchor and anchor not in pages[target].anchors):
                    dead.append(f'{path.name}: {link}')
    assert len(pages) > 40
    assert not dead


def test_links_to_other_sites_are_well_formed(pages: dict[Path, Page]) -> None:
    found = {link for page in pages.values() for link in page.links if is_elsewhere(link)}
    assert 'https://keepachangelog.com/en/1.1.0/' in found
    for link in found:
        assert re.fullmatch(r'https://[a-z0-9-]+(\.[a-z0-9-]+)+(/\S*)?', link), link


def test_pages_load_only_what_is_in_the_site(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.loaded
        for address in page.loaded:
            assert not is_elsewhere(address), f'{path.name}: {address}'
            assert (path.parent / urlsplit(address).path).exists(), f'{path.name}: {address}'
    for style in site.rglob('*.css'):
        # An image in a style may be given in place.
        assert not re.search(r'(@import|url\()\s*["\']?(https?:)?//', style.read_text()), style
    # The theme loads a library for diagrams from elsewhere, where a page has one.
    assert not any('class="mermaid"' in path.read_text() for path in pages)


def test_search_finds_pages_and_public_names(site: Path) -> None:
    index = (site / 'search' / 'search_index.json').read_text()
    for location in (
        'glossary.html',
        'quick-start.html',
        'api/paxtune.html#paxtune.tune',
        'api/paxtune.plots.html#paxtune.plots.history',
        'api/paxtune.analysis.html#paxtune.analysis.importance.importances',
        'api/paxtune.integrations.html#paxtune.integrations.optuna.PaxtuneSampler',
    ):
        assert f'"location":"{location}"' in index


@pytest.mark.slow(reason='builds the site and starts Chromium')
def test_search_works_from_a_disk(site: Path) -> None:
    with chromium.started() as browser, chromium.tab(browser) as tab:
        tab.page.goto((site / 'tuning' / 'objectives.html').as_uri())
        tab.page.keyboard.press('s')
        tab.page.keyboard.type('hypervolume')
        tab.page.locator('.md-search-result__link').first.wait_for()
        tab.page.keyboard.press('Enter')
        tab.page.wait_for_url('**?h=hypervolume*')
        assert 'hypervolume' in tab.page.inner_text('article').lower()
        assert not tab.problems


@pytest.mark.slow(reason='builds the site and starts Chromium')
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_front_page_shows_its_pictures_and_its_version(
    scheme: Literal['light', 'dark'], site: Path
) -> None:
    with chromium.started() as browser, chromium.tab(browser) as tab:
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.goto((site / 'index.html').as_uri())
        drawn = tab.page.locator('img').evaluate_all('all => all.map(each => each.naturalWidth)')
        assert len(drawn) >= 3
        assert all(drawn)
        assert paxtune.__version__ in tab.page.inner_text('.md-source')
        dark = {'light': 'default', 'dark': 'slate'}[scheme]
        assert tab.page.get_attribute('body', 'data-md-color-scheme') == dark
        assert not tab.problems


def test_reference_of_paxtune_begins_with_tune_and_wraps_signatures(site: Path) -> None:
    text = (site / 'api' / 'paxtune.html').read_text()
    names = re.findall(r'<h3 id="(paxtune\.[\w.]+)"', text)
    assert names[0] == 'paxtune.tune'
    signature = re.sub('<[^>]*>', '', text.partition('id="paxtune.tune"')[2].partition('</pre>')[0])
    assert len(signature.splitlines()) > 10


def test_navigation_has_every_page(site: Path) -> None:
    home = Reader((site / 'index.html').read_text()).page
    known = {(site / unquote(urlsplit(link).path)).resolve() for link in home.links}
    pages = {path for path in site.rglob('*.html') if path.name != '404.html'}
    copies = {path for path in pages if path.is_relative_to(site / 'repository')}
    changelog = site / 'repository' / 'CHANGELOG.html'
    assert (pages - copies) | {changelog} <= known
    assert len(pages - copies) > 50


@pytest.mark.parametrize('package', [paxtune, trainer])
def test_reference_has_every_public_name(package: ModuleType, site: Path) -> None:
    page = Reader((site / 'api' / f'{package.__name__}.html').read_text()).page
    public = [name for name in dir(package) if name[0].isalpha()]
    names = [name for name in public if not isinstance(getattr(package, name), ModuleType)]
    assert len(names) >= 6
    assert {f'{package.__name__}.{name}' for name in names} <= page.anchors
    # Prompts outside of code look like quotations.
    assert 'blockquote' not in page.tags
