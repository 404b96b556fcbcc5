"""Plan of a warm start: the source of each array, layer by layer, decided by names and shapes.

An array has its name in the state of a run, such as `params.stack.layers_0x3.up`. Each layer of it
has a name of its own, `params.stack.layers_0.up`, `params.stack.layers_1.up` …. The layers of a
stack can therefore be scanned in one run or in both.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from trainer.layers.base import NON_TRAINABLE, PARAMS
from trainer.layers.lora import belongs_to_adapter, is_adapter
from trainer.learner.paths import unmatched
from trainer.symbolic.errors import UserError
from trainer.warm_start.inheritance import Recipe
from trainer.warm_start.layered import Layered, layered
from trainer.warm_start_rules import LoadRule, WarmStart

Shapes = Mapping[str, tuple[int, ...]]

_OPTIMIZER, _EMA, STEP = 'opt_state', 'ema_params', 'step'


@dataclasses.dataclass(frozen=True)
class LayerSource:
    """Source of one layer of an array.

    Attributes:
        source: number of the source.
        stored: name of the stored array that contains the layer.
        index: index of the layer in it.
        name: name of the layer in the source.
    """

    source: int
    stored: str
    index: tuple[int, ...]
    name: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sources of all arrays of a run. Plans with the same effect are equal.

    Attributes:
        arrays: (name, lengths of scanned dimensions, source of each layer) of each array with a
            source. A layer without a source is None and is initialized randomly.
        adapted: (name, recipe of each layer) of each array that an inheritance changes.
    """

    arrays: tuple[tuple[str, tuple[int, ...], tuple[LayerSource | None, ...]], ...]
    adapted: tuple[tuple[str, tuple[Recipe, ...]], ...] = ()

    def needed(self) -> dict[tuple[int, str], tuple[str, int]]:
        """The stored arrays to read, by (source, name).

        The value is an array of the run that uses it, and the number of its scanned dimensions.
        """
        return {
            (each.source, each.stored): (name, len(lengths))
            for name, lengths, layers in reversed(self.arrays)
            for each in reversed(layers)
            if each is not None
        }

    def whole(self, shapes: Sequence[Shapes]) -> set[tuple[int, str]]:
        """The stored arrays that become arrays of the run unchanged, by (source, name)."""
        return {
            (layers[0].source, layers[0].stored)
            for name, lengths, layers in self.arrays
            if layers[0] is not None
            and name not in dict(self.adapted)
            and _is_unchanged(lengths, layers, shapes[layers[0].source][layers[0].stored])
        }

    def filled(self, name: str, drawn: Array, loaded: Mapping[tuple[int, str], Array]) -> Array:
        """Makes an array of the run from its random initialization and the loaded arrays."""
        sources = {found: (lengths, layers) for found, lengths, layers in self.arrays}
        recipes = dict(self.adapted).get(name)
        if recipes is not None:
            return _adapted(drawn, recipes, *sources[name], loaded)
        return _assembled(drawn, *sources[name], loaded) if name in sources else drawn


def planned(here: Shapes, sources: Sequence[tuple[str, WarmStart, Shapes]]) -> Plan:
    """Maps the arrays of a run to arrays of the sources.

    Args:
        here: shapes of the state of the run.
        sources: (path of the warm start in the experiment, warm start, shapes of the stored state)
            of each source.

    Raises:
        UserError: a pattern matches nothing, or arrays are missing or have another shape. The
            message lists all of them.
    """
    ours = layered(here)
    wanted = dict(_wanted(ours, sources))
    there = [by_layer(layered(shapes)) for _, _, shapes in sources]
    faults, arrays = [], []
    for name, mine in ours.items():
        layers: list[LayerSource | None] = []
        for layer in mine.names:
            if layer not in wanted:
                layers.append(None)
                continue
            number, called = wanted[layer]
            found = there[number].get(called)
            if found is None or found[2] != mine.shape:
                faults.append(_fault(layer, mine.shape, called, found and found[2], number))
                continue
            layers.append(LayerSource(number, found[0], found[1], called))
        if any(layers):
            arrays.append((name, mine.lengths, tuple(layers)))
    if faults:
        raise UserError(_message(faults, sources))
    return Plan(tuple(arrays))


