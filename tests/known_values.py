"""The table of usual values in docs/tuning/known-values.md.

    python -m tests.known_values --write

writes it again from the classes. `tests/test_known_values.py` compares them.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.search_spaces.golden import all_components
from trainer.learner import Schedule
from trainer.symbolic.usual_values import UsualValue

PAGE = Path(__file__).parents[1] / 'docs' / 'tuning' / 'known-values.md'
MARK = '<!-- usual values: python -m tests.known_values --write -->\n'


def stated() -> Iterator[tuple[type, str, UsualValue, str]]:
    """Yields the class, the field, the value and its unit for each statement of a class."""
    ours = [cls for cls in all_components() if cls.__module__.startswith('trainer.')]
    for cls in sorted(ours, key=lambda cls: cls.__name__):
        for attribute, unit in (('usual', ''), ('usual_shares', ' of the steps')):
            for name, usual in vars(cls).get(attribute, {}).items():
                inherited = unit and cls is not Schedule and name in Schedule.usual_shares
                if usual is not None and not inherited:
                    yield cls, name, usual, unit


def table() -> str:
    """The statements of all classes as Markdown."""
    rows = ['| Field | Usual | Two thirds lie in | Source |', '| --- | --- | --- | --- |']
    for cls, name, usual, unit in stated():
        low_to_high = f'{_text(usual.low)} to {_text(usual.high)}' if usual.is_number else ''
        value = f'{_text(usual.value)}{unit}'
        rows.append(f'| `{cls.__name__}.{name}` | {value} | {low_to_high} | {usual.source} |')
    return '\n'.join(rows) + '\n'


def _text(value: Any) -> str:
    if isinstance(value, type):
        return f'`{value.__name__}`'
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'{value:.4g}'
    return f'`{value!r}`'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--write', action='store_true', required=True)
    parser.parse_args()
    before = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(f'{before}{MARK}\n{table()}')


if __name__ == '__main__':
    main()
