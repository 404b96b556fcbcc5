"""The decisions of a space in words, for people."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import pyglove as pg

from paxtune.search_space.decisions import DecisionPoint, slots
from paxtune.search_space.labels import parameter_path


class NamedSpace(Protocol):
    """The part of `Space` that names decisions and their values."""

    spec: pg.DNASpec

    def legal_values(self, point: DecisionPoint) -> str: ...

    def candidate_names(self, slot: pg.geno.Choices) -> list[Any]: ...


@dataclasses.dataclass(frozen=True)
class DecisionRow:
    """A decision, in words.

    Attributes:
        path: the place in the concrete experiment.
        condition: the decisions that it depends on; empty if it is always active.
    """

    path: str
    legal: str
    scale: str
    condition: str


def rows(space: NamedSpace) -> list[DecisionRow]:
    """Lists all decisions, an owner before its dependent ones."""
    return list(_rows(space, space.spec, ''))


def _rows(space: NamedSpace, spec: pg.DNASpec, condition: str) -> Iterator[DecisionRow]:
    for point in spec.elements:
        scale = (point.scale or 'linear') if isinstance(point, pg.geno.Float) else ''
        yield DecisionRow(parameter_path(point.id.path), _legal(space, point), scale, condition)
        if isinstance(point, pg.geno.Float):
            continue
        for place in slots(point):
            labels = space.candidate_names(place)
            for label, candidate in zip(labels, place.candidates, strict=True):
                chosen = f'{parameter_path(place.id.path)} = {label}'
                both = f'{condition} and {chosen}' if condition else chosen
                yield from _rows(space, candidate, both)


def _legal(space: NamedSpace, point: DecisionPoint) -> str:
    if isinstance(point, pg.geno.Float):
        return space.legal_values(point)
    names = ', '.join(map(str, space.candidate_names(point.subchoice(0))))
    if point.num_choices == 1:
        return f'one of {names}'
    differ = ', all different' if point.distinct else ''
    order = ', in this order' if point.sorted else ''
    return f'{point.num_choices} of {names}{differ}{order}'
