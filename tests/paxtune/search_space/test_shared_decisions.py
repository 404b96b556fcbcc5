import random
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms.encoding.sampling import draw
from paxtune.experiment import Tunable
from paxtune.search_space.shared_decisions import readable_path, with_shared_scope
from paxtune.search_space.space import Space
from tests.factories.toys import Block, Dense, Toy, search
from tests.factories.tunables import Rates
from trainer.symbolic.component import Component, components
from trainer.symbolic.derived import derived, derived_values
from trainer.symbolic.errors import UserError
from trainer.symbolic.ranges import intv
from trainer.symbolic.serialization import from_json_text, to_json_text


def width() -> Any:
    return pg.oneof([8, 16], name='width')


def kind() -> Any:
    return pg.oneof([Block(pg.oneof([2, 4], name='heads')), Dense(width())], name='kind')


def materialized(value: Any) -> list[Any]:
    """All elements of the space of a value."""
    space = Space(value)
    return [space.materialize(decisions) for decisions in everything(space)]


def everything(space: Space) -> list[dict[str, Any]]:
    from paxtune.algorithms.encoding.enumeration import enumerate_decisions

    return list(enumerate_decisions(space.spec))


@pytest.mark.pax('Shared decision: same')
def test_decisions_of_one_name_are_one_decision():
    value = pg.Dict(encoder=Dense(width()), layers=[Dense(width()), 3], other=pg.oneof([1, 2]))
    space = Space(value)
    assert space.paths == ['other', 'shared.width']
    assert space.size == 4
    made = [space.materialize(decisions) for decisions in everything(space)]
    assert [(m.encoder.width, m.layers[0].width, m.other) for m in made] == [
        (8, 8, 1), (16, 16, 1), (8, 8, 2), (16, 16, 2),
    ]  # fmt: skip
    assert all('shared' not in m for m in made)
    assert 'shared' not in value


def test_unique_names_are_not_moved():
    value = pg.Dict(x=width(), y=pg.oneof([1, 2], name='other'))
    assert with_shared_scope(value) is value
    assert Space(value).paths == ['x', 'y']


@pytest.mark.parametrize(
    'decision',
    [
        lambda: pg.floatv(0.1, 1.0, 'log', name='n'),
        lambda: intv(1, 8, name='n'),
        lambda: pg.manyof(2, [1, 2, 3], name='n'),
        lambda: pg.permutate([1, 2, 3], name='n'),
        lambda: pg.oneof([Dense(), Block()], name='n'),
    ],
)
def test_decisions_of_every_kind(decision):
    space = Space(pg.Dict(x=decision(), y=[decision()]))
    for seed in range(3):
        made = space.materialize(draw(space.spec, random.Random(seed)))
        assert pg.eq(made.x, made.y[0])
        if isinstance(made.x, pg.Symbolic):
            assert made.x is not made.y[0]


def test_shared_decisions_inside_candidates_are_always_active():
    space = Space(pg.Dict(x=pg.oneof([Dense(width()), Block()]), y=pg.oneof([width(), None])))
    assert space.paths == ['x', 'y', 'shared.width']
    assert space.size == 8
    made = {(pg.to_json_str(m.x), m.y) for m in materialized(space.value)}
    assert len(made) == 7  # A block with None exists once.


def test_shared_decisions_move_with_their_children():
    space = Space(pg.Dict(x=kind(), y=kind(), z=width()))
    # The width also has a path of its own, so it is shared; the heads are not.
    assert space.paths == ['shared.kind', 'shared.kind.heads', 'shared.width']
    for made in materialized(space.value):
        assert pg.eq(made.x, made.y)
        assert not isinstance(made.x, Dense) or made.x.width == made.z


def test_sharing_is_independent_of_the_order_of_names():
    first, last = (
        Space(pg.Dict(z=width(), x=kind(), y=kind())),
        Space(pg.Dict(x=kind(), y=kind(), z=width())),
    )
    assert set(first.paths) == set(last.paths)
    assert first.size == last.size == 6


def test_sharing_is_idempotent():
    value = with_shared_scope(pg.Dict(x=kind(), y=kind(), z=width()))
    assert with_shared_scope(value) is value


