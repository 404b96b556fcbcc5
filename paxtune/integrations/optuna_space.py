"""Conditional search spaces, inferred from the parameters of Optuna's trials."""

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyglove as pg
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paxtune.algorithms.encoding.sampling import fill
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.plain_numbers import plain
from trainer.symbolic.ranges import intv

Domains = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Node:
    """Parameters that are active together.

    Attributes:
        active: parameters by name. In an alternative, the parameter that selects it is restricted
            to the values that do.
        branches: alternatives, one of which is active in each branch.
    """

    active: Domains
    branches: Sequence[Sequence['Node']] = ()


def infer(domains: Domains, trials: Sequence[Params]) -> Node:
    """Infers conditions of parameters: the values of other ones with which they occurred.

    A parameter of some trials gets a branch on a choice, or on an integer, whose values separate
    these trials from the others. Without one, it counts as always active.

    Args:
        domains: all parameters.
        trials: parameters of ended trials.

    Example:
        >>> kind, rate = CategoricalDistribution(['adam', 'sgd']), FloatDistribution(0.0, 1.0)
        >>> trials = [{'kind': 'adam'}, {'kind': 'sgd', 'momentum': 0.5}]
        >>> node = infer({'kind': kind, 'momentum': rate}, trials)
        >>> for alternative in node.branches[0]:
        ...     print(dict(alternative.active))
        {'kind': CategoricalDistribution(choices=('sgd',)), \
'momentum': FloatDistribution(high=1.0, log=False, low=0.0, step=None)}
        {'kind': CategoricalDistribution(choices=('adam',))}
    """
    present = {
        name: frozenset(i for i, trial in enumerate(trials) if name in trial)
        for name in sorted(domains)
    }
    partial = [name for name in present if 0 < len(present[name]) < len(trials)]
    active = [name for name in present if name not in partial]
    always = [name for name in active if present[name]]
    groups: dict[str, list[str]] = {}
    for name in sorted(partial, key=lambda each: -len(present[each])):
        owner = _owner(name, always, domains, trials)
        if owner is None:  # It may depend on another conditional parameter.
            inside = (
                key
                for key, names in groups.items()
                if any(present[name] <= present[other] for other in names)
            )
            owner = next(inside, None)
        if owner is None:
            active.append(name)
        else:
            groups.setdefault(owner, []).append(name)
    return Node(
        {name: domains[name] for name in active if name not in groups},
        [_alternatives(owner, names, domains, trials) for owner, names in groups.items()],
    )


def _owner(
    name: str, always: Sequence[str], domains: Domains, trials: Sequence[Params]
) -> str | None:
    """Returns the parameter whose value decides if another one is active; choices come first."""
    found = [
        other
        for other in always
        if _separates(domains[other], *_values(other, name, domains, trials))
    ]
    return min(found, key=lambda each: isinstance(domains[each], IntDistribution), default=None)


def _values(
    owner: str, name: str, domains: Domains, trials: Sequence[Params]
) -> tuple[set[float], set[float]]:
    """Values of a parameter in the trials with another one, and in those without it."""
    found: tuple[set[float], set[float]] = set(), set()
    for trial in trials:
        found[name not in trial].add(domains[owner].to_internal_repr(trial[owner]))
    return found


def _separates(domain: BaseDistribution, ones: set[float], others: set[float]) -> bool:
    if isinstance(domain, IntDistribution):
        return max(ones) < min(others) or max(others) < min(ones)
    return isinstance(domain, CategoricalDistribution) and not ones & others


def _alternatives(
    owner: str, names: Sequence[str], domains: Domains, trials: Sequence[Params]
) -> list[Node]:
    """Divides the values of a parameter by the conditional parameters that occur with them."""
    domain = domains[owner]
    having = {name: _values(owner, name, domains, trials)[0] for name in names}
    parts: list[set[float]] = []
    for values in having.values():  # Alternatives share no conditional parameter.
        joined = [part for part in parts if part & values]
        parts = [part for part in parts if not part & values] + [values.union(*joined)]
    seen = {domain.to_internal_repr(trial[owner]) for trial in trials}
    rest = seen.difference(*parts)
    if len(parts) == 1 and not rest:
        parts, rest = [having[names[0]]], seen - having[names[0]]
    found = []
    for part, restricted in _restricted(domain, [*parts, *([rest] if rest else [])]):
        those = [t for t in trials if domain.to_internal_repr(t[owner]) in part]
        inside = {name: domains[name] for name in names if any(name in t for t in those)}
        found.append(infer({owner: restricted, **inside}, those))
    return found


