"""docs/architecture.md and the decision records name folders and files that exist."""

import pkgutil
import re
from pathlib import Path

import pytest

from tests.documents import ROOT
from trainer.symbolic import names

ARCHITECTURE = ROOT / 'docs' / 'architecture.md'
DOCUMENTS = [ARCHITECTURE, ROOT / 'docs' / 'glossary.md', *(ROOT / 'docs' / 'adr').glob('*.md')]
DOCUMENTS += [ROOT / 'CONTRIBUTING.md', ROOT / 'SECURITY.md']


@pytest.mark.parametrize('package', ['trainer', 'paxtune'])
def test_architecture_names_every_room(package: str) -> None:
    table = ARCHITECTURE.read_text().partition(f'| `{package}/` |')[2].partition('\n\n')[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r'`(\w+)/`', row.split('|')[1])
    }
    rooms = {path.parent.name for path in (ROOT / package).glob('*/__init__.py')}
    assert named == rooms


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.stem)
def test_document_names_existing_files(document: Path) -> None:
    for name in re.findall(r'`([\w/]+\.py)`', document.read_text()):
        assert any((ROOT / room / name).is_file() for room in ('', 'paxtune', 'trainer')), name
    for name in re.findall(r'`(\w+/[\w/]+/)`', document.read_text()):
        assert (ROOT / name).is_dir(), name


@pytest.mark.parametrize(
    'document',
    [
        ROOT / 'README.md',
        *DOCUMENTS,
        *(ROOT / 'docs').glob('*.md'),
        *(ROOT / 'docs').glob('t*/*.md'),
    ],
    ids=lambda path: f'{path.parent.name}-{path.stem}',
)
def test_document_names_existing_objects(document: Path) -> None:
    for name in re.findall(r'`((?:trainer|paxtune|tests)(?:\.\w+)+)[`(]', document.read_text()):
        # A component is called by its package and class in files; `paxtune.py` is a file.
        if not name.endswith('.py') and not names.class_in_file(name):
            assert pkgutil.resolve_name(name), name