def _wanted(
    ours: Mapping[str, Layered], sources: Sequence[tuple[str, WarmStart, Shapes]]
) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yields the layers to load: (name of the layer, (source, name in the source))."""
    variables = [
        (part, name.removeprefix(f'{part}.'))
        for part in (PARAMS, NON_TRAINABLE)
        for each in ours.values()
        for name in each.names
        if name.startswith(f'{part}.')
    ]
    taken: dict[tuple[str, str], tuple[int, str]] = {}
    for number, (where, start, shapes) in enumerate(sources):
        stored = {name for each in layered(shapes).values() for name in each.names}
        _take(number, where, start, variables, stored, taken)
        if has_adapters_alone(stored):
            used = {called for source, called in taken.values() if source == number}
            run = {name for part, name in variables if part == PARAMS}
            _require_adapters(where, start, run, stored, used, {name for _, name in taken})
        left = [name for part, name in variables if part == PARAMS and (part, name) not in taken]
        left = [name for name in left if not belongs_to_adapter(name)]
        if left and has_adapters_alone(stored) and number == len(sources) - 1:
            raise UserError(
                f'{where}: {start.checkpoint} has adapters alone, without {left[0]}: add the '
                'source of the frozen parameters after it'
            )
    for (part, name), (number, called) in taken.items():
        yield f'{part}.{name}', (number, f'{part}.{called}')
    of_param = {name: found for (part, name), found in taken.items() if part == PARAMS}
    known = {name for part, name in variables if part == PARAMS}
    starts = [start for _, start, _ in sources]
    counters = next((i for i, start in enumerate(starts) if start.load_optimizer), None)
    for layer in dict.fromkeys(name for each in ours.values() for name in each.names):
        part, _, rest = layer.partition('.')
        if part == _EMA and rest in of_param and starts[of_param[rest][0]].load_ema:
            yield layer, (of_param[rest][0], f'{_EMA}.{of_param[rest][1]}')
        elif part == _OPTIMIZER and counters is not None:
            prefix, param = _parameter_in(layer, known)
            if not param:
                yield layer, (counters, layer)
            elif param in of_param and starts[of_param[param][0]].load_optimizer:
                yield layer, (of_param[param][0], f'{prefix}.{of_param[param][1]}')
    for number, (where, start, _) in enumerate(sources):
        if start.load_ema and not any(name.startswith(f'{_EMA}.') for name in ours):
            raise UserError(
                f'{where}.load_ema: the run keeps no averages: set task.learner.ema_decay'
            )
        if start.load_step:
            yield STEP, (number, STEP)


def _take(
    number: int,
    where: str,
    start: WarmStart,
    variables: Sequence[tuple[str, str]],
    stored: set[str],
    taken: dict[tuple[str, str], tuple[int, str]],
) -> None:
    """Adds the arrays that the rules of one source match and no earlier source has.

    A source may lack adapters, which then begin anew, or have them alone, of one more source.
    """
    is_partial = has_adapters_alone(stored)
    names = [name for _, name in variables]
    for i, pattern in enumerate(start.ignore):
        if not any(re.fullmatch(pattern, name) for name in names):
            raise UserError(f'{where}.ignore[{i}]: {unmatched(pattern, names, "array")}')
    for i, rule in enumerate(start.rules):
        matched = {each: rule.name_of(each[1]) for each in variables}
        matched = {each: called for each, called in matched.items() if called is not None}
        if not matched:
            message = unmatched(rule.pattern, names, 'array')
            raise UserError(f'{where}.rules[{i}].pattern: {message}')
        offered = {
            (part, name): called
            for (part, name), called in matched.items()
            if f'{part}.{called}' in stored or not (is_partial or belongs_to_adapter(name))
        }
        new = [each for each in offered if each not in taken and not start.is_ignored(each[1])]
        if not new and offered:
            raise UserError(
                f'{where}.rules[{i}].pattern: all arrays that {rule.pattern!r} matches are '
                'ignored, or match an earlier rule: put this rule before that one'
            )
        taken |= {each: (number, str(offered[each])) for each in new}


def _require_adapters(
    where: str, start: WarmStart, run: set[str], stored: set[str], used: set[str], taken: set[str]
) -> None:
    """Raises UserError if adapters, without which a source computes otherwise, have no place.

    Args:
        run: the parameters of the run.
        stored: all arrays of the source.
        used: the arrays of the source that the run loads.
        taken: the parameters that the run loads, from all sources.
    """
    if not any(map(is_adapter, run)):
        raise UserError(f'{where}: {adapters_alone(start.checkpoint, False)}')
    names = [
        each.removeprefix(f'{PARAMS}.') for each in sorted(stored) if each.startswith(f'{PARAMS}.')
    ]
    left = [each for each in names if each not in used]
    if start.rules == [LoadRule()]:  # Other rules select adapters.
        left = [each for each in left if each not in taken and not start.is_ignored(each)]
    elif used:
        return
    if left:
        raise UserError(
            f'{where}: {start.checkpoint} has the adapter {left[0]}, and the run has no place for '
            'it: give task.adapters the targets and the dora of that run, or select adapters by '
            'rules'
        )


def adapters_alone(source: str, run_has: bool) -> str:
    """Message about a source that has adapters alone; `run_has` if the run has some, too."""
    if run_has:
        return f'{source} has adapters alone: give base the source of their frozen parameters'
    return (
        f'{source} has adapters alone, and the run has none: set task.adapters as there, or begin '
        'with a merged model: python -m trainer.convert --to=hf'
    )


def has_adapters_alone(stored: Collection[str]) -> bool:
    """True for the arrays of a run of adapters, which has its frozen parameters elsewhere."""
    params = [name for name in stored if name.startswith(f'{PARAMS}.')]
    return bool(params) and all(map(is_adapter, params))


def by_layer(
    arrays: Mapping[str, Layered],
) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Maps the name of each layer to (stored array, index in it, shape)."""
    found: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {}
    for stored, each in arrays.items():
        for index, name in zip(np.ndindex(*each.lengths), each.names, strict=True):
            found.setdefault(name, (stored, index, each.shape))
    return found