def _restricted(
    domain: BaseDistribution, parts: Sequence[set[float]]
) -> list[tuple[set[float], BaseDistribution]]:
    """Restricts a domain to each part. Values that were never tried go to a neighbour, or last."""
    if isinstance(domain, IntDistribution):
        ordered = sorted(parts, key=min)
        lows = [domain.low]
        for below, above in itertools.pairwise(ordered):
            gap = int(min(above) - max(below)) // domain.step
            lows.append(int(max(below)) + (gap + 1) // 2 * domain.step)
        highs = [*(low - domain.step for low in lows[1:]), domain.high]
        return [
            (part, IntDistribution(low, high, log=domain.log, step=domain.step))
            for part, low, high in zip(ordered, lows, highs, strict=True)
        ]
    assert isinstance(domain, CategoricalDistribution)
    last = set(map(float, range(len(domain.choices)))).difference(*parts[:-1])
    return [
        (part, CategoricalDistribution([domain.choices[int(i)] for i in sorted(part)]))
        for part in [*parts[:-1], last]
    ]


class ConditionalSpace:
    """A search space for algorithms, and the way from and to Optuna's parameters.

    Attributes:
        spec: the search space.

    Example:
        >>> domains = {'x': FloatDistribution(0.0, 1.0), 'n': IntDistribution(2, 8, step=2)}
        >>> space = ConditionalSpace(domains, [])
        >>> space.encode({'x': 0.5, 'n': 6}, random.Random(0))
        {'p0': 2, 'p1': 0.5}
        >>> space.decode({'p0': 2, 'p1': 0.5})
        {'n': 6, 'x': 0.5}
    """

    def __init__(self, domains: Domains, trials: Sequence[Params]) -> None:
        """Makes the space of parameters, with the conditions that ended trials show."""
        # A name may contain any character; a key may not.
        self._keys = {name: f'p{i}' for i, name in enumerate(sorted(domains))}
        legal = [trial for trial in map(_plain, trials) if _is_legal(domains, trial)]
        self._root = infer(domains, legal)
        self.spec: pg.DNASpec = pg.dna_spec(self._value(self._root))

    def _value(self, node: Node) -> pg.Dict:
        fields = {self._keys[name]: _hyper(domain) for name, domain in node.active.items()}
        for i, alternatives in enumerate(node.branches):
            fields[f'branch{i}'] = pg.oneof([self._value(each) for each in alternatives])
        return pg.Dict(fields)

    def encode(self, params: Params, rng: random.Random) -> Decisions | None:
        """Converts parameters to decisions; None if they are outside of the space.

        An active parameter that is missing has no influence on its trial. It is drawn.
        """
        known: Decisions = {}
        try:
            self._encode(self._root, '', _plain(params), known)
        except ValueError:
            return None
        return fill(self.spec, known, rng)

    def _encode(self, node: Node, prefix: str, params: Params, known: Decisions) -> None:
        for name, domain in node.active.items():
            if name not in params:
                continue
            if not _contains(domain, params[name]):
                raise ValueError(name)
            if not domain.single():
                known[prefix + self._keys[name]] = _to_decision(domain, params[name])
        for i, alternatives in enumerate(node.branches):
            id_ = f'{prefix}branch{i}'
            for index, each in enumerate(alternatives):
                inside: Decisions = {}
                try:
                    self._encode(each, f'{id_}[={index}/{len(alternatives)}].', params, inside)
                except ValueError:
                    continue
                known |= {id_: index, **inside}
                break
            else:
                raise ValueError(id_)

    def decode(self, decisions: Decisions) -> dict[str, Any]:
        """Converts decisions to parameters, active ones only."""
        found: dict[str, Any] = {}
        self._decode(self._root, '', decisions, found)
        return found

    def _decode(self, node: Node, prefix: str, decisions: Decisions, found: dict[str, Any]) -> None:
        for name, domain in node.active.items():
            found[name] = _from_decision(domain, decisions.get(prefix + self._keys[name], 0))
        for i, alternatives in enumerate(node.branches):
            id_ = f'{prefix}branch{i}'
            index = int(decisions[id_])
            self._decode(
                alternatives[index], f'{id_}[={index}/{len(alternatives)}].', decisions, found
            )


def _plain(params: Params) -> Params:
    # A trial that was enqueued has the values that its author gave, such as NumPy's.
    return {name: plain(value) for name, value in params.items()}


def _is_legal(domains: Domains, trial: Params) -> bool:
    return all(_contains(domains[name], trial[name]) for name in domains if name in trial)


def _contains(domain: BaseDistribution, value: Any) -> bool:
    if isinstance(domain, CategoricalDistribution):
        return value in domain.choices
    assert isinstance(domain, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and domain.low <= value <= domain.high


def _hyper(domain: BaseDistribution) -> Any:
    """Makes PyGlove's hyper value of a domain, or a constant."""
    if domain.single():
        return 0
    if isinstance(domain, CategoricalDistribution):
        real: list[Any] = [each for each in domain.choices if type(each) in (int, float)]
        numbers = [each for each in real if math.isfinite(each)]
        is_ordinal = len(set(numbers)) == len(domain.choices)
        return pg.oneof(numbers if is_ordinal else [str(i) for i in range(len(domain.choices))])
    assert isinstance(domain, FloatDistribution | IntDistribution)
    scale = 'log' if domain.log else None
    if isinstance(domain, IntDistribution) and domain.log:
        return intv(domain.low, domain.high, scale)
    if domain.step is None:
        return pg.floatv(domain.low, domain.high, scale)
    return intv(0, round((domain.high - domain.low) / domain.step))


def _to_decision(domain: BaseDistribution, value: Any) -> int | float:
    if isinstance(domain, CategoricalDistribution):
        return int(domain.to_internal_repr(value))
    assert isinstance(domain, FloatDistribution | IntDistribution)
    if isinstance(domain, IntDistribution) and domain.log:
        return int(value)
    if domain.step is None:
        return float(value)
    return round((value - domain.low) / domain.step)


def _from_decision(domain: BaseDistribution, decision: int | float) -> Any:
    if isinstance(domain, CategoricalDistribution):
        return domain.choices[int(decision)]
    assert isinstance(domain, FloatDistribution | IntDistribution)
    if domain.single():
        return domain.low
    if domain.step is None or domain.log:
        return decision
    return min(domain.low + decision * domain.step, domain.high)
