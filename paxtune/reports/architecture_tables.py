from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from paxtune.reports.model_summary import COSTS, Line, changes, grouped, lines, totals
from paxtune.reports.model_tables import architecture_table, changed_tables
from paxtune.reports.tables import Table
from paxtune.study.trial_experiments import parts_of
from trainer.symbolic.errors import in_short

if TYPE_CHECKING:
    from paxtune.study.study import Study
    from paxtune.study.trial import Trial

Models: TypeAlias = dict[str, list[Line] | str]
"""The layers of each experiment of a trial by its name, or the reason why there are none."""


class ModelReport(NamedTuple):
    """Data and tables of models.

    Attributes:
        data: for programs, one for each experiment of a trial.
        tables: for people.
        problems: models without layers, with the reason.
    """

    data: list[dict[str, Any]]
    tables: list[Table]
    problems: list[str]


def architecture(study: 'Study', trial: 'Trial') -> ModelReport:
    """Reports the layers of a trial's models, and their costs."""
    report = ModelReport([], [], [])
    for name, model in _models(study, trial).items():
        title = f'Architecture of {name}' if name else 'Architecture'
        if isinstance(model, str):
            report.problems.append(f'{title}: {model}')
            report.data.append({'sub_experiment': name, 'problem': model})
            continue
        costs = totals(model)
        whole = costs['flops_per_token'] or 1.0
        rows = [
            _row(line) | {'share': line.costs['flops_per_token'] / whole} for line in grouped(model)
        ]
        report.data.append({'sub_experiment': name, 'layers': rows, **costs})
        title += ', with the share of the FLOPs'
        report.tables.append(architecture_table(report.data[-1], COSTS, title))
    return report


def compared(study: 'Study', left: 'Trial', right: 'Trial') -> ModelReport:
    """Reports the layers in which the models of two trials differ, and both costs."""
    report = ModelReport([], [], [])
    models = [_models(study, trial) for trial in (left, right)]
    for name in dict.fromkeys([*models[0], *models[1]]):
        of = f' of {name}' if name else ''
        first, second = (each.get(name, 'it has no such experiment') for each in models)
        if isinstance(first, str) or isinstance(second, str):
            for trial, model in ((left, first), (right, second)):
                if isinstance(model, str):
                    report.problems.append(f'Architecture{of} in trial {trial.id}: {model}')
            report.data.append({'sub_experiment': name, 'problem': report.problems[-1]})
            continue
        rows = [{'change': each.sign, **_row(each.line)} for each in changes(first, second)]
        before, after = totals(first), totals(second)
        costs = [{'cost': cost, 'left': before[cost], 'right': after[cost]} for cost in COSTS]
        report.data.append({'sub_experiment': name, 'layers': rows, 'costs': costs})
        report.tables.extend(changed_tables(report.data[-1], left.id, right.id))
    return report


def _models(study: 'Study', trial: 'Trial') -> Models:
    try:
        parts = parts_of(study.space, trial.by_id)
    except Exception as error:
        return {'': in_short(error)}
    return {name: _model(part) for name, part in parts.items()}


def _model(experiment: Any) -> list[Line] | str:
    try:
        return lines(experiment)
    except Exception as error:  # Whatever a layer raises while it is traced.
        return in_short(error)


def _row(line: Line) -> dict[str, Any]:
    return {'layer': line.name, 'times': line.times, 'component': line.layer, **line.costs}
