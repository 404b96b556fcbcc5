"""Search methods: their names, their numbers of trials and seeds, and their fingerprints.

Nothing heavy is imported before a method is made.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from benchmarks.search.problems import Problem, Value

ROOT = Path(__file__).parents[2]
OWN, STOCK = 'own', 'stock'
_OF_OURS = ('ours', 'limited_portfolio')
_LIBRARIES = ('numpy', 'scipy', 'jax', 'jaxlib', 'pyglove', 'google-vizier', 'cmaes')


Earlier: TypeAlias = Literal['none', 'one', 'negated', 'mirrored', 'shuffled']
"""Earlier studies of other tables: none, one, or three with wrong scores or mirrored numbers."""


class Searcher(Protocol):
    """One run of a method."""

    def ask(self) -> Mapping[str, Value]:
        """The values of the next trial, by the names of the parameters."""

    def tell(self, value: float | None) -> None:
        """Reports the result of the last trial; None where it was infeasible."""

    def add(self, values: Mapping[str, Value], value: float | None) -> None:
        """Adds a trial that the method has not suggested."""


class Refused(Exception):
    """The method says that it cannot search the problem."""


@dataclasses.dataclass(frozen=True)
class Method:
    """One of the contenders.

    Attributes:
        name: for people.
        where: 'own' for what runs with paxtune; 'stock' for its environment too, but in processes
            with double precision, which Vizier's service turns on. Other names are those of
            benchmarks/requirements/<name>.txt: a peer, in an environment of its own.
        module: of `benchmarks.search`, whose `make(name, problem, seed)` begins a run.
        trials: in a run.
        seeds: how many runs of a problem there are.
        problems: those that it is run on; none for all.
        parallel: trials that run at once: all are asked for, then their results are given.
        prior: 'known' where it has the problem's usual values, 'mirrored' where it has wrong ones.
        earlier: the kind of the earlier studies that it learns from.
    """

    name: str
    where: str
    module: str
    trials: int
    seeds: int
    problems: tuple[str, ...] = ()
    parallel: int = 1
    prior: Literal['none', 'known', 'mirrored'] = 'none'
    earlier: Earlier = 'none'

    @property
    def algorithm(self) -> str:
        """Name of the algorithm in `--algorithm`."""
        return 'portfolio' if self.name in LIMITS else without_suffix(self.name)

    @property
    def is_peer(self) -> bool:
        """True if it runs in an environment of its own."""
        return self.where not in (OWN, STOCK)


# Algorithms of paxtune are found by name in `paxtune.algorithms`; unknown ones are left out. Models
# that are dear to fit have shorter and fewer runs.
METHODS: Sequence[Method] = (
    Method('random_search', OWN, 'ours', 200, 20),
    Method('quasi_random', OWN, 'ours', 200, 20),
    Method('regularized_evolution', OWN, 'ours', 200, 20),
    Method('cmaes', OWN, 'ours', 200, 20),
    Method('eagle', OWN, 'ours', 200, 20),
    Method('tpe', OWN, 'ours', 200, 20),
    Method('gp_bandit', OWN, 'ours', 50, 10),
    Method('portfolio', OWN, 'ours', 200, 20),
    Method('default', OWN, 'ours', 200, 20),
    Method('default_parallel', OWN, 'ours', 96, 20, parallel=8),
    Method('default_parallel_64', OWN, 'ours', 128, 20, parallel=64),
    Method('optuna_tpe', 'search', 'optuna_samplers', 200, 20),
    Method('optuna_gp', 'search', 'optuna_samplers', 50, 10),
    Method('smac', 'smac', 'smac_search', 50, 10),
    # 5 s and 2 to 4 s a suggestion.
    Method('hebo', 'hebo', 'hebo_search', 50, 5),
    Method('ax', 'ax', 'ax_search', 50, 5),
    # 8 s a suggestion: some problems, and half as many trials.
    Method('stock_vizier', STOCK, 'stock_vizier', 25, 3, ('rastrigin_4', 'schaffers_20', 'mixed')),
)

KNOWING: Sequence[Method] = (
    Method('default', OWN, 'ours', 50, 100),
    Method('default_known', OWN, 'ours', 50, 100, prior='known'),
    Method('default_mirrored', OWN, 'ours', 50, 100, prior='mirrored'),
    Method('optuna_tpe', 'search', 'optuna_samplers', 50, 100),
    Method('optuna_tpe_known', 'search', 'optuna_samplers', 50, 100, prior='known'),
    Method('default_learning', OWN, 'ours', 50, 24, earlier='one'),
    Method('default_learning_negated', OWN, 'ours', 50, 24, earlier='negated'),
    Method('default_learning_mirrored', OWN, 'ours', 50, 24, earlier='mirrored'),
    Method('default_learning_shuffled', OWN, 'ours', 50, 24, earlier='shuffled'),
    Method('default_known_parallel_64', OWN, 'ours', 128, 100, parallel=64, prior='known'),
)
"""The contenders of `benchmarks/search_tables.py`."""

PEERS = tuple(each.name for each in METHODS if each.is_peer)

LIMITS: Mapping[str, tuple[float, float]] = {
    'always_tpe': (math.inf, math.inf),
    'limits_0.1_0.3': (0.1, 0.3),
    'limits_0.25_0.5': (0.25, 0.5),
    'limits_0.5_1': (0.5, 1.0),
    'always_gp': (-math.inf, -math.inf),
}
"""Candidates for the two limits of the portfolio."""

LIMITED = tuple(Method(name, OWN, 'limited_portfolio', 50, 6) for name in LIMITS)
"""The portfolio with each of them."""


_FRONTS = 'front_searchers'
FRONT_METHODS = (
    Method('default', OWN, _FRONTS, 50, 20),
    Method('nsga2', OWN, _FRONTS, 50, 20),
    Method('quasi_random', OWN, _FRONTS, 50, 20),
    Method('optuna_gp', 'search', _FRONTS, 50, 20),
    Method('optuna_nsga2', 'search', _FRONTS, 50, 20),
    Method('ax', 'ax', _FRONTS, 50, 20),
)
"""Searches of several objectives, for `benchmarks/hypervolume.py`."""


def without_suffix(name: str) -> str:
    """The name of a method without how it is run.

    Example:
        >>> without_suffix('default_known_parallel_64'), without_suffix('optuna_tpe_known')
        ('default', 'optuna_tpe')
    """
    return re.sub('(_(parallel(_64)?|known|learning|negated|mirrored|shuffled))+$', '', name)


@functools.cache
def own_algorithms() -> Mapping[str, type[Any]]:
    """Algorithms of paxtune, by their names in `--algorithm`."""
    from paxtune.algorithms import Algorithm
    from paxtune.config.named_components import classes_of

    return classes_of(Algorithm)


def own_algorithm(name: str) -> Any:
    """One of paxtune's algorithms, with its defaults."""
    return own_algorithms()[name]()


