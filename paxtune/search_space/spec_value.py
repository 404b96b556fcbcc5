import ast
import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import pyglove as pg

from paxtune.search_space.decisions import is_integer
from paxtune.search_space.labels import display_value
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv

_Items = Sequence[tuple[Sequence[Any], Any]]
"""Values, and the keys of their paths."""


def value_of(spec: pg.DNASpec) -> Any:
    """Symbolic value with the decisions of a space, in the same order.

    A decision has the path of its location. A candidate is its literal value if the space stores
    it, so that names of the original value are kept. Without locations
    (`pg.geno.space([pg.geno.oneof(…), pg.geno.oneof(…)])`), decisions are called `decision_0` and
    so on.

    A DNA of the space is valid for the value.

    Raises:
        UserError: the space contains a point that is neither a choice nor a range.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(x=pg.oneof([5, 6]), y=[0, pg.oneof(['a', 'b'])]))
        >>> value = value_of(spec)
        >>> pg.materialize(value, pg.DNA([1, 0]))
        {x=6, y=[0: None, 1: 'a']}
    """
    elements = list(spec.elements) if isinstance(spec, pg.geno.Space) else [spec]
    decisions = [_decision(element) for element in elements]
    try:
        return _nested([(e.location.keys, d) for e, d in zip(elements, decisions, strict=True)])
    except ValueError:
        return pg.Dict({f'decision_{i}': decision for i, decision in enumerate(decisions)})


def _decision(point: pg.DNASpec) -> Any:
    if isinstance(point, pg.geno.Choices):
        literals = point.literal_values or range(len(point.candidates))
        candidates = [
            value_of(candidate) if candidate.elements else _read(literal)
            for candidate, literal in zip(point.candidates, literals, strict=True)
        ]
        if point.num_choices == 1:
            return pg.oneof(candidates)
        order = {'distinct': point.distinct, 'sorted': point.sorted}
        return pg.manyof(point.num_choices, candidates, **order)
    if not isinstance(point, pg.geno.Float):
        raise UserError(
            f'{point.id or "the space"}: a paxtune study supports choices and ranges, no '
            f'{type(point).__name__}. Use pg.oneof, pg.manyof, pg.permutate, pg.floatv or '
            "paxtune.intv there, or backend='in-memory'."
        )
    if is_integer(point):
        return intv(int(point.min_value), int(point.max_value), point.scale)
    return pg.floatv(point.min_value, point.max_value, point.scale)


def _read(literal: Any) -> Any:
    """Parses a literal value if it is plain; any other one is a text."""
    if not isinstance(literal, str):
        return display_value(literal)
    if literal in ('None', 'True', 'False') or literal[:1] in ('"', "'"):
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.literal_eval(literal)
    return literal


def _nested(items: _Items) -> Any:
    """Nested mappings and lists; raises ValueError if none have the items in this order."""
    if len(items) == 1 and not items[0][0]:
        return items[0][1]
    if not all(path for path, _ in items):
        raise ValueError('several values have the same path')
    built = {}
    for key, group in itertools.groupby(items, key=lambda item: item[0][0]):
        if key in built:
            raise ValueError(f'the values in {key} are not adjacent')
        built[key] = _nested([(path[1:], value) for path, value in group])
    if all(isinstance(key, str) for key in built):
        return pg.Dict(built)
    if all(isinstance(key, int) and key >= 0 for key in built) and sorted(built) == list(built):
        return pg.List([built.get(index) for index in range(max(built) + 1)])
    raise ValueError(f'{list(built)} are neither keys of a mapping nor sorted indices')
