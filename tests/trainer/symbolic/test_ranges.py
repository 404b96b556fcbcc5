"""Ranges of whole numbers."""

import random
from typing import Any

import pyglove as pg
import pytest

from trainer.symbolic.component import Component, Count, Number, OptionalNumber, numbers
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import override, tune
from trainer.symbolic.ranges import IntRange, intv
from trainer.symbolic.serialization import from_json_text, to_json_text


class Part(Component):
    """A field of each type that a number may have."""

    size: int = 3
    limit: int | None = None
    steps: Count = 5
    sizes: list[int] = []
    either: str | int = 'auto'
    bounded: pg.typing.Int(min_value=1, max_value=9) = 3  # type: ignore[valid-type]
    rate: float = 0.5
    number: Number = 0.5
    optional: OptionalNumber = None
    flag: bool = False
    name: str = 'part'
    anything: Any = None

    def check(self) -> None:
        if self.limit is not None and self.size > self.limit:
            raise ValueError(f'size ({self.size}) is above limit ({self.limit})')


INTEGER_FIELDS = ['size', 'limit', 'steps', 'either', 'bounded', 'anything']


@pytest.mark.parametrize('field', INTEGER_FIELDS)
def test_it_stands_in_integer_fields_and_becomes_an_int(field: str) -> None:
    for value in (intv(4, 8, 'log'), pg.oneof([4, intv(5, 8)])):
        part = Part(**{field: value})
        spec = pg.dna_spec(part)
        found = {getattr(pg.materialize(part, dna), field) for dna in spec.iter_dna()}
        assert found == {4, 5, 6, 7, 8}
        assert {type(each) for each in found} == {int}


def test_it_stands_in_lists() -> None:
    part = Part(sizes=[intv(1, 2), 7, intv(3, 4)])
    found = [list(pg.materialize(part, dna).sizes) for dna in pg.dna_spec(part).iter_dna()]
    assert found == [[1, 7, 3], [1, 7, 4], [2, 7, 3], [2, 7, 4]]


@pytest.mark.parametrize('field', ['rate', 'number', 'optional'])
def test_fields_of_floats_refuse_it_with_what_to_use(field: str) -> None:
    message = rf"{field}: intv\(1, 8, 'log'\) is for .* use floatv\(1.0, 8.0, 'log'\)"
    with pytest.raises(TypeError, match=message):
        Part(**{field: intv(1, 8, 'log')})


@pytest.mark.parametrize('field', ['flag', 'name', 'sizes'])
def test_other_fields_refuse_it(field: str) -> None:
    with pytest.raises(TypeError, match=rf'{field}: intv\(1, 8\) is for integer fields only$'):
        Part(**{field: intv(1, 8)})


@pytest.mark.parametrize('bounds', [(0, 9), (1, 10)])
def test_the_bounds_of_a_field_hold(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match='Valid numbers are from 1 to 9'):
        Part(bounded=intv(*bounds))


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ((1.5, 8), 'whole numbers'),
        ((1, float('inf')), 'whole numbers'),
        ((float('nan'), 1), 'whole numbers'),
        ((0, 2**53 + 2), 'whole numbers'),
        ((8, 1), 'greater than'),
        ((0, 8, 'log'), 'must be positive'),
        ((-1, 8, 'rlog'), 'must be positive'),
        ((1, 8, 'lgo'), 'lgo'),
    ],
)
def test_bad_ranges_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        intv(*arguments)


def test_checks_of_a_component_see_the_integer() -> None:
    part = Part(size=intv(1, 8), limit=6)
    assert pg.materialize(part, pg.DNA(6.0)).size == 6
    with pytest.raises(ValueError, match=r'size \(7\) is above limit \(6\)'):
        pg.materialize(part, pg.DNA(7.0))


def test_only_whole_numbers_of_the_range_are_decoded() -> None:
    for number in (1.5, 0.0, 9.0):
        with pytest.raises(ValueError, match=r'whole number|no less|no greater'):
            pg.materialize(Part(size=intv(1, 8)), pg.DNA(number))
    spec = pg.dna_spec(Part(size=intv(1, 8)))
    with pytest.raises(ValueError, match='whole number'):
        spec.elements[0].validate(pg.DNA(1.5))


def test_values_are_encoded() -> None:
    template = pg.template(Part(size=intv(1, 8)))
    assert template.encode(Part(size=5)) == pg.DNA(5.0)
    for value in (9, True):
        with pytest.raises(ValueError, match=r'whole number|no greater'):
            IntRange(1, 8).encode(value)


def test_generators_of_pyglove_draw_whole_numbers() -> None:
    spec = pg.dna_spec(Part(size=intv(-1, 1)))
    drawn = [spec.random_dna(random.Random(seed)).value for seed in range(40)]
    assert set(drawn) == {-1.0, 0.0, 1.0}
    assert spec.space_size == 3


def test_json_brings_it_back() -> None:
    part = Part(size=intv(2, 64, 'rlog', name='width'))
    again = from_json_text(to_json_text(part), Part)
    assert pg.eq(again, part)
    assert again.sym_getattr('size').scale == 'rlog'
    assert again.sym_getattr('size').name == 'width'


def test_count_that_is_searched_is_a_number() -> None:
    part = Part(steps=intv(1, 8))
    assert isinstance(numbers(part)['steps'], IntRange)
    assert numbers(pg.materialize(part, pg.DNA(2.0)))['steps'] == 2


def test_on_the_command_line() -> None:
    part = tune(Part(), ['size=intv(1, 8, "log")', 'sizes=permutate([1, 2])'])
    assert pg.eq(part.sym_getattr('size'), intv(1, 8, 'log'))
    assert pg.eq(part.sym_getattr('sizes'), pg.permutate([1, 2]))
    assert override(part, ['size=5', 'sizes=[3]']).size == 5
    with pytest.raises(UserError, match=r'^--tune rate: expected a number, got intv\(1, 8\)$'):
        tune(Part(), ['rate=intv(1, 8)'])
    with pytest.raises(UserError, match=r'size is a decision, .* size=8$'):
        override(part, ['size.max_value=9'])
