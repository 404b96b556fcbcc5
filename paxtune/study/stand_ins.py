"""Reading of studies whose classes are not imported: stand-ins have the fields, and do nothing."""

import contextlib
import functools
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pyglove as pg

from paxtune.algorithms.base import Algorithm
from paxtune.objectives.aggregation import MetricAggregation
from paxtune.objectives.rewards import Reward
from paxtune.schedulers.base import Scheduler
from trainer.symbolic import names
from trainer.symbolic.component import Component, components
from trainer.symbolic.serialization import is_known

_TYPE = pg.JSONConvertible.TYPE_NAME_KEY

# Tables ask parts of a search for their labels, goals and units.
_BASES = {
    'objective': Reward,
    'rewards': Reward,
    'algorithm': Algorithm,
    'scheduler': Scheduler,
    'metric_aggregation': MetricAggregation,
}


def defaults(*values: Any) -> dict[str, dict[str, Any]]:
    """Collects the defaults of the users' classes in values, as JSON data by class and field.

    Names of candidates omit default values, also if the class is unknown.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind in {type(each) for value in values for each in components(value)}:
        name = names.full_name(kind)
        if name.partition('.')[0] not in names.PACKAGES:
            fields = [field for field in kind.__schema__.values() if field.value.has_default]
            found[name] = {str(field.key): pg.to_json(field.value.default) for field in fields}
    return found


def missing_classes(*texts: str) -> list[str]:
    """Lists the classes in JSON that are not imported; none if the text is no JSON."""
    found: set[str] = set()
    for text in texts:
        with contextlib.suppress(ValueError, RecursionError):
            found.update(_missing(json.loads(text)))
    return sorted(found)


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
    """Replaces the missing classes in the JSON of a value; `known` has their defaults."""
    tree = json.loads(text)
    # An experiment of its own class is derived from this one.
    base = names.class_in_file('paxtune.Tunable') if 'task' in tree else None
    return json.dumps(_replaced(tree, known, base or Component))


def _replaced(
    tree: Any,
    known: Mapping[str, Mapping[str, Any]],
    base: type[Component],
    bases: Mapping[str, type[Component]] = {},
) -> Any:
    if isinstance(tree, list):
        return [_replaced(child, known, base, bases) for child in tree]
    if not isinstance(tree, dict):
        return tree
    name = tree.get(_TYPE)
    if isinstance(name, str) and _is_missing(name):
        usual = known.get(name, {})
        needed = set(map(str, base.__schema__.fields))
        tree = {k: v for k, v in tree.items() if k in needed or v != usual.get(k, _TYPE)}
        tree[_TYPE] = names.full_name(_stand_in(name, base))
    bases = _BASES if name == 'paxtune.Search' else bases
    return {
        key: _replaced(child, known, bases.get(key, Component), bases)
        for key, child in tree.items()
    }


@functools.cache
def _stand_in(name: str, base: type[Component]) -> type[Component]:
    fields = {'__annotations__': {'__kwargs__': Any}, '__module__': __name__}
    serialized = {'serialization_name': f'StandIn:{base.__name__}:{name}'}
    own_name = name.rpartition('.')[2]
    made = types.new_class(own_name, (base,), serialized, lambda own: own.update(fields))
    return cast(type[Component], made)
