"""Dependencies: their list with reasons, their pins, and what works without the extras."""

import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.documents import commands_of, pages_of
from tests.test_repository import ROOT, SOURCES, imported_packages

PROJECT: dict[str, Any] = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
EXTRAS: dict[str, list[str]] = PROJECT['optional-dependencies']
EVERYTHING = [
    each
    for each in (*PROJECT['dependencies'], *itertools.chain.from_iterable(EXTRAS.values()))
    if not each.startswith('paxtune[')
]
(GUIDE,) = pages_of(__file__)


def names(requirements: Iterable[str]) -> list[str]:
    return [canonicalize_name(Requirement(each).name) for each in requirements]


def brought(requirements: Iterable[str]) -> set[str]:
    """All packages that requirements bring, by the metadata of what is installed."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(each) for each in requirements]
    while left:
        each = left.pop()
        key = canonicalize_name(each.name), frozenset(each.extras)
        if key in found:
            continue
        found.add(key)
        for text in importlib.metadata.requires(each.name) or []:
            needed = Requirement(text)
            extras = {'', *each.extras}
            if not needed.marker or any(needed.marker.evaluate({'extra': e}) for e in extras):
                left.append(needed)
    return {name for name, _ in found}


def rows(heading: str) -> list[list[str]]:
    """Cells of the table of the guide whose first column has this heading."""
    _, found, rest = GUIDE.read_text().partition(f'| {heading} |')
    assert found, heading
    lines = rest.partition('\n\n')[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]


def quoted(cell: str) -> list[str]:
    return re.findall(r'`([^`]+)`', cell)


def test_the_guide_lists_what_the_package_brings_with_reasons() -> None:
    base = rows('Package')
    assert [quoted(package) for package, _, _ in base] == [
        [name] for name in names(PROJECT['dependencies'])
    ]
    listed = [name for package, _, more in base for name in quoted(package) + quoted(more)]
    assert sorted(listed) == sorted(brought(PROJECT['dependencies']))
    assert all(reason for _, reason, _ in base)


def test_the_guide_lists_the_extras_with_reasons() -> None:
    of_people = {name: names(needed) for name, needed in EXTRAS.items() if name != 'dev'}
    found: dict[str, list[str]] = {name: [] for name in of_people}
    listed = set(brought(PROJECT['dependencies']))
    for extra, package, reason, more in rows('Extra'):
        found[quoted(extra)[0]] += quoted(package)
        listed |= {*quoted(package), *quoted(more)}
        assert reason
    assert found == of_people
    wanted = [*PROJECT['dependencies'], *(each for name in of_people for each in EXTRAS[name])]
    assert listed == brought(wanted)


def test_the_command_that_pins_versions_has_known_flags_and_existing_files() -> None:
    ((uv, *words),) = commands_of(GUIDE.read_text())
    assert (uv, words[:2]) == ('uv', ['pip', 'compile'])
    listed = subprocess.run(
        [Path(sys.executable).with_name(uv), 'pip', 'compile', '--help'],
        capture_output=True,
        text=True,
        check=True,
    )
    for word in words[2:]:
        flag = word.partition('=')[0]
        assert flag in listed.stdout if flag.startswith('-') else (ROOT / word).exists(), word
    assert 'dev' in EXTRAS


def test_the_package_brings_no_nightly_build() -> None:
    found = brought(PROJECT['dependencies'])
    assert not [name for name in found if name.endswith('nightly')]
    versions = {name: Version(importlib.metadata.version(name)) for name in found}
    assert not [name for name, version in versions.items() if version.is_prerelease]
    assert not found & set(names(EXTRAS['vizier']))


def test_every_import_is_declared() -> None:
    """A package that only another one brings may be gone with its next version."""
    owners = importlib.metadata.packages_distributions()
    declared = set(
        names([*PROJECT['dependencies'], *(each for e in EXTRAS.values() for each in e)])
    )
    # A notebook has IPython, which is imported only there.
    own = {'trainer', 'paxtune', 'search_spaces', 'examples'}
    inside = {*own, 'google', 'IPython', *sys.stdlib_module_names}
    for path in SOURCES:
        for module in imported_packages(path) - inside:
            assert {canonicalize_name(each) for each in owners[module]} & declared, (path, module)


def test_every_pin_has_hashes_and_nothing_lacks_a_pin() -> None:
    text = re.sub(r'^#.*\n', '', (ROOT / 'constraints.txt').read_text(), flags=re.MULTILINE)
    pins: set[str] = set()
    for pin in re.split(r'(?<!\\)\n', text.strip()):
        pinned = re.fullmatch(r'([a-z0-9-]+)==\S+((\s+\\\n)?\s+--hash=sha256:[0-9a-f]{64})+', pin)
        assert pinned, pin
        pins.add(pinned[1])
    assert brought(EVERYTHING) == pins


def test_a_function_is_tuned_and_experiments_are_listed_without_the_extras(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(modules_of_extras())}))
import paxtune, pyglove as pg
from trainer.experiment import Experiment
from trainer.symbolic import registry
space, how = {{'x': pg.floatv(0.0, 1.0)}}, {{'objective': 'minimize', 'job_log_dir': 'run'}}
with paxtune.tune(lambda values: values.x, space=space, num_trials=8, **how) as study:
    print(len(study.trials))
names, broken = registry.available(Experiment)
print('lm.C4Small' in names, broken)
"""
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == '8\nTrue []\n', done.stderr


def modules_of_extras() -> set[str]:
    """Modules of the packages that only extras bring."""
    mandatory, owners = (
        brought(PROJECT['dependencies']),
        importlib.metadata.packages_distributions(),
    )
    declared = {name for extra, each in EXTRAS.items() if extra != 'dev' for name in names(each)}
    return {
        module
        for module, packages in owners.items()
        if {canonicalize_name(name) for name in packages} & (declared - mandatory)
        and module != 'google'  # A namespace that mandatory packages share.
    }
