from typing import Any

from paxtune.reports.tables import Table
from paxtune.study.worker_logs import NUMBERS

_GIB = 2**30
_HEADINGS = ('CPU', 'memory', 'peak', 'device memory', 'device peak')


def workers_table(rows: list[dict[str, Any]]) -> Table:
    """Renders the resources of workers for people."""
    rendered = [
        {'worker': row['worker'], 'time': row['time']}
        | {
            heading: _rendered(name, row[name])
            for name, heading in zip(NUMBERS, _HEADINGS, strict=True)
            if name in row
        }
        for row in rows
    ]
    return Table(rendered, ['worker', 'time', *_HEADINGS], 'Workers')


def _rendered(name: str, value: float) -> str:
    return f'{value:.0f} %' if name == 'cpu_percent' else f'{value / _GIB:.2f} GiB'
