"""Size, order and random access of enumerations."""

import itertools
from collections.abc import Sequence
from typing import Any

import pyglove as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxtune.algorithms.encoding.enumeration import enumerate_decisions, enumeration
from paxtune.search_space.decisions import Decisions, from_dna, size, to_dna
from tests.factories.spaces import values
from tests.properties import examples
from trainer.symbolic.ranges import intv


def _choice(candidates: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    @st.composite
    def several(draw: st.DrawFn) -> Any:
        some = draw(st.lists(candidates, min_size=1, max_size=3))
        distinct = draw(st.booleans())
        count = draw(st.integers(1, min(len(some), 3) if distinct else 2))
        return pg.manyof(count, some, distinct=distinct, sorted=draw(st.booleans()))

    return several()


_INTEGERS = st.integers(-3, 3).flatmap(
    lambda low: st.integers(1, 2).map(lambda more: intv(low, low + more))
)
_INNER = st.one_of(st.integers(), _INTEGERS)
_FINITE = st.one_of(_INTEGERS, _choice(st.one_of(_INNER, _choice(_INNER))))


@st.composite
def finite_values(draw: st.DrawFn) -> Any:
    """A value with one or two decisions at its top, and countably many experiments."""
    return pg.Dict(zip('ab', draw(st.lists(_FINITE, min_size=1, max_size=2)), strict=False))


def _brute_force(spec: pg.DNASpec) -> list[Decisions]:
    if isinstance(spec, pg.geno.Space):
        parts = [_brute_force(element) for element in spec.elements]
        return [_merged(combination) for combination in itertools.product(*parts)]
    if isinstance(spec, pg.geno.Float):
        numbers = range(int(spec.min_value), int(spec.max_value) + 1)
        return [{spec.id.path: number} for number in numbers]
    found = []
    for indices in itertools.product(range(len(spec.candidates)), repeat=spec.num_choices):
        if spec.distinct and len(set(indices)) < len(indices):
            continue
        if spec.sorted and list(indices) != sorted(indices):
            continue
        slots = [spec.subchoice(slot) for slot in range(spec.num_choices)]
        parts = [
            [{slot.id.path: index} | rest for rest in _brute_force(slot.candidates[index])]
            for slot, index in zip(slots, indices, strict=True)
        ]
        found += [_merged(combination) for combination in itertools.product(*parts)]
    return found


def _merged(parts: Sequence[Decisions]) -> Decisions:
    return {id_: value for part in parts for id_, value in part.items()}


@examples(60)
@given(finite_values())
def test_every_element_is_enumerated_once_and_in_order(value):
    spec = pg.dna_spec(value)
    found = [tuple(each.items()) for each in enumerate_decisions(spec)]
    assert len(found) == size(spec) == enumeration(spec).size
    assert len(set(found)) == len(found)
    assert set(found) == {tuple(each.items()) for each in _brute_force(spec)}
    for one, next_one in itertools.pairwise(found):
        # At the first difference the decision increases: the last one changes fastest.
        (id_, before), (next_id, after) = next(
            (a, b) for a, b in zip(one, next_one, strict=False) if a != b
        )
        assert id_ == next_id
        assert before < after


@examples(30)
@given(finite_values())
def test_the_order_equals_that_of_pyglove(value):
    spec = pg.dna_spec(value)
    first = itertools.islice(enumerate_decisions(spec), 20)
    theirs = itertools.islice(spec.iter_dna(attach_spec=False), 20)
    assert list(first) == [from_dna(spec, dna) for dna in theirs]


def test_large_spaces_are_enumerated_lazily():
    spec = pg.dna_spec(pg.Dict({f'x{i}': intv(0, 10**6) for i in range(600)}))
    first, second = itertools.islice(enumerate_decisions(spec), 2)
    assert set(first.values()) == {0}
    assert [id_ for id_ in second if second[id_]] == ['x599']


def test_infinite_spaces_are_not_enumerated():
    with pytest.raises(ValueError, match='infinite'):
        enumerate_decisions(pg.dna_spec(pg.Dict(x=pg.oneof([1, pg.floatv(0.0, 1.0)]))))


@examples(20)
@given(values())
def test_elements_of_a_reduced_space_are_distinct_and_legal(value):
    spec = pg.dna_spec(value)
    found = enumeration(spec, 2)
    indices = range(found.size) if found.size < 60 else range(0, found.size, found.size // 30)
    made = [found.at(index) for index in indices]
    assert len({tuple(decisions.items()) for decisions in made}) == len(indices)
    for decisions in made[:20]:
        assert list(to_dna(spec, decisions).to_dict()) == list(decisions)
