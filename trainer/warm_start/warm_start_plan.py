"""Plan of a warm start: the source of each array, layer by layer, decided by names and shapes.

An array has its name in the state of a run, such as `params.stack.layers_0x3.up`. Each layer of it
has a name of its own, `params.stack.layers_0.up`, `params.stack.layers_1.up` …. The layers of a
stack can therefore be scanned in one run or in both.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from trainer.layers.base import NON_TRAINABLE, PARAMS
from trainer.layers.lora import belongs_to_adapter, is_adapter
from trainer.learner.paths import unmatched
from trainer.symbolic.errors import UserError
from trainer.warm_start.inheritance import Recipe, matching_layers, recipes
from trainer.warm_start.layered import Layered, layered
from trainer.warm_start_rules import WarmStart

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
    there = [_by_layer(layered(shapes)) for _, _, shapes in sources]
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


def inherited(here: Shapes, there: Shapes, branches: Mapping[str, str | None]) -> Plan:
    """Maps the arrays of a run to arrays of a parent with another architecture.

    Args:
        here: shapes of the state of the run.
        there: shapes of the stored state of the parent.
        branches: residual branches of the run's model, as `residual_branches` returns them.

    Raises:
        UserError: the models have no array in common.
    """
    ours, stored = layered(here), _by_layer(layered(there))
    found: dict[str, Recipe] = {}
    names: dict[str, str] = {}
    mine = {name: each.shape for each in ours.values() for name in each.names}
    theirs = {name: each[2] for name, each in stored.items()}
    for part in (PARAMS, NON_TRAINABLE):
        own, other = (_of_part(part, shapes) for shapes in (mine, theirs))
        # Running statistics belong to the block whose parameters are inherited.
        names = matching_layers(own, other) | names
        silent = branches if part == PARAMS else {}
        for name, recipe in recipes(own, other, silent, names).items():
            source = None if recipe.source is None else f'{part}.{recipe.source}'
            found[f'{part}.{name}'] = dataclasses.replace(recipe, source=source)
    if not any(recipe.source for recipe in found.values()):
        raise UserError('the models have no array in common, so nothing can be inherited')
    arrays, adapted = [], []
    for name, each in ours.items():
        if each.names[0] not in found:
            continue
        made = tuple(found[layer] for layer in each.names)
        arrays.append((name, each.lengths, tuple(_layer_source(one, stored) for one in made)))
        if any(_adapts(recipe, each.shape, stored) for recipe in made):
            adapted.append((name, made))
    return Plan(tuple(arrays), tuple(adapted))


def _of_part(part: str, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    prefix = f'{part}.'
    return {
        name.removeprefix(prefix): tuple(shape)
        for name, shape in shapes.items()
        if name.startswith(prefix)
    }


def _layer_source(
    recipe: Recipe, stored: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]]
) -> LayerSource | None:
    if recipe.source is None:
        return None
    array, index, _ = stored[recipe.source]
    return LayerSource(0, array, index, recipe.source)


def _adapts(
    recipe: Recipe,
    shape: tuple[int, ...],
    stored: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]],
) -> bool:
    """True if an array is neither randomly initialized nor a copy of the parent's."""
    if recipe.source is None:
        return recipe.fill is not None
    return recipe.heads is not None or stored[recipe.source][2] != shape


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
        left = [name for part, name in variables if part == PARAMS and (part, name) not in taken]
        left = [name for name in left if not belongs_to_adapter(name)]
        if left and _has_adapters_alone(stored) and number == len(sources) - 1:
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
    is_partial = _has_adapters_alone(stored)
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


def _has_adapters_alone(stored: set[str]) -> bool:
    params = [name for name in stored if name.startswith(f'{PARAMS}.')]
    return bool(params) and all(map(is_adapter, params))


def _by_layer(
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
