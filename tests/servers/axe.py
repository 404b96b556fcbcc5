"""axe-core, which finds faults of accessibility in a page. npm fetches it once."""

import functools
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tools import hatch_build

VERSION = '4.14.1'
INTEGRITY = (
    'FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=='
)
_CACHE = Path('~/.cache/paxtune/tests').expanduser()
_SERIOUS = ('serious', 'critical')
_RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(
    each => [each.impact, each.id, ...each.nodes.slice(0, 5).map(node => node.html)])"""


@functools.cache
def script() -> str:
    """Returns the script; raises `hatch_build.BuildError` where npm cannot fetch it."""
    kept = _CACHE / f'axe-core-{VERSION}.tgz'
    if kept.exists():
        archive = kept.read_bytes()
    else:
        with tempfile.TemporaryDirectory() as directory:
            archive = hatch_build.fetched(Path(directory), f'axe-core@{VERSION}')
    (found,) = hatch_build.unpacked(archive, INTEGRITY, ['axe.min.js'])
    _CACHE.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(archive)
    return found.decode()


def faults(page: Page) -> list[list[str]]:
    """Lists the serious faults of an open page: impact, rule, elements; and order of headings."""
    page.evaluate(script())
    found: list[list[str]] = page.evaluate(_RUN)
    return [each for each in found if each[0] in _SERIOUS or each[1] == 'heading-order']
