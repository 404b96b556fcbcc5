"""Tables of TaskSet: losses of text classifiers at 1,000 settings of their optimizer's 8 numbers.

TaskSet is of Metz et al. (2020); the files are those that came with DPL (Kadra et al. 2023,
https://github.com/releaunifreiburg/DPL), one for each task, with `hp_names`, `hp` [1000, 8] and
`valid_loss` [1000, 51].
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.search.problems import Instance, Known, Objective, Parameter, Problem, Values
from paxtune.simulate.nearest_row import Box, Unused, one_minus_betas

NAMES = (
    'imdb_patch128_LSTM128_avg_bs64',
    'imdb_patch128_LSTM128_bs64',
    'imdb_patch32_GRU64_avg_bs128',
    'imdb_patch32_IRNN64_relu_avg_bs128',
    'imdb_patch32_LSTM128_E128_bs128',
    'imdb_patch32_LSTM128_bs128',
    'imdb_patch32_VRNN128_tanh_bs128',
    'imdb_patch32_VRNN64_relu_avg_bs128',
)

KNOWN = {
    'learning_rate': Known(1e-3, 3e-4, 3e-3),
    'one_minus_beta1': Known(0.1, 0.05, 0.12),
    'one_minus_beta2': Known(0.02, 1e-3, 0.05),
    'epsilon': Known(1e-8, 1e-9, 1e-6),
    'l1': Known(0.0, 0.0, 1e-5),
    'l2': Known(0.0, 0.0, 1e-5),
    # Adam as published has a constant rate: no component states a value for these two.
    'linear_decay': Known(0.0, 0.0, 1e-6),
    'exponential_decay': Known(0.0, 0.0, 1e-5),
}
"""The usual values of Adam, as `trainer.learner.optimizers.AdamW` states them.

The peers' environments lack the trainer, so they stand here, too; a test compares both.
"""


def path(data_dir: Path, name: str) -> Path:
    """Where a table lies."""
    return data_dir / 'taskset' / f'FixedTextRNNClassification_{name}.npz'


def missing(data_dir: Path) -> list[str]:
    """The names of the tables that are not there."""
    return [name for name in NAMES if not path(data_dir, name).exists()]


def problems(data_dir: Path) -> list[Problem]:
    """The tables that are there."""
    there = [name for name in NAMES if path(data_dir, name).exists()]
    return [_problem(name, path(data_dir, name)) for name in there]


def _problem(name: str, file: Path) -> Problem:
    with np.load(file, allow_pickle=False) as table:
        names = [str(each) for each in table['hp_names']]
        hp, losses = table['hp'], table['valid_loss'][:, -1].astype(float)
    return table_problem(name.removeprefix('imdb_'), names, hp, losses)


def table_problem(name: str, names: Sequence[str], hp: np.ndarray, losses: np.ndarray) -> Problem:
    """A table as a problem.

    All numbers are on logarithmic scales, of β₁ and β₂ those of 1 - β. The answer to a suggestion
    is the nearest row, in the box of the logarithms, that the run has not used yet. Its value is
    its loss at the last evaluation; infeasible where that is not finite. All seeds search the same
    table.

    Args:
        name: of the problem.
        names: of the columns.
        hp: [n, columns], above 0; below 1 in columns whose name begins with 'beta'.
        losses: [n].
    """
    labels, columns = one_minus_betas(names, hp)
    low, high = columns.min(0), columns.max(0)
    parameters = tuple(
        Parameter(label, 'number', float(first), float(last), log=True)
        for label, first, last in zip(labels, low, high, strict=True)
    )
    box = Box(low, high, [True] * len(labels))
    rows = box.shares(columns)

    def start() -> Objective:
        unused = Unused(rows)

        def objective(values: Values) -> float | None:
            row = unused.take(box.shares(np.array([values[label] for label in labels], float)))
            return float(losses[row]) if np.isfinite(losses[row]) else None

        return objective

    feasible = losses[np.isfinite(losses)]
    instance = Instance(start, float(feasible.min()), float(np.median(feasible)))
    known = {label: KNOWN[label] for label in labels if label in KNOWN}
    return Problem(name, parameters, functools.partial(_the, instance), known=known)


def _the(instance: Instance, seed: int) -> Instance:
    return instance
