"""The notebooks of `examples/notebooks/`: how they are stored, and that they run."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from paxtune import load_study
from tests.servers.processes import ROOT

FILES = sorted((ROOT / 'examples' / 'notebooks').glob('*.ipynb'))
MAX_SECONDS = 300  # On a machine that does other things, too.
MAX_BYTES = 20_000


def test_there_are_five() -> None:
    names = [path.stem for path in FILES]
    assert names == [
        'analysis',
        'architecture_search',
        'bare_function',
        'first_search',
        'scaling_laws',
    ]


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_each_is_stored_without_outputs(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    name = path.stem.replace('_', '-')
    assert ids == [f'{name}-{index:02}' for index in range(len(ids))]
    for cell in code(notebook):
        assert cell.outputs == [] and cell.execution_count is None
        assert cell.metadata == {}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_each_begins_with_its_time_and_its_parameters(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith('# ')
    assert re.fullmatch(r"SMOKE = False .*\nDIRECTORY = 'runs/\w+'", code(notebook)[0].source)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_to_files(path: Path) -> None:
    links = re.findall(r'\]\((.*?)\)', path.read_text())
    assert links or path.stem == 'analysis'
    for link in links:
        assert (path.parent / link).is_file(), link


@pytest.mark.slow
@pytest.mark.sentinel
@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_each_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    first = code(notebook)[0]
    first.source = first.source.replace('SMOKE = False', 'SMOKE = True')
    NotebookClient(
        notebook,
        timeout=MAX_SECONDS,
        kernel_name='python3',
        resources={'metadata': {'path': str(tmp_path)}},
    ).execute()
    for cell in code(notebook):
        for output in cell.outputs:
            assert output.output_type != 'error'
            # A function of a notebook says that its trials run in threads, and what it knows.
            said = output.text if output.get('name') == 'stderr' else ''
            lines = said.splitlines()
            assert all('in threads' in line or 'Known values' in line for line in lines), said
    with load_study(tmp_path / 'runs' / path.stem) as study:
        assert study.is_done and study.best is not None
    assert '<table>' in str(notebook)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == 'code']
