from collections.abc import Sequence

from paxtune.analysis.checks import Check
from paxtune.reports.tables import Table


def checks_table(found: Sequence[Check], title: str = 'Checks') -> Table:
    """Renders checks of a study, warnings first."""
    ordered = sorted(found, key=lambda each: not each.is_warning)
    rows = [
        {
            'check': each.kind,
            'result': 'warning' if each.is_warning else 'passed',
            'message': each.message,
        }
        for each in ordered
    ]
    return Table(rows, ['check', 'result', 'message'], title)
