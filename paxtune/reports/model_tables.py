"""Tables of the layers of models, from the data of `studies show` and `studies diff`.

They need no classes of models, and so no JAX.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from paxtune.reports.tables import Row, Table

_LAYER = ('layer', 'times', 'component')


def architecture_table(model: Mapping[str, Any], costs: Sequence[str], title: str) -> Table:
    """The layers of a model, with their costs and the share of the FLOPs of each."""
    whole = {'layer': 'all', **{cost: model[cost] for cost in costs}, 'share': 1.0}
    rows = [_for_people(row, costs) for row in [*model['layers'], whole]]
    return Table(rows, [*_LAYER, *costs, 'share'], title)


def changed_tables(model: Mapping[str, Any], left: int, right: int) -> list[Table]:
    """The layers in which the models of two trials differ, and the costs of both."""
    costs = [row['cost'] for row in model['costs']]
    of = f' of {model["sub_experiment"]}' if model['sub_experiment'] else ''
    title = f'Layers{of} that differ: − in trial {left}, + in trial {right}'
    rows = [_for_people(row, costs) for row in model['layers']]
    both = [{'cost': row['cost'], **_both(row['left'], row['right'])} for row in model['costs']]
    return [
        Table(rows, ['change', *_LAYER, *costs], title),
        Table(both, ['cost', 'left', 'right', 'change'], f'Costs{of}'),
    ]


def _for_people(row: Row, costs: Sequence[str]) -> Row:
    times = f'×{row["times"]}' if row.get('times', 1) > 1 else None
    share = f'{row["share"]:.1%}' if 'share' in row else None
    return {**row, 'times': times, 'share': share, **{cost: f'{row[cost]:,.0f}' for cost in costs}}


def _both(before: float, after: float) -> Row:
    change = f'{after / before - 1:+.1%}' if before and after != before else None
    return {'left': f'{before:,.0f}', 'right': f'{after:,.0f}', 'change': change}
