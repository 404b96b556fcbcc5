"""Files of recorded curves. Reading them executes nothing."""

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxtune.objectives.measurement import Measurement
from paxtune.schedulers.base import Unit
from paxtune.simulation.nearest_row import one_minus_betas
from paxtune.simulation.table import UNITS, CurveTable, Goal, Row, Value
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
                f'{path}: which array is the reward, and are small or large numbers good? Give '
                '--metric=NAME and --goal=minimize, or maximize'
            )
        return _read_arrays(path, metric, goal)
    if not path.endswith('.json'):
        raise UserError(
            f'{path}: expected an .npz file, or a .json file that python -m paxtune.studies curves '
            'has written'
        )
    if metric is not None or goal is not None:
        raise UserError(f'{path}: it says itself what its reward is: leave --metric and --goal out')
    return _read_curves(path)


def write(rows: Sequence[Mapping[str, Any]], goal: Goal, metric: str) -> str:
    """The text of a .json file that `read` reads.

    Args:
        rows: ended trials. Each has `ended` ('completed', 'stopped' or 'infeasible'), `end` (its
            final reward, if completed) and `decisions`. `rewards` has a value for each measurement
            (None without a reward), and so have `steps` and the other units that were measured. An
            infeasible trial has one more resource, for the point of failure.
        goal: of the reward.
        metric: the name of the reward.
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


def _read_curves(path: str) -> CurveTable:
    content = read_json(path, path)
    if not isinstance(content, dict) or content.get('format') != _FORMAT:
        raise UserError(
            f'{path}: expected what python -m paxtune.studies curves writes, with the format '
            f'{_FORMAT!r}'
        )
    goal, metric, trials = (content.get(name) for name in ('goal', 'metric', 'trials'))
    _require(goal in ('minimize', 'maximize'), path, 'goal', "'minimize' or 'maximize'")
    _require(isinstance(metric, str), path, 'metric', 'a text')
    _require(isinstance(trials, list), path, 'trials', 'a list')
    rows, left_out = [], 0
    for i, trial in enumerate(trials or []):
        row = _Recorded(trial, path, f'trials[{i}]').row(str(metric))
        if row is None:
            left_out += 1
        else:
            rows.append(row)
    return CurveTable(rows, goal or 'minimize', str(metric), path, left_out)


class _Recorded:
    """Validates a trial of a file, which may be from any source."""

    def __init__(self, trial: Any, path: str, where: str) -> None:
        self._path, self._where = path, where
        _require(isinstance(trial, dict), path, where, 'a trial')
        self._trial: Mapping[str, Any] = trial

    def row(self, metric: str) -> Row | None:
        """The trial; None if it was stopped early."""
        ended, end = self._trial.get('ended'), self._trial.get('end')
        kinds = "'completed', 'stopped' or 'infeasible'"
        self._expect(ended in ('completed', 'stopped', 'infeasible'), 'ended', kinds)
        self._expect(_is_number(end) == (ended == 'completed'), 'end', 'a number, if completed')
        rewards, decisions = self._rewards(), self._decisions()
        count = len(rewards) + (ended == 'infeasible')
        self._expect(count > 0, 'rewards', 'at least one')
        resources: dict[Unit, list[float]] = {
            unit: self._resources(unit, count)
            for unit in UNITS
            if unit == 'steps' or self._trial.get(unit) is not None
        }
        steps = resources['steps'][: len(rewards)]
        are_steps = all(each.is_integer() for each in steps) and len({*steps}) == len(steps)
        self._expect(are_steps, 'steps', 'whole numbers, each above the last')
        measurements = [
            Measurement(int(step), {}) if value is None else
            Measurement(int(step), {metric: value}, (value,))
            for step, value in zip(steps, rewards, strict=True)
        ]  # fmt: skip
        if ended == 'stopped':
            return None
        return Row(decisions, measurements, resources, None if end is None else float(end))

    def _rewards(self) -> list[float | None]:
        rewards = self._trial.get('rewards')
        are_rewards = isinstance(rewards, list) and all(
            each is None or _is_number(each) for each in rewards
        )
        self._expect(are_rewards, 'rewards', 'numbers, or null where there was none')
        return [None if each is None else float(each) for each in rewards or []]

    def _decisions(self) -> dict[str, Value]:
        decisions = self._trial.get('decisions')
        are_plain = isinstance(decisions, dict) and all(
            each is None or isinstance(each, str | bool) or _is_number(each)
            for each in decisions.values()
        )
        self._expect(are_plain, 'decisions', 'plain values by name')
        return dict(decisions or {})

    def _resources(self, unit: Unit, count: int) -> list[float]:
        values = self._trial.get(unit)
        are_numbers = isinstance(values, list) and all(map(_is_number, values))
        found = [float(each) for each in values or []] if are_numbers else []
        is_sorted = sorted(found) == found and min(found, default=0.0) >= 0
        self._expect(
            len(found) == count and is_sorted, unit, f'{count} numbers that do not decrease'
        )
        return found

    def _expect(self, holds: bool, name: str, expected: str) -> None:
        _require(holds, self._path, f'{self._where}.{name}', expected)


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < 2**53


def _require(holds: bool, path: str, where: str, expected: str) -> None:
    if not holds:
        raise UserError(f'{path}: {where}: expected {expected}')
