"""What every experiment is, as text: `golden/<module>.<name>.txt`, which a test compares.

    python -m tests.search_spaces.golden --write

writes all of them anew, and takes away those of experiments that are gone: `git diff` shows then
what has changed, be it a default far away from the experiment.
"""

import argparse
from pathlib import Path

import pyglove as pg

from paxtune.search_space.space import Space
from trainer.experiment import Experiment
from trainer.symbolic import registry

DIRECTORY = Path(__file__).parent / 'golden'


def names() -> list[str]:
    """The registered experiments."""
    return registry.available(Experiment)[0]


def path_of(name: str) -> Path:
    """The file of an experiment."""
    return DIRECTORY / f'{name}.txt'


def text_of(name: str) -> str:
    """All fields of an experiment; where it is tunable, its decisions as PyGlove has them."""
    experiment = registry.find(name, Experiment)
    text = experiment.format(compact=False, verbose=False, hide_default_values=False)
    if pg.is_deterministic(experiment):
        return f'{text}\n'
    spec = Space(experiment).spec.format(compact=False, verbose=False)
    return f'{text}\n\n{spec}\n'


def write() -> None:
    """Writes the files of all experiments."""
    DIRECTORY.mkdir(exist_ok=True)
    for file in DIRECTORY.glob('*.txt'):
        file.unlink()
    for name in names():
        path_of(name).write_text(text_of(name))


if __name__ == '__main__':
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument('--write', action='store_true', required=True, help='write all files anew')
    flags.parse_args()
    write()
