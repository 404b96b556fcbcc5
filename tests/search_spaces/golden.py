"""Golden files: each experiment, and the defaults of all components, as text.

    python -m tests.search_spaces.golden --write

writes them again, and deletes those of experiments that are gone. `git diff` then shows the
changes. `golden/<module>.<name>.txt` has the fields of an experiment that differ from their
defaults, or from another experiment of its family, and its decisions. `golden/defaults.txt` has
the defaults, so that no default can change unseen.
"""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyglove as pg

import paxtune
import search_spaces
import trainer
from paxtune.search_space.differences import differences
from paxtune.search_space.labels import display_name
from paxtune.search_space.space import Space
from trainer.experiment import Experiment
from trainer.symbolic import registry
from trainer.symbolic.component import Component

DIRECTORY = Path(__file__).parent / 'golden'
DEFAULTS = 'defaults'

_MAX_LABEL = 60
PACKAGES: tuple[ModuleType, ...] = (trainer, paxtune, search_spaces)

_FAMILIES = {
    'c4.C4Spmd': 'c4.C4Spmd1BAdam4Replicas',
    'c4_multislice.': 'c4.C4Spmd1BAdam4Replicas',
    'lm_cloud.': 'lm_cloud.LmCloudSpmdTest',
    'vision.Mnist': 'vision.MnistExperiment',
}
"""The experiment that others are compared with, by how their names begin."""


def names() -> list[str]:
    """The registered experiments."""
    return registry.available(Experiment)[0]


def path_of(name: str) -> Path:
    """The file of an experiment, or of the defaults."""
    return DIRECTORY / f'{name}.txt'


def text_of(name: str) -> str:
    """The fields that an experiment sets, and its decisions."""
    experiment = registry.find(name, Experiment)
    base = next((base for start, base in _FAMILIES.items() if name.startswith(start)), name)
    if base == name:
        lines = [experiment.format(compact=False, verbose=False, hide_default_values=True)]
    else:
        changes = differences(_fields(registry.find(base, Experiment)), _fields(experiment))
        lines = [f'{base}, except', *(f'  {change}' for change in changes)]
    if not pg.is_deterministic(experiment):
        lines += ['', 'decisions', *_decisions(Space(experiment).spec)]
    return '\n'.join(lines) + '\n'


def _fields(experiment: Experiment) -> pg.Dict:
    return pg.Dict(experiment.sym_items())


def _decisions(space: Any, indent: str = '  ') -> Iterator[str]:
    """A line for each decision, and beneath it those that its candidates open."""
    for point in space.elements:
        if isinstance(point, pg.geno.Choices):
            order = ' distinct' * point.distinct + ' sorted' * point.sorted
            count = f'{point.num_choices}{order} of ' if point.num_choices > 1 else ''
            yield f'{indent}{point.location}: {count}{", ".join(map(_label, point.literal_values))}'
            for index, candidate in enumerate(point.candidates):
                if candidate.elements:
                    yield f'{indent}  [{index}]'
                    yield from _decisions(candidate, f'{indent}    ')
        else:
            scale = f', {point.scale}' if point.scale else ''
            yield f'{indent}{point.location}: {point.min_value} to {point.max_value}{scale}'


def _label(value: Any) -> str:
    text = str(value)
    return text if len(text) < _MAX_LABEL else f'{text.partition("(")[0]}(…)'


def all_components() -> set[type[Component]]:
    """The component classes of the packages, without those that a test has defined again."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):
            importlib.import_module(module.name)
    ours = tuple(f'{package.__name__}.' for package in PACKAGES)
    named = (each for each in _subclasses(Component) if each.__module__.startswith(ours))
    return {each for each in named if vars(sys.modules[each.__module__]).get(each.__name__) is each}


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def defaults() -> str:
    """The defaults that each component class adds or changes, a line each."""
    lines = []
    for cls in sorted(all_components(), key=lambda cls: cls.__type_name__):
        inherited = _defaults_of(cls.__base__)
        for name, value in _defaults_of(cls).items():
            if name not in inherited or not pg.eq(inherited[name], value):
                lines.append(f'{cls.__type_name__}.{name} = {display_name(value)}\n')
    return ''.join(lines)


def _defaults_of(cls: Any) -> dict[str, Any]:
    fields = {str(name): field.default_value for name, field in cls.__schema__.items()}
    return {name: value for name, value in fields.items() if value is not pg.MISSING_VALUE}


def write() -> None:
    """Writes all files."""
    DIRECTORY.mkdir(exist_ok=True)
    for file in DIRECTORY.glob('*.txt'):
        file.unlink()
    for name in names():
        path_of(name).write_text(text_of(name))
    path_of(DEFAULTS).write_text(defaults())


if __name__ == '__main__':
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('--write', action='store_true', required=True, help='write all files again')
    flags.parse_args()
    write()
