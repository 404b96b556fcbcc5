"""Packages and files of others that have the names of our packages, `trainer` and `search_spaces`.

`import paxtune` imports it, so it imports no other module of the package.
"""

import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

_FIRST_LINES = {
    'trainer': '"""The trainer: a Pax-style trainer on flax, independent of tuning.',
    'search_spaces': '"""Experiments to run, to search over and to copy from.',
}
_OTHERS = ('trainer', 'coqui_tts_trainer', 'search_spaces')
"""Distributions that install a package of such a name, as their directories are called."""

_REMEDY = 'use an environment of its own for paxtune, or remove the other one and then run: '
_REPAIR = 'pip install --force-reinstall --no-deps paxtune'


def found(root: Path, path: list[str] | None = None) -> Iterator[str]:
    """Yields a message for each clash.

    Args:
        root: the directory of our packages.
        path: the path of Python; None for `sys.path`.
    """
    path = sys.path if path is None else path
    trainer = PathFinder.find_spec('trainer', path)
    if trainer and trainer.origin and Path(trainer.origin).parents[1] != root:
        is_installed = {'site-packages', 'dist-packages'} & {*Path(trainer.origin).parts}
        how = f'{_REMEDY}{_REPAIR}' if is_installed else 'rename it'
        yield f'{trainer.origin} hides the package `trainer` of paxtune: {how}'
    for other in sorted(root.glob('*.dist-info')):
        name, _, version = other.stem.partition('-')
        if name.lower() in _OTHERS:
            package = 'search_spaces' if name == 'search_spaces' else 'trainer'
            yield (
                f'{name.replace("_", "-")} {version} is installed in {root}, and has a package '
                f'`{package}`, as paxtune has: {_REMEDY}{_REPAIR}'
            )
    for name, line in _FIRST_LINES.items():
        file = root / name / '__init__.py'
        if not file.exists():
            yield f'{file} of paxtune is missing: {_REPAIR}'
        elif not file.read_text(errors='replace').startswith(line):
            yield f'{file} is not that of paxtune: {_REMEDY}{_REPAIR}'
