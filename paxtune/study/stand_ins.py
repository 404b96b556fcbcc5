"""Reading of studies whose classes are not imported: stand-ins have the fields, and do nothing."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyglove as pg

from trainer.symbolic import names
from trainer.symbolic.component import Component, components
from trainer.symbolic.serialization import is_known

_TYPE = pg.JSONConvertible.TYPE_NAME_KEY


def defaults(value: Any) -> dict[str, dict[str, Any]]:
    """Collects the defaults of the users' classes in a value, as JSON data by class and field.

    Names of candidates leave out what is default, also where the class is unknown.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in {type(each) for each in components(value)}:
        name = names.full_name(kind)
        if name.partition('.')[0] not in names.PACKAGES:
            fields = [field for field in kind.__schema__.values() if field.value.has_default]
            found[name] = {str(field.key): pg.to_json(field.value.default) for field in fields}
    return found


def missing_classes(text: str) -> list[str]:
    """Lists the classes in JSON that are not imported; none where the text is no JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        return sorted(set(_missing(json.loads(text))))
    return []


def _missing(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict) and _is_missing(tree.get(_TYPE)):
        yield tree[_TYPE]
    if isinstance(tree, dict | list):
        for child in tree.values() if isinstance(tree, dict) else tree:
            yield from _missing(child)


def _is_missing(name: Any) -> bool:
    is_name = isinstance(name, str) and '.' in name
    return is_name and all(map(str.isidentifier, name.split('.'))) and not is_known(name)


def with_stand_ins(text: str, known: Mapping[str, Mapping[str, Any]]) -> str:
    """Replaces the missing classes in the JSON of a value.

    Args:
        known: the defaults of these classes.
    """
    tree = json.loads(text)
    if _is_missing(tree.get(_TYPE)) and 'task' in tree:
        tree[_TYPE] = 'paxtune.Tunable'  # Its own class is derived from this one.
    return json.dumps(_replaced(tree, known))


def _replaced(tree: Any, known: Mapping[str, Mapping[str, Any]]) -> Any:
    if isinstance(tree, list):
        return [_replaced(child, known) for child in tree]
    if not isinstance(tree, dict):
        return tree
    name = tree.get(_TYPE)
    if isinstance(name, str) and _is_missing(name):
        usual = known.get(name, {})
        fields = {key: child for key, child in tree.items() if child != usual.get(key, _TYPE)}
        tree = fields | {_TYPE: names.full_name(_stand_in(name))}
    return {key: _replaced(child, known) for key, child in tree.items()}


@functools.cache
def _stand_in(name: str) -> type[Component]:
    class StandIn(Component, serialization_name=f'StandIn:{name}'):
        __kwargs__: Any

    StandIn.__name__ = name.rpartition('.')[2]
    return StandIn
