"""Tables of the trials of a study by two numbers: see `paxtune.analysis.trade_off`."""

from paxtune.analysis.trade_off import Front
from paxtune.reports.tables import Document, Table


def document(front: Front) -> Document:
    """The trials of a front: for people those alone, for programs all, with those behind it."""
    names = [front.x.name, front.y.name]
    rows = [
        {
            'trial': point.trial,
            'front': point.is_best,
            **dict(zip(names, (point.x, point.y), strict=True)),
            **{f'decisions.{path}': value for path, value in point.decisions.items()},
        }
        for point in front.points
    ]
    columns = ['trial', 'front', *names, *(f'decisions.{path}' for path in front.names)]
    best = [row for row in rows if row['front']]
    axes = [
        {'name': axis.name, 'goal': 'maximize' if axis.is_maximized else 'minimize'}
        for axis in (front.x, front.y)
    ]
    remark = 'No trial was completed yet.'
    if rows:
        goals = ', '.join(f'{axis["name"]} ({axis["goal"]})' for axis in axes)
        remark = f'{len(best)} of {len(rows)} completed trials are on the front of {goals}.'
    decided = {f'decisions.{path}': name for path, name in front.names.items()}
    tables = [Table.compact(best, ['trial', *names, 'decisions'], decided)]
    return Document({'x': axes[0], 'y': axes[1], 'trials': rows}, rows, columns, tables, remark)