def is_available(method: Method) -> bool:
    """Returns False for an algorithm that paxtune does not have."""
    return method.module not in _OF_OURS or method.algorithm in own_algorithms()


@functools.cache
def fingerprint(method: Method) -> str:
    """Fingerprint of a method: of its settings, its source, and the versions of the libraries."""
    sources = [ROOT / 'benchmarks' / 'search' / f'{method.module}.py']
    parts = [method.name]
    if method.earlier != 'none':
        sources.append(ROOT / 'benchmarks' / 'search' / 'earlier.py')
    if method.is_peer:
        parts.append(str(method.trials))  # SMAC's first trials depend on it.
        sources.append(ROOT / 'benchmarks' / 'requirements' / f'{method.where}.txt')
    else:
        parts += [f'{name}=={_version(name)}' for name in _LIBRARIES]
    if method.module in _OF_OURS or (method.module == _FRONTS and not method.is_peer):
        from trainer.symbolic.serialization import to_json_text

        parts.append(to_json_text(own_algorithm(method.algorithm)))
        sources += sources_of(own_algorithms()[method.algorithm])
    return _digest(parts, sources)


def sources_of(kind: type[Any]) -> list[Path]:
    """The module of an algorithm, and all those of `paxtune.algorithms` that it names."""
    found: list[Path] = []
    todo = [kind.__module__]
    while todo:
        file = ROOT.joinpath(*todo.pop().split('.')).with_suffix('.py')
        if file.exists() and file not in found:
            found.append(file)
            text = file.read_text()
            todo += re.findall(r'paxtune\.algorithms(?:\.\w+)+', text)
            for package, names in re.findall(r'from (paxtune\.algorithms\S*) import (.*)', text):
                todo += [f'{package}.{name}' for name in re.findall(r'\w+', names)]
    return sorted(found)


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ''


@functools.cache
def problems_fingerprint() -> str:
    """Fingerprint of the sources of the problems."""
    names = ('bbob.py', 'problems.py', 'tables.py', 'cells.py')
    sources = [ROOT / 'benchmarks' / 'search' / name for name in names]
    return _digest([], [*sources, ROOT / 'paxtune' / 'simulate' / 'nearest_row.py'])


def _digest(parts: Sequence[str], files: Sequence[Path]) -> str:
    digest = hashlib.sha256('\n'.join(parts).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


Make = Callable[[str, Problem, int], Searcher]
"""Begins a run: the name of the method, the problem, the seed. Raises `Refused`."""
