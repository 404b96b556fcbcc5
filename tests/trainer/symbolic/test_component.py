import subprocess
import sys

import pyglove as pg
import pytest

from trainer.symbolic.component import (
    Component,
    Count,
    CountList,
    Number,
    NumberList,
    Numbers,
    OptionalNumber,
    bind,
    components,
    key,
    numbers,
)


class Leaf(Component):
    rate: Number = 0.5
    extra: OptionalNumber = None
    named: Numbers = {}
    steps: Count = 3
    width: int = 2


class Stairs(Component):
    boundaries: CountList
    values: NumberList = [1.0]


class Pair(Component):
    low: int
    high: int

    def check(self) -> None:
        if self.low > self.high:
            raise ValueError(f'low ({self.low}) must not be above high ({self.high})')


class Tree(Component):
    leaves: list[Leaf]
    scale: Number = 1.0


def test_numbers_are_found_by_path() -> None:
    tree = Tree([Leaf(), Leaf(extra=0.0, named={'b1': 0.9})])
    assert numbers(tree) == {
        'leaves[0].rate': 0.5,
        'leaves[0].steps': 3,
        'leaves[1].rate': 0.5,
        'leaves[1].extra': 0.0,
        'leaves[1].named.b1': 0.9,
        'leaves[1].steps': 3,
        'scale': 1.0,
    }


@pytest.mark.parametrize(
    'other', [Leaf(rate=0.1), Leaf(steps=9), Leaf(rate=2, steps=1)], ids=['rate', 'steps', 'both']
)
def test_numbers_do_not_change_the_key(other: Leaf) -> None:
    assert key(other) == key(Leaf())


@pytest.mark.parametrize(
    'other',
    [Leaf(width=3), Leaf(extra=0.0), Leaf(named={'b1': 0.1}), Tree([])],
    ids=['width', 'none is structure', 'names', 'class'],
)
def test_structure_changes_the_key(other: Component) -> None:
    assert key(other) != key(Leaf())


def test_each_number_of_a_list_is_one() -> None:
    stairs = Stairs(boundaries=[3, 5], values=[1.0, 0.5])
    found = {'boundaries[0]': 3, 'boundaries[1]': 5, 'values[0]': 1.0, 'values[1]': 0.5}
    assert numbers(stairs) == found
    assert key(stairs) == key(Stairs(boundaries=[4, 9], values=[0.1, 0.2]))
    assert key(stairs) != key(Stairs(boundaries=[4], values=[0.1, 0.2]))
    bound = bind(stairs, found | {'boundaries[1]': 'traced'})
    assert (bound.boundaries, bound.values) == ([3, 'traced'], [1.0, 0.5])
    assert stairs.boundaries == [3, 5]
    space = Stairs(boundaries=[3, pg.oneof([5, 7])], values=[pg.floatv(0.0, 1.0)])
    assert len(pg.dna_spec(space).elements) == 2


def test_an_integer_for_a_float_is_a_float() -> None:
    assert [type(n) for n in numbers(Leaf(extra=1, rate=2, named={'b1': 3})).values()] == [
        float, float, float, int,
    ]  # fmt: skip


def test_every_kind_of_number_can_be_searched() -> None:
    space = Leaf(
        rate=pg.floatv(0.0, 1.0),
        extra=pg.floatv(1e-3, 1.0, 'log'),
        named={'b1': pg.floatv(0.0, 1.0)},
        steps=pg.oneof([1, 2]),
    )
    assert len(pg.dna_spec(space).elements) == 4
    assert Leaf(extra=pg.oneof([None, 0.1])).sym_puresymbolic


def test_each_optional_number_has_its_own_default() -> None:
    class Twin(Component):
        first: OptionalNumber = 0.5
        second: OptionalNumber = 0.25

    assert numbers(Twin()) == {'first': 0.5, 'second': 0.25}
    assert Leaf().extra is None
    with pytest.raises(TypeError, match=r"Twin\.first: expected a number or None, got 'x'"):
        Twin(first='x')


def test_the_key_is_the_same_in_another_process() -> None:
    code = (
        'from trainer.symbolic.component import key; '
        'from trainer.mesh import Mesh; print(key(Mesh()))'
    )
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    from trainer.mesh import Mesh

    assert out.stdout.strip() == key(Mesh())


def test_bind_puts_values_in_a_copy_without_checks() -> None:
    tree = Tree([Leaf(named={'b1': 0.9})])
    token = object()
    bound = bind(tree, {'leaves[0].rate': token, 'leaves[0].named.b1': token})
    assert bound.leaves[0].rate is token
    assert bound.leaves[0].named['b1'] is token
    assert tree.leaves[0].rate == 0.5


def test_bound_values_keep_their_place() -> None:
    tree = Tree([Leaf(), Leaf()])
    assert str(bind(tree.leaves[1], {'rate': 0.1}).sym_path) == 'leaves[1]'


def test_check_waits_until_decisions_are_made() -> None:
    space = Pair(low=5, high=pg.oneof([1, 9]))
    assert pg.materialize(space, pg.DNA(1)).high == 9
    with pytest.raises(ValueError, match=r'low \(5\) must not be above high \(1\)'):
        pg.materialize(space, pg.DNA(0))


@pytest.mark.parametrize('values', [{'width': True}, {'steps': False}])
def test_booleans_are_not_integers(values: dict[str, bool]) -> None:
    with pytest.raises(TypeError, match=r'must be an integer: (True|False)'):
        Leaf(**values)


def test_components_lists_owners_first() -> None:
    tree = Tree([Leaf(), Leaf()])
    assert [type(c).__name__ for c in components(tree)] == ['Tree', 'Leaf', 'Leaf']


@pytest.mark.pax('Configuration by class')
def test_an_attribute_that_is_no_field_is_refused_with_its_path_and_the_nearest_field() -> None:
    tree = Tree([Leaf()])
    with pytest.raises(AttributeError, match=r"leaves\[0\] \(Leaf\): .*'widht'. .*width"):
        tree.leaves[0].widht = 7
    with pytest.raises(AttributeError, match=r"^Tree: there is no 'xyz'.$"):
        tree.xyz = 7
    assert tree == Tree([Leaf()])


def test_a_field_is_changed_by_rebind_alone() -> None:
    leaf = Leaf()
    with pytest.raises(AttributeError, match=r'Leaf: width cannot be assigned: .*rebind\(width'):
        leaf.width = 7
    assert leaf.clone().rebind(width=7).width == 7


def test_private_attributes_and_properties_can_be_assigned() -> None:
    class Named(Component):
        def remember(self, value: int) -> None:
            self._cache = value

        @property
        def label(self) -> str:
            return f'{self._label}{self._cache}'

        @label.setter
        def label(self, value: str) -> None:
            self._label = value

    named = Named()
    named.remember(1)
    named.label = 'b'
    assert named.label == 'b1'
