"""Component classes by name."""

import sys

import pytest

from trainer.symbolic import names
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError
from trainer.symbolic.fields import loaded_classes


class Outer(Component):
    size: int = 1

    class Nested(Component):
        size: int = 2


class First(Component):
    class Twin(Component):
        pass


class Second(Component):
    class Twin(Component):
        pass


def test_full_name_is_what_json_says() -> None:
    assert names.full_name(Outer.Nested) == Outer.Nested().to_json()['_type']
    assert names.class_in_file(names.full_name(Outer.Nested)) is Outer.Nested


@pytest.mark.parametrize(
    'name',
    [
        'this',
        'antigravity.Fly',
        'os.system',
        'trainer',
        'trainer.symbolic.component',
        'function',
        '',
    ],
)
def test_files_can_name_components_only(name: str) -> None:
    assert names.class_in_file(name) is None
    assert 'antigravity' not in sys.modules


def test_short_names() -> None:
    assert names.class_in_flag('Outer') is Outer
    assert names.class_in_flag('Nested') is Outer.Nested
    assert names.class_in_flag('Outer.Nested') is Outer.Nested
    assert names.class_in_flag(f'{__name__}.Outer') is Outer


def test_ambiguous_names_are_refused() -> None:
    with pytest.raises(UserError, match=r'First\.Twin or .*Second\.Twin'):
        names.class_in_flag('Twin')
    assert names.class_in_flag('Second.Twin') is Second.Twin


@pytest.mark.parametrize('name', ['Outr', 'trainer.symbolic.component.Outer', 'uter'])
def test_unknown_names(name: str) -> None:
    with pytest.raises(UserError, match=f'is called {name}'):
        names.class_in_flag(name)


def test_loaded_classes_are_those_under_a_base() -> None:
    class Leaf(Outer):
        pass

    assert list(loaded_classes(Outer)) == [Outer, Leaf]
