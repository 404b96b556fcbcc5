"""Adds a part to the repository: `python -m tools.new scheduler PatientStopping`.

Writes its file and its test, which pass at once, exports its name, and adds it to the guide. Then
change the file into what you need. `tools/templates/` has a template of each kind of part.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from paxtune.config.named_components import flag_name  # noqa: E402

TEMPLATES = ROOT / 'tools' / 'templates'
KINDS = sorted(path.stem for path in TEMPLATES.glob('*.txt'))
_DEFAULTS = """
from tests.search_spaces import golden
golden.path_of(golden.DEFAULTS).write_text(golden.defaults())
"""


class RefusedError(Exception):
    """The part cannot be added."""


class Change(NamedTuple):
    """A change of a template.

    Attributes:
        action: `write` a file, `import` a name, add a `row` to a table, or a line `after` another.
        path: the file, from the root of the repository.
        place: the header of the table, or the line before.
        text: the new text.
    """

    action: str
    path: str
    place: str
    text: str

    def apply(self, root: Path) -> None:
        """Changes the file.

        Raises:
            RefusedError: the place is missing.
        """
        path = root / self.path
        if self.action == 'write':
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        lines.insert(self._index(lines), self.text)
        path.write_text(''.join(lines))

    def _index(self, lines: list[str]) -> int:
        """The line before which the text stands."""
        if self.action == 'import':  # Ruff sorts it.
            begin, after = self.text[: len(self.text) - len(self.text.lstrip())] + 'from ', 0
        else:
            begin, after = self.place, 1
        found = [index for index, line in enumerate(lines) if line.startswith(begin)]
        if not found:
            raise RefusedError(f'{self.path}: no line begins with {begin!r}')
        index = found[0] + after
        while self.action == 'row' and index < len(lines) and lines[index].startswith('|'):
            index += 1
        return index


def changes(kind: str, name: str) -> Iterator[Change]:
    """Reads the changes that add a part, with its name in place of the template's.

    Args:
        kind: one of `KINDS`.
        name: of the new class.
    """
    text = (TEMPLATES / f'{kind}.txt').read_text()
    module = flag_name(name)
    for old, new in (
        ('NewPart', name),
        ('new_part', module),
        ('new part', module.replace('_', ' ')),
    ):
        text = text.replace(old, new)
    for block in re.split(r'^#: ', text, flags=re.MULTILINE)[1:]:
        head, _, body = block.partition('\n')
        action, path, place = (*head.split(' ', 2), '')[:3]
        yield Change(action, path, place, body)


def add(kind: str, name: str, root: Path = ROOT) -> list[str]:
    """Adds a part, and returns the files that it changed.

    Args:
        kind: one of `KINDS`.
        name: of the new class.
        root: the repository.

    Raises:
        RefusedError: the name is no class name, or taken.
    """
    if not re.fullmatch(r'[A-Z][A-Za-z0-9]+', name):
        raise RefusedError(f'{name}: expected the name of a class, such as PatientStopping')
    made = list(changes(kind, name))
    for change in made:
        path = root / change.path
        if change.action == 'write' and path.exists():
            raise RefusedError(f'{change.path} exists: choose another name')
        if change.action == 'import' and re.search(rf'\b{name}\b', path.read_text()):
            raise RefusedError(f'{change.path} has the name {name}: choose another one')
    for change in made:
        change.apply(root)
    files = sorted({change.path for change in made})
    python = [path for path in files if path.endswith('.py')]
    for command in (['check', '--quiet', '--fix', '--select=I'], ['format', '--quiet']):
        subprocess.run([sys.executable, '-m', 'ruff', *command, *python], cwd=root, check=True)
    return files


def write_defaults(root: Path = ROOT) -> None:
    """Writes the golden file of the defaults of all components."""
    subprocess.run([sys.executable, '-c', _DEFAULTS], cwd=root, check=True)


def main() -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('kind', choices=KINDS)
    flags.add_argument('name', help='of the class, such as PatientStopping')
    args = flags.parse_args()
    try:
        files = add(args.kind, args.name)
        write_defaults()
    except RefusedError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    print('changed:', *files, sep='\n  ')
    (test,) = [path for path in files if path.endswith(f'/test_{flag_name(args.name)}.py')]
    print(f'to test it:\n  python -m pytest {test}')
    if args.kind != 'engine':  # An engine is no component.
        print(f'  python -m pytest tests/conformance -k {args.name}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
