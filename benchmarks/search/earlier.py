"""Searches that learn from earlier studies of other tables, and from misleading ones.

An earlier study is a search of 50 trials by the default without a prior. The tables are those that
follow the searched one; they change with the seed.
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from benchmarks.search import ours
from benchmarks.search.methods import Earlier, Refused, own_algorithm
from benchmarks.search.problems import Known, Problem, Values

LENGTH, NUM_MISLEADING, NUM_SEARCHES = 50, 3, 2
"""Trials of an earlier study, misleading studies at once, and searches of each table."""

Trials: TypeAlias = Sequence[tuple[Values, float | None]]

_found: dict[tuple[str, int, int], Trials] = {}


def make(
    earlier: Earlier,
    problem: Problem,
    seed: int,
    all_: Mapping[str, Problem],
    length: int = LENGTH,
) -> ours.Study:
    """Begins a search of the default that learns from earlier studies.

    Args:
        earlier: the kind of the studies.
        problem: the searched one.
        seed: of the search.
        all_: problems by name; earlier studies are of those with the same parameters.
        length: trials of an earlier study.

    Raises:
        Refused: no other problem has the same parameters.
    """
    names = [name for name, each in all_.items() if each.parameters == problem.parameters]
    place = names.index(problem.name)
    others = [*names[place + 1 :], *names[:place]]
    if not others:
        raise Refused('no other problem has its parameters')
    count = 1 if earlier == 'one' else NUM_MISLEADING
    chosen = [others[(seed + i) % len(others)] for i in range(min(count, len(others)))]
    rng = random.Random(seed)
    studies = []
    for name in chosen:
        study = ours.Study(own_algorithm('default'), problem.knowing('none'), seed)
        trials = _searched(all_[name], 1000 + seed % NUM_SEARCHES, length)
        for values, value in changed(earlier, problem, trials, rng):
            study.add(values, value)
        studies.append(study.study)
    return ours.Study(own_algorithm('default'), problem, seed, studies)


def changed(
    earlier: Earlier, problem: Problem, trials: Trials, rng: random.Random
) -> Iterator[tuple[Values, float | None]]:
    """The trials of an earlier study; of a misleading one, with other values or decisions.

    Example:
        >>> from benchmarks.search.problems import bbob_problem
        >>> trials = [({'x0': 1.0, 'x1': -2.0}, 3.0), ({'x0': 0.0, 'x1': 0.0}, None)]
        >>> problem = bbob_problem('sphere', 2)
        >>> [*changed('mirrored', problem, trials, random.Random(0))][0]
        ({'x0': -1.0, 'x1': 2.0}, 3.0)
        >>> [value for _, value in changed('negated', problem, trials, random.Random(0))]
        [-3.0, None]
    """
    results = [value for _, value in trials if value is not None]
    if earlier == 'shuffled':
        rng.shuffle(results)
    for values, value in trials:
        result = value if value is None else results.pop(0)
        if result is not None and earlier == 'negated':
            result = -result
        yield _mirrored(problem, values) if earlier == 'mirrored' else values, result


def _mirrored(problem: Problem, values: Values) -> Values:
    numbers = {name: float(value) for name, value in values.items()}
    as_known = {name: Known(number, number, number) for name, number in numbers.items()}
    mirrored = dataclasses.replace(problem, known=as_known).knowing('mirrored').known
    return {name: each.value for name, each in mirrored.items()}


def _searched(problem: Problem, seed: int, length: int) -> Trials:
    """The trials of a search, which a process runs once."""
    key = problem.name, seed, length
    if key not in _found:
        searcher = ours.make('default', problem.knowing('none'), seed)
        objective, trials = problem.instance(seed).start(), list[tuple[Values, float | None]]()
        for _ in range(length):
            values = searcher.ask()
            trials.append((values, objective(values)))
            searcher.tell(trials[-1][1])
        _found[key] = trials
    return _found[key]