def _parameter_in(name: str, params: set[str]) -> tuple[str, str]:
    """Splits the name of an array of the optimizer into a prefix and the name of a parameter."""
    parts = name.split('.')
    for start in range(1, len(parts)):
        if '.'.join(parts[start:]) in params:
            return '.'.join(parts[:start]), '.'.join(parts[start:])
    return name, ''


def _is_unchanged(
    lengths: tuple[int, ...], layers: Sequence[LayerSource | None], shape: tuple[int, ...]
) -> bool:
    """True if the layers are exactly the stored array of the first one."""
    first = layers[0]
    indices = list(np.ndindex(*lengths))
    return (
        first is not None
        and shape[: len(lengths)] == lengths
        and [None if each is None else (each.source, each.stored, each.index) for each in layers]
        == [(first.source, first.stored, index) for index in indices]
    )


def _assembled(
    drawn: Array,
    lengths: tuple[int, ...],
    layers: Sequence[LayerSource | None],
    loaded: Mapping[tuple[int, str], Array],
) -> Array:
    first = layers[0]
    if first is not None:
        whole = loaded[first.source, first.stored]
        if whole.shape == drawn.shape and _is_unchanged(lengths, layers, whole.shape):
            return whole.astype(drawn.dtype)
    parts = [
        drawn[index] if each is None else loaded[each.source, each.stored][each.index]
        for index, each in zip(np.ndindex(*lengths), layers, strict=True)
    ]
    return jnp.stack([part.astype(drawn.dtype) for part in parts]).reshape(drawn.shape)


def _adapted(
    drawn: Array,
    recipes: Sequence[Recipe],
    lengths: tuple[int, ...],
    layers: Sequence[LayerSource | None],
    loaded: Mapping[tuple[int, str], Array],
) -> Array:
    parts = [
        recipe.apply(
            drawn[index], None if each is None else loaded[each.source, each.stored][each.index]
        )
        for index, recipe, each in zip(np.ndindex(*lengths), recipes, layers, strict=True)
    ]
    return jnp.stack(parts).reshape(drawn.shape)


def _fault(
    here: str, shape: tuple[int, ...], called: str, found: tuple[int, ...] | None, number: int
) -> tuple[int, str]:
    stored = 'is missing' if found is None else f'has the shape {found} there'
    return number, f'{_plain(here)} {shape}: {_plain(called)} {stored}'


def _plain(name: str) -> str:
    """Removes the prefix of the collection, which names in rules do not have."""
    return name.removeprefix(f'{PARAMS}.').removeprefix(f'{NON_TRAINABLE}.')


def _message(
    faults: Sequence[tuple[int, str]], sources: Sequence[tuple[str, WarmStart, Shapes]]
) -> str:
    lines = []
    for number, (where, start, _) in enumerate(sources):
        of_source = [text for each, text in faults if each == number]
        if of_source:
            lines.append(
                f'{where}: {start.checkpoint} lacks arrays, or has them in other shapes than this '
                'run. Map them to other names in rules, or list them in ignore:'
            )
            lines += [f'  {text}' for text in of_source]
    return '\n'.join(lines)
