"""Pictures of the views of the study page, for its guide.

    python -m tests.paxtune.page.screenshots --write

takes them again. Most show a search that runs meanwhile (`searches.learning_search`), the others a
study of language models.
"""

import argparse
import dataclasses
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

from paxtune.storage.open_study import load_study, open_study
from search_spaces.lm import StdlibTunable
from tests.factories.page_searches import LEARNED, WORKERS, searching
from tests.servers import chromium
from tests.servers.processes import ROOT
from tests.servers.study_page import address_of, draw_all, served, served_when_there, views, visit

DIRECTORY = ROOT / 'docs' / 'images'

TRIAL, ARCHITECTURE, STUDIES = 'Trial', 'Architecture', 'Studies'
OTHERS = (TRIAL, ARCHITECTURE, STUDIES)
"""Views that no link of the navigation leads to."""


def file_name(view: str) -> str:
    """Names the picture of a view.

    Example:
        >>> file_name('Trade-off')
        'page-trade-off.png'
    """
    return f'page-{view.lower().replace(" ", "-")}.png'


def take(browser: Browser, directory: Path, scratch: Path) -> dict[str, list[str]]:
    """Takes a picture of each view of the page; returns the problems of each.

    Args:
        directory: gets the pictures.
        scratch: gets the studies.
    """
    runs = scratch / 'runs'
    runs.mkdir()
    running, models = runs / 'charts.Example', runs / 'lm.StdlibTunable'
    _make_models(models)
    with searching('learning_search', running, scratch), served_when_there(running) as url:
        _wait_for(lambda: _has_measured(running))
        with chromium.tab(browser) as tab:
            visit(tab.page, url)
            paths = views(tab.page)
        del paths['Compare']
        paths[TRIAL] = f'/trial/{_best(running)}'
        problems = _visited(browser, url, paths, directory)
        with served(runs) as all_studies:
            problems |= _visited(browser, all_studies, {STUDIES: '/'}, directory)
    with served(models) as url:
        paths = {'Compare': '/compare?trials=1,2', ARCHITECTURE: '/trial/1'}
        return problems | _visited(browser, url, paths, directory)


def _visited(
    browser: Browser, url: str, paths: Mapping[str, str], directory: Path
) -> dict[str, list[str]]:
    problems = {}
    for view, path in paths.items():
        with chromium.tab(browser) as tab:
            visit(tab.page, address_of(url, path))
            draw_all(tab.page)
            if view == ARCHITECTURE:
                tab.page.locator('#architecture').evaluate('each => each.scrollIntoView()')
            (directory / file_name(view)).write_bytes(_picture(tab.page))
            problems[view] = tab.problems
    return problems


def _make_models(directory: Path) -> None:
    """Makes a study of two models that differ, as if they had been trained."""
    with open_study(directory, StdlibTunable()) as study:
        study.store.update_study(lambda record: dataclasses.replace(record, exp='lm.StdlibTunable'))
        for bits in (2.6, 2.4):
            trial = study.ask()
            assert trial is not None
            trial.report(160, {'eval/bits_per_byte': bits})
            study.tell(trial)


def _picture(page: Page) -> bytes:
    """Takes a picture with 256 colours, which needs a third of the bytes."""
    has_figures = page.locator('.dash-graph').count() > 1
    taken = page.screenshot(animations='disabled', full_page=has_figures)
    written = io.BytesIO()
    with Image.open(io.BytesIO(taken)) as picture:
        picture.convert('RGB').quantize(256).save(written, 'PNG', optimize=True)
    return written.getvalue()


def _best(directory: Path) -> int:
    with load_study(directory) as study:
        assert study.best is not None
        return study.best.id


def _has_measured(directory: Path) -> bool:
    with load_study(directory) as study:
        open_ = [trial for trial in study.trials if trial.id > LEARNED and not trial.is_terminal]
    return len(open_) == WORKERS and all(trial.measurements for trial in open_)


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240.0
    while not is_so():
        assert time.monotonic() < deadline, 'the search is too slow'
        time.sleep(0.2)


def main() -> None:
    """Writes the pictures of the guide again."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('--write', action='store_true', required=True, help='take all again')
    flags.parse_args()
    DIRECTORY.mkdir(exist_ok=True)
    for file in DIRECTORY.glob(file_name('*')):
        file.unlink()
    with (
        tempfile.TemporaryDirectory() as scratch,
        chromium.started() as browser,
    ):
        for view, problems in take(browser, DIRECTORY, Path(scratch)).items():
            print(view, *problems, sep='\n  ')


if __name__ == '__main__':
    main()