def test_a_tunable_keeps_its_shared_scope():
    tunable = Rates()
    rate = {'name': 'rate', 'scale': 'log'}
    tunable.rebind(
        {
            'task.learner.learning_rate': pg.floatv(1e-4, 1e-1, **rate),
            'task.model.stack.layers[0].feed_forward.hidden_dims': pg.oneof([16, 32], name='dims'),
            'task.model.embedding.dims': pg.oneof([16, 32], name='dims'),
        }
    )
    space = Space(tunable)
    assert space.paths == ['task.learner.learning_rate', 'shared.dims']
    decisions = space.parse({'task.learner.learning_rate': 0.01, 'shared.dims': 32})
    made = space.materialize(decisions)
    assert made.task.model.embedding.dims == 32
    assert made.task.model.stack.layers[0].feed_forward.hidden_dims == 32
    assert made.sym_get('shared.dims') == 32
    assert pg.is_deterministic(made)
    assert not list(derived_values(made))
    again = from_json_text(to_json_text(tunable), Tunable)
    assert pg.eq(Space(again).spec, space.spec)


def test_explicit_shared_values_are_kept():
    tunable = Rates()
    tunable.rebind(
        {
            'shared': {'row': pg.oneof([[0.1, 16], [0.01, 32]]), 'width': derived('shared.row[1]')},
            'task.learner.learning_rate': derived('shared.row[0]'),
            'task.model.embedding.dims': derived('shared.width'),
        }
    )
    space = Space(tunable)
    assert space.paths == ['shared.row']
    for text in ('[0.01, 32]', '[0.01,32]', [0.01, 32]):
        decisions = space.parse({'shared.row': text})
        assert space.readable(decisions) == {'shared.row': '[0.01, 32]'}
    made = space.materialize(decisions)
    assert (made.task.learner.learning_rate, made.task.model.embedding.dims) == (0.01, 32)


def test_an_equal_shared_decision_is_merged():
    value = pg.Dict(shared={'width': width()}, x=width(), y=width())
    assert Space(value).paths == ['shared.width']
    assert Space(pg.Dict(shared={'width': width()}, x=width())).size == 2


def test_names_need_not_be_identifiers():
    def rate() -> Any:
        return pg.oneof([1, 2], name="the rate's.x")

    space = Space(pg.Dict(x=rate(), y=rate()))
    (path,) = space.paths
    made = space.materialize(space.parse({path: 2}))
    assert (made.x, made.y) == (2, 2)


class _NoRoom(Component):
    x: int
    y: int


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        (
            pg.Dict(x=width(), y=[pg.oneof([pg.oneof([8, 16, 32], name='width'), 1])]),
            r"x and y\[0\]: both decisions have the name 'width', and they differ",
        ),
        (
            pg.Dict(x=width(), y=pg.oneof([pg.Dict(z=pg.floatv(0.0, 1.0, name='width')), 1])),
            "x and y.z: both decisions have the name 'width'",
        ),
        (
            pg.Dict(x=width(), y=width(), shared={'width': 8}),
            'shared.width: another value has the name of the shared decision at x',
        ),
        (
            _NoRoom(x=width(), y=width()),
            "x and y: decisions of the same name, 'width', .* _NoRoom lacks. Rename one",
        ),
        (pg.oneof([width(), width()]), 'are shared in a field `shared`, which OneOf lacks'),
        (pg.Dict(x=width(), y=width(), shared=3), 'are shared in a field `shared`'),
    ],
)
def test_conflicting_shared_decisions_are_rejected(value, message):
    with pytest.raises(UserError, match=message):
        Space(value)


def test_shared_components_are_copied_to_each_path():
    space = Space(Toy(search=search(), layer=[Block(), Block()], widths=pg.oneof([1, 2])))
    assert with_shared_scope(space.value) is space.value
    value = pg.Dict(x=kind(), y=[kind(), kind()])
    made = materialized(value)[0]
    found = [id(component) for component in components(made)]
    assert len(found) == len(set(found)) == 3
    assert [str(each.sym_path) for each in components(made)] == ['x', 'y[0]', 'y[1]']


def test_readable_paths_omit_candidates():
    value = pg.Dict(x=pg.oneof([pg.Dict(y=[pg.manyof(1, [pg.Dict(z=pg.oneof([1, 2]))])])]))
    inner = value.x.candidates[0].y[0].candidates[0].z
    assert readable_path(inner) == 'x.y[0].z'
    assert readable_path(value) == ''
