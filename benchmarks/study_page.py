"""Time until the study page of 10,000 trials is interactive, and the memory of its server.

    python benchmarks/study_page.py --check

Chromium opens the overview of the study `ranges` of `large_study.py`. It is interactive once its
numbers, tables and figure are drawn, and a click on `Trials` has changed the view. Each repetition
has a new server and a new browser; the median time counts. Then the browser visits each view.
Memory is resident memory of the server's process. The forest of importance and the Gaussian process
are fitted in processes of their own, which end with it. Goals: at most 2 s, below 300 MB also after
all views.

`--quick` makes a tenth of the trials and measures once; `--check` exits with 1 where a goal is
missed.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks import large_study  # noqa: E402
from paxtune.page.figures import FigureView  # noqa: E402
from paxtune.page.views import VIEWS  # noqa: E402

SECONDS_GOAL, MEGABYTES_GOAL = 2.0, 300.0
CHROMIUM = os.environ.get('CHROMIUM', '/usr/bin/chromium')
FLAGS = [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--no-first-run',
]
FIGURES = {view.path: view.panels for view in VIEWS if isinstance(view, FigureView)}
SELECTORS = {'/': '#overview-tables table', '/trials': '#trials tbody tr'} | {
    path: f'#{panels[-1].id} .main-svg' for path, panels in FIGURES.items()
}
SELECTORS |= {'/trial/1': '#figure-trial .main-svg', '/compare/1/2': '#compare'}
DRAWN = """() => {
    const all = [...document.querySelectorAll('.figure')];
    return all.every(each => each.querySelector('.main-svg') &&
        !each.textContent.includes('Drawing …'));
}"""
"""True once no figure of a view waits for its data."""


@contextlib.contextmanager
def served(directory: Path) -> Iterator[tuple[int, str]]:
    """Serves the page of a study; yields the process and the address."""
    command = [sys.executable, '-m', 'paxtune.studies', 'page', str(directory), '--port=0']
    server = subprocess.Popen([*command, '--json'], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.pid, json.loads(server.stdout.readline())['url']
    finally:
        server.terminate()
        server.wait()


def megabytes(process: int) -> float:
    """The resident memory of a process."""
    lines = Path(f'/proc/{process}/status').read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith('VmRSS'))


def wait_for(page: Page, path: str) -> None:
    """Asks for the figures of a view that are drawn only then, and waits until all are drawn."""
    for panel in FIGURES.get(path, ()):
        if panel.heading:
            page.click(f'#ask-{panel.name}')
    page.wait_for_selector(SELECTORS[path], timeout=120_000)
    page.wait_for_function(DRAWN, timeout=120_000)


def opened(page: Page, url: str) -> tuple[float, float]:
    """Opens the overview; returns seconds until it is drawn, and until a click is answered."""
    start = time.perf_counter()
    page.goto(url)
    wait_for(page, '/')
    drawn = time.perf_counter() - start
    page.click('nav a[href="/trials"]')
    page.wait_for_selector('#filter')
    return drawn, time.perf_counter() - start - drawn


def visited(page: Page, url: str, process: int) -> dict[str, tuple[float, float]]:
    """Visits each view; returns the seconds until it is drawn, and the memory after it."""
    found = {}
    for path in SELECTORS:
        start = time.perf_counter()
        page.goto(urljoin(url, path))
        wait_for(page, path)
        found[path] = time.perf_counter() - start, megabytes(process)
    return found


def measured(directory: Path) -> tuple[float, float, float, dict[str, tuple[float, float]]]:
    """Seconds of the overview and of the click, the memory after them, and each view."""
    with served(directory) as (process, url), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={'width': 1280, 'height': 900})
        drawn, answered = opened(page, url)
        memory = megabytes(process)
        views = visited(page, url, process)
        browser.close()
    return drawn, answered, memory, views


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    count = 1000 if args.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        large_study.make(Path(folder), 'ranges', count)
        found = [measured(Path(folder)) for _ in range(1 if args.quick else 3)]
    drawn, answered, memory, views = sorted(found, key=lambda each: each[0] + each[1])[
        len(found) // 2
    ]
    print(f'{count:,} trials: overview {drawn:.2f} s, click {answered:.2f} s, {memory:.0f} MB')
    for path, (seconds, size) in views.items():
        print(f'{path:14} drawn in {seconds:5.2f} s  {size:4.0f} MB')
    most = max(size for each in found for _, size in [(0.0, each[2]), *each[3].values()])
    result = {'interactive_seconds': drawn + answered, 'resident_megabytes': most}
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in result.items()}))
    is_missed = drawn + answered > SECONDS_GOAL or most >= MEGABYTES_GOAL
    return int(args.check and is_missed)


if __name__ == '__main__':
    sys.exit(main())
