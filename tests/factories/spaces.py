"""Random symbolic values with decisions in them, for property tests."""

from typing import Any

import pyglove as pg
from hypothesis import strategies as st

from paxtune.search_space.decisions import Decisions, active_decision_points, slot_ids
from tests.factories.toys import Block, Dense
from trainer.symbolic.ranges import intv

SEEDS = st.integers(0, 2**32)

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, width=32),
    st.text(max_size=5),
)


def _ranges(scale: str | None) -> st.SearchStrategy[Any]:
    low = 1e-6 if scale in ('log', 'rlog') else -1e6
    bounds = st.floats(low, 1e6, width=64)
    return (
        st.tuples(bounds, bounds)
        .filter(lambda pair: pair[0] != pair[1])
        .map(lambda pair: pg.floatv(min(pair), max(pair), scale))
    )


def _int_ranges(scale: str | None) -> st.SearchStrategy[Any]:
    bounds = st.integers(1 if scale in ('log', 'rlog') else -(2**53), 2**53)
    return (
        st.tuples(bounds, bounds)
        .filter(lambda pair: pair[0] != pair[1])
        .map(lambda pair: intv(min(pair), max(pair), scale))
    )


_SCALES = st.sampled_from([None, 'linear', 'log', 'rlog'])
RANGES = _SCALES.flatmap(_ranges) | _SCALES.flatmap(_int_ranges)


def _choices(candidates: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(candidates, min_size=1, max_size=3)

    @st.composite
    def several(draw: st.DrawFn) -> Any:
        values, distinct = draw(some), draw(st.booleans())
        count = draw(st.integers(1, min(len(values), 2) if distinct else 2))
        return pg.manyof(count, values, distinct=distinct, sorted=draw(st.booleans()))

    return st.one_of(some.map(pg.oneof), several(), some.map(pg.permutate))


def _candidates(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    decision = st.one_of(RANGES, _choices(inner))
    return st.one_of(
        inner,
        decision,
        decision.map(lambda value: pg.Dict(inside=value, fixed=1)),
        st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3).map(
            lambda heads: Block(heads=pg.oneof(heads))
        ),
        st.integers(1, 99).map(Dense),
    )


DECISIONS = st.one_of(RANGES, _choices(_candidates(_candidates(_SCALARS))))


@st.composite
def values(draw: st.DrawFn) -> Any:
    """A symbolic value with one to four decisions at its top, some with more inside."""
    names = ['rate', 'layer', 'list_of', 'x']
    decisions = draw(st.lists(DECISIONS, min_size=1, max_size=3))
    return pg.Dict({'fixed': 3} | dict(zip(names, decisions, strict=False)))


@st.composite
def layer_spaces(draw: st.DrawFn) -> Any:
    """A symbolic value with a list of layers in it, most of which are alike."""
    alike, other = draw(DECISIONS), draw(DECISIONS | _SCALARS)
    others = draw(st.lists(st.booleans(), min_size=3, max_size=5))
    layers = [pg.clone(other if each else alike, deep=True) for each in others]
    return pg.Dict(layers=[*layers, pg.clone(alike, deep=True)], rate=draw(RANGES))


def changed_points(spec: pg.DNASpec, parent: Decisions, child: Decisions) -> list[str]:
    """First ids of the decision points that differ, without those inside another one."""
    changed: list[tuple[str, ...]] = []
    for point in active_decision_points(spec, parent):
        names = slot_ids(point)
        if any(
            name.startswith(tuple(f'{id_}[=' for id_ in above))
            for above in changed
            for name in names
        ):
            continue
        if [parent[name] for name in names] != [child.get(name) for name in names]:
            changed.append(tuple(names))
    return [names[0] for names in changed]
