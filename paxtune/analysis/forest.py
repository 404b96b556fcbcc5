"""Random forests, fitted in this process or in one of its own.

A process of its own has the seconds and the 150 MB that scikit-learn takes.
"""

import dataclasses
import io
import subprocess
import sys
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from trainer.symbolic import extras

Array: TypeAlias = np.ndarray

_USER = 'the importance of decisions'
_NUM_TREES = 64  # As in Optuna.
_SEED = 0
_TIMEOUT = 300.0
_NODES = ('children_left', 'children_right', 'feature', 'threshold', 'value')


@dataclasses.dataclass(frozen=True)
class Tree:
    """The nodes of a tree: [nodes] each. A leaf has the left child -1."""

    left: Array
    right: Array
    feature: Array
    threshold: Array
    value: Array


@dataclasses.dataclass(frozen=True)
class Forest:
    """A random forest.

    Attributes:
        trees: its trees.
        impurities: the mean decrease in impurity by feature: [features], the sum is 1.
    """

    trees: list[Tree]
    impurities: Array


def fit(rows: Array, targets: Array) -> Forest:
    """Fits a forest to targets [n] of rows [n, features]. The same rows make the same forest."""
    return _forest(_columns(rows, targets))


def fit_elsewhere(rows: Array, targets: Array) -> Forest:
    """Fits the same forest in a process that ends with it, so that this one stays small.

    Raises:
        UserError: scikit-learn is not installed.
        RuntimeError: the process failed.
    """
    extras.require('sklearn', _USER, 'sklearn')
    data = io.BytesIO()
    np.savez(data, rows=rows, targets=targets)
    done = subprocess.run(
        [sys.executable, '-c', 'from paxtune.analysis import forest; forest.serve()'],
        input=data.getvalue(),
        capture_output=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors='replace'))
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as columns:
        return _forest(columns)


def _columns(rows: Array, targets: Array) -> dict[str, Array]:
    """Fits a forest: the nodes of all trees in a row, and how many nodes each tree has."""
    # Imported here: it takes seconds.
    with extras.needed('sklearn', _USER):
        from sklearn.ensemble import RandomForestRegressor

    # Targets are scaled, so that tiny variances are not rounded to nothing.
    scaled = (targets - targets.mean()) / np.ptp(targets)
    fitted = RandomForestRegressor(_NUM_TREES, max_depth=64, random_state=_SEED).fit(rows, scaled)
    trees = [each.tree_ for each in fitted.estimators_]
    nodes = {name: np.concatenate([getattr(t, name).ravel() for t in trees]) for name in _NODES}
    counts = np.array([tree.node_count for tree in trees])
    return {**nodes, 'counts': counts, 'impurities': fitted.feature_importances_}


def _forest(columns: Mapping[str, Array]) -> Forest:
    ends = np.cumsum(columns['counts'])[:-1]
    nodes = [np.split(columns[name], ends) for name in _NODES]
    return Forest([Tree(*each) for each in zip(*nodes, strict=True)], columns['impurities'])


def serve() -> None:
    """Reads rows and targets from standard input, and writes their forest to standard output."""
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as given:
        columns = _columns(given['rows'], given['targets'])
    found = io.BytesIO()  # A pipe cannot seek.
    np.savez(found, **columns)  # type: ignore[arg-type]
    sys.stdout.buffer.write(found.getvalue())
