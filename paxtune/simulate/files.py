"""Files of recorded curves. Reading them executes nothing."""

import json
import math
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.schedulers.base import Unit
from paxtune.simulate.nearest_row import one_minus_betas
from paxtune.simulate.table import UNITS, CurveTable, Goal, Row, Value
from trainer.runtime.directory import read_json
from trainer.symbolic.errors import UserError

_FORMAT = 'paxtune curves 1'

# A file may be truncated, of another kind, or hold arrays of objects, which are not read.
_UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, AttributeError, MemoryError),
    *(NotImplementedError, SyntaxError, TypeError, zipfile.BadZipFile),
)


def read(path: str, metric: str | None = None, goal: Goal | None = None) -> CurveTable:
    """Reads a table: the output of `python -m paxtune.studies curves`, or arrays.

    Args:
        path: of a .json file that the command wrote, or of an .npz file. The latter has `hp_names`
            [d], `hp` [n, d], and the metric, [n, t] at evaluations 1 to t. It is NaN from the step
            where a trial diverged. Columns that begin with 'beta' are searched as 1 - β.
        metric: the array in an .npz file.
        goal: 'minimize' if small numbers of it are good.

    Raises:
        UserError: it cannot be read, or has another format.
    """
    if path.endswith('.npz'):
        if metric is None or goal is None:
            raise UserError(
                f'{path}: name the array that is the reward, with its direction: --metric=NAME and '
                '--goal=minimize or --goal=maximize'
            )
        return _read_arrays(path, metric, goal)
    if not path.endswith('.json'):
        raise UserError(
            f'{path}: expected an .npz file, or a .json file of python -m paxtune.studies curves'
        )
    if metric is not None or goal is not None:
        raise UserError(f'{path}: the file names its reward: leave out --metric and --goal')
    return _read_curves(path)


def write(rows: Sequence[Mapping[str, Any]], goal: Goal, metric: str) -> str:
    """The text of a .json file that `read` reads.

    Args:
        rows: ended trials. Each has `ended` ('completed', 'stopped' or 'infeasible'), `end` (its
            final reward, if completed) and `decisions`. `rewards` has a value for each measurement
            (None without a reward), and so have `steps` and all other measured units. An
            infeasible trial has one more resource, for the point of failure.
    """
    content = {'format': _FORMAT, 'goal': goal, 'metric': metric, 'trials': list(rows)}
    return json.dumps(content, indent=1, allow_nan=False) + '\n'


# --- Arrays ---


def _read_arrays(path: str, metric: str, goal: Goal) -> CurveTable:
    wanted = ('hp_names', 'hp', metric)
    try:
        # Opened here: NumPy would leave a file open that is not an archive.
        with open(path, 'rb') as stream, np.load(stream, allow_pickle=False) as file:
            there = file.files
            missing = [name for name in wanted if name not in there]
            arrays = [] if missing else [np.asarray(file[name]) for name in wanted]
    except _UNREADABLE as error:
        raise UserError(f'{path}: expected arrays of numbers in an .npz file: {error}') from error
    if missing:
        raise UserError(
            f'{path}: expected an array {missing[0]!r}; there are {", ".join(there) or "none"}'
        )
    names, hp, rewards = arrays
    _require(names.ndim == 1 and names.dtype.kind == 'U', path, 'hp_names', 'texts [d]')
    _require(len({*names.tolist()}) == len(names), path, 'hp_names', 'names that differ')
    are_numbers = hp.ndim == 2 and hp.dtype.kind in 'fiu' and bool(np.isfinite(hp).all())
    _require(are_numbers and hp.shape[1] == len(names), path, 'hp', 'finite numbers [n, d]')
    are_numbers = rewards.ndim == 2 and rewards.dtype.kind in 'fiu' and rewards.shape[1] > 0
    _require(are_numbers and len(rewards) == len(hp), path, metric, 'numbers [n, t]')
    labels, columns = one_minus_betas(names.tolist(), hp.astype(float))
    rows = [
        _row(dict(zip(labels, values, strict=True)), curve, metric)
        for values, curve in zip(columns.tolist(), rewards.astype(float).tolist(), strict=True)
    ]
    return CurveTable(rows, goal, metric, path)


def _row(decisions: dict[str, Value], curve: Sequence[float], metric: str) -> Row:
    count = next((i for i, each in enumerate(curve) if not math.isfinite(each)), len(curve))
    measurements = [
        Measurement(step, {metric: value}, (value,))
        for step, value in enumerate(curve[:count], start=1)
    ]
    diverges = count < len(curve)
    used = [float(step) for step in range(1, count + diverges + 1)]
    return Row(decisions, measurements, {'steps': used}, None if diverges else curve[-1])


# --- Curves of a study ---


_MAX = sys.float_info.max
_Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-_MAX, le=_MAX)]
_Integer: TypeAlias = Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)]
_Resources: TypeAlias = list[Annotated[float, msgspec.Meta(ge=0.0, le=_MAX)]]


class _Trial(msgspec.Struct):
    ended: Literal['completed', 'stopped', 'infeasible']
    decisions: dict[str, bool | _Integer | _Number | str | None]
    rewards: list[_Number | None]
    steps: _Resources
    end: _Number | None = None
    tokens: _Resources | None = None
    flops: _Resources | None = None
    seconds: _Resources | None = None


class _File(msgspec.Struct):
    goal: Goal
    metric: str
    trials: list[_Trial]


def _read_curves(path: str) -> CurveTable:
    content = read_json(path, path)
    if not isinstance(content, dict) or content.get('format') != _FORMAT:
        raise UserError(
            f'{path}: expected a file of python -m paxtune.studies curves, with the format '
            f'{_FORMAT!r}'
        )
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise UserError(f'{path}: {error}') from error
    found = [
        _recorded(trial, file.metric, path, f'trials[{i}]') for i, trial in enumerate(file.trials)
    ]
    rows = [row for row in found if row is not None]
    return CurveTable(rows, file.goal, file.metric, path, len(found) - len(rows))


def _recorded(trial: _Trial, metric: str, path: str, where: str) -> Row | None:
    """The row of a trial; None if it was stopped early."""
    is_completed = trial.ended == 'completed'
    _require(
        (trial.end is not None) == is_completed, path, f'{where}.end', 'a number, if completed'
    )
    count = len(trial.rewards) + (trial.ended == 'infeasible')
    _require(count > 0, path, f'{where}.rewards', 'at least one')
    resources: dict[Unit, list[float]] = {
        unit: used for unit in UNITS if (used := getattr(trial, unit)) is not None
    }
    for unit, used in resources.items():
        is_sorted = len(used) == count and sorted(used) == used
        _require(is_sorted, path, f'{where}.{unit}', f'{count} numbers that do not decrease')
    steps = trial.steps[: len(trial.rewards)]
    are_steps = all(each.is_integer() for each in steps) and len({*steps}) == len(steps)
    _require(are_steps, path, f'{where}.steps', 'whole numbers, each above the last')
    measurements = [
        Measurement(int(step), {}) if value is None else
        Measurement(int(step), {metric: value}, (value,))
        for step, value in zip(steps, trial.rewards, strict=True)
    ]  # fmt: skip
    if trial.ended == 'stopped':
        return None
    return Row(trial.decisions, measurements, resources, trial.end)


def _require(holds: bool, path: str, where: str, expected: str) -> None:
    if not holds:
        raise UserError(f'{path}: {where}: expected {expected}')
