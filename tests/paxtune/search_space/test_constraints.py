"""Constraints of suggestions."""

from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import Exhausted, RandomSearch, SuggestionContext
from paxtune.search_space.constraints import Constraint, Infeasible, Requires
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError


class Heads(Component):
    """A part with a field that may be inherited, and a rule of its own."""

    count: int = 2
    dims: int = pg.MISSING_VALUE

    def check(self) -> None:
        if self.count > 4:
            raise Infeasible(f'{self.count} heads are too many')


class Model(Component):
    dims: int = 64
    heads: Heads = Heads(dims=64)
    widths: list[int] = [8, 16]
    named: dict[str, int] = {'a': 1}
    absent: int | None = None


class Narrow(Constraint):
    """A predicate in Python."""

    most: int

    def require(self, experiment: Any) -> None:
        if experiment.dims > self.most:
            raise Infeasible(f'dims ({experiment.dims}) is above {self.most}')


@pytest.mark.parametrize(
    ('condition', 'met'),
    [
        ('dims % heads.count == 0', True),
        ('dims // heads.count < 8', False),
        ('widths[0] < widths[1] and named.a == 1', True),
        ('widths[-1] <= 8', False),
        ('absent == null', True),
        ('heads.dims == dims', True),
        ('true', True),
    ],
)
def test_conditions_evaluate_paths_of_the_experiment(condition: str, met: bool) -> None:
    constraint = Requires(condition, 'the reason')
    experiment = Model(heads=Heads(dims=pg.symbolic.ValueFromParentChain()))
    if met:
        constraint.require(experiment)
    else:
        with pytest.raises(Infeasible, match=r'^the reason$'):
            constraint.require(experiment)


@pytest.mark.parametrize(
    ('condition', 'message'),
    [
        ('dim == 1', r'dim does not exist\. Did you mean dims\?'),
        ('head.count == 1', r'head does not exist\. Did you mean heads\?'),
        ('heads.cout == 1', r'heads\.cout does not exist\. Did you mean heads\.count'),
        ('widths[2] == 1', r'widths\[2\] does not exist'),
        ('x == 1', r'x does not exist\. Known: dims, heads, widths, named, absent\.'),
        ('absent.x == 1', r'absent\.x does not exist: absent is None'),
        ('dims.bit_length == 1', r'dims\.bit_length does not exist: dims is 64'),
        ('absent < 1', 'has no value: expected a number, got NoneType'),
        ('1 / (dims - 64) > 1', 'has no value: .*zero'),
        ('dims % 64', "'dims % 64' must be true or false. It is 0"),
        ('named', 'must be true or false'),
    ],
)
def test_undefined_conditions_raise(condition: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Requires(condition, 'reason').require(Model())


@pytest.mark.parametrize('condition', ['dims %', '__import__("os")', 'dims = 3', ''])
def test_unparsable_conditions_are_rejected(condition: str) -> None:
    with pytest.raises(ValueError, match='condition: cannot read'):
        Requires(condition, 'reason')


def _why(space: Space, constraints: list[Constraint], decisions: Decisions) -> str | None:
    try:
        experiment = space.materialize(decisions)
        for constraint in constraints:
            constraint.require(experiment)
    except ValueError as reason:
        return str(reason)
    return None


def _ask(space: Space, constraints: list[Constraint], number: int = 1) -> Any:
    """The experiment that random search suggests."""
    request = SuggestionContext(
        space.spec, 0, number, list, lambda each: _why(space, constraints, each)
    )
    return space.materialize(RandomSearch().suggest(request).decisions)


def test_suggestions_satisfy_constraints_and_checks() -> None:
    heads = Heads(count=pg.oneof([2, 3, 4, 8]), dims=1)
    space = Space(Model(dims=pg.oneof([30, 32, 64]), heads=heads))
    constraints = [Requires('dims % heads.count == 0', 'heads must divide dims'), Narrow(40)]
    feasible = {(30, 2), (30, 3), (32, 2), (32, 4)}
    found = set()
    for number in range(1, 40):
        made = _ask(space, constraints, number)
        found.add((made.dims, made.heads.count))
    assert found == feasible


def test_an_infeasible_finite_space_is_exhausted() -> None:
    space = Space(Model(dims=pg.oneof([30, 32, 64])))
    with pytest.raises(Exhausted):
        _ask(space, [Narrow(16)])


def test_a_bad_path_stops_the_search() -> None:
    with pytest.raises(UserError, match='dms does not exist'):
        _ask(Space(Model(dims=pg.oneof([30, 32]))), [Requires('dms > 3', 'reason')])
