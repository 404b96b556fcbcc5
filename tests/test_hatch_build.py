"""The build hook that fetches plotly's script."""

import gzip
import io
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

import paxtune
from paxtune.plots import script
from tests.documents import ROOT
from tools import hatch_build


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w:gz') as members:
        for name, content in files.items():
            member = tarfile.TarInfo(f'package/{name}')
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_another_archive_is_refused() -> None:
    with pytest.raises(hatch_build.BuildError, match='has the SHA-512'):
        hatch_build.unpacked(archive(LICENSE=b'MIT', **{hatch_build.SCRIPT: b'evil()'}))


def test_the_installed_script_is_the_pinned_one() -> None:
    assert (ROOT / hatch_build.ASSETS / 'INTEGRITY').read_text() == hatch_build.INTEGRITY
    header = gzip.decompress(script.BUNDLE.read_bytes())[:200].decode()
    assert f'plotly.js (cartesian - minified) v{hatch_build.VERSION}' in header


def test_the_script_has_the_version_of_the_wheel_of_plotly() -> None:
    from plotly.offline import get_plotlyjs_version

    assert get_plotlyjs_version() == hatch_build.VERSION


def test_a_build_without_a_network_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(command: list[str], **how: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr='no network')

    class App:
        warnings: list[str] = []

        def display_warning(self, message: str) -> None:
            self.warnings.append(message)

    monkeypatch.setattr(subprocess, 'run', failing)
    app: Any = App()
    hook = hatch_build.PlotlyScriptHook(str(tmp_path), {}, None, None, '', 'wheel', app)  # type: ignore[arg-type]
    hook.initialize('editable', {})
    (message,) = App.warnings
    assert message.endswith(
        f'npm cannot fetch {hatch_build.PACKAGE}@{hatch_build.VERSION}: no network'
    )
    assert not [*tmp_path.iterdir()]


def test_a_script_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    content = archive(LICENSE=b'MIT', **{hatch_build.SCRIPT: b'Plotly = {}'})
    calls = []

    def fetch(directory: Path) -> bytes:
        calls.append(directory)
        return content

    for _ in range(2):
        hatch_build.add_script(tmp_path, fetch, hatch_build.digest_of(content))
    assert len(calls) == 1
    packed = (tmp_path / f'{hatch_build.SCRIPT}.gz').read_bytes()
    assert gzip.decompress(packed) == b'Plotly = {}'


def test_the_readme_of_the_package_has_absolute_links_to_files_that_exist() -> None:
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    base = project['tool']['hatch']['metadata']['hooks']['custom']['repository']
    text = hatch_build.absolute((ROOT / 'README.md').read_text(), base)
    links = re.findall(r'\]\(([^)]+)\)', text)
    assert all(link.startswith(('https://', '#')) for link in links)
    ours = [link.partition('#')[0] for link in links if link.startswith(base)]
    paths = [re.sub(rf'^{base}/(blob|raw)/main/', '', link) for link in ours]
    assert len(paths) > 10
    assert all((ROOT / path).exists() for path in paths)
    assert f'![A page]({base}/raw/main/a.png)' in hatch_build.absolute('![A page](a.png)', base)


def test_the_citation_names_the_same_repository() -> None:
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    base = project['tool']['hatch']['metadata']['hooks']['custom']['repository']
    citation = (ROOT / 'CITATION.cff').read_text()
    assert f'repository-code: {base}\n' in citation
    assert f'version: {paxtune.__version__}\n' in citation
