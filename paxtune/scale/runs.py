"""Points for scaling laws: from directories of runs, or from a CSV file."""

import csv
from collections.abc import Mapping
from pathlib import Path

from paxtune.scale.laws import Point
from trainer.symbolic.errors import UserError

_REQUIRED = ('params', 'tokens', 'loss')
_OPTIONAL = ('learning_rate', 'batch_size')


def read_csv(path: str) -> list[Point]:
    """Reads a table with the columns params, tokens and loss, and maybe learning_rate, batch_size.

    Raises:
        UserError: the file is missing, lacks a column, or has a cell without a number.
    """
    try:
        with open(path, newline='', encoding='utf-8') as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'--csv={path}: {error}') from error
    columns = [name for name in rows[0] if name] if rows else []
    if missing := [name for name in _REQUIRED if name not in columns]:
        raise UserError(
            f'--csv={path}: there is no column {missing[0]!r}. It needs {", ".join(_REQUIRED)}, '
            f'and may have {" and ".join(_OPTIONAL)}; it has {", ".join(columns) or "no rows"}'
        )
    return [_point(row, f'--csv={path}: row {index}') for index, row in enumerate(rows, 1)]


def _point(row: Mapping[str, str | None], where: str) -> Point:
    numbers = {}
    for name in (*_REQUIRED, *_OPTIONAL):
        text = row.get(name)
        if text or name in _REQUIRED:
            try:
                numbers[name] = float(text or '')
            except ValueError:
                raise UserError(f'{where}: {name} must be a number, not {text!r}') from None
    return Point(**numbers)


def read_run(directory: str, metric: str) -> Point:
    """Reads a run: its experiment, and the metric of its last evaluation.

    Raises:
        UserError: it is no directory of a run, or the metric was not measured.
    """
    from trainer.checkpoints.experiment_record import FILE, shards_of_run
    from trainer.experiment import Experiment
    from trainer.program.costs import static_costs, tokens_per_step
    from trainer.runtime.metric_writer import read_metrics
    from trainer.runtime.metrics_file import METRICS
    from trainer.symbolic.serialization import from_json_text

    file = Path(directory) / FILE
    if not file.is_file():
        raise UserError(f'{directory}: no directory of a run: there is no {FILE}')
    experiment = from_json_text(file.read_text(), Experiment, str(file))
    records = read_metrics(Path(directory) / METRICS)
    measured = [record for record in records if metric in record]
    if not measured:
        names = sorted({name for record in records for name in record if '/' in name})
        raise UserError(
            f'{directory}: {metric} was not measured; choose --metric of '
            f'{", ".join(names) or "another run"}'
        )
    last, shards = measured[-1], shards_of_run(directory) or 1
    return Point(
        params=static_costs(experiment)['num_params'],
        tokens=last['step'] * tokens_per_step(experiment) * shards,
        loss=last[metric],
        learning_rate=float(experiment.task.learner.learning_rate),
        batch_size=float(experiment.train_input.batch_size * shards),
    )
