"""Plans of an inheritance: sources of arrays in a parent, whose architecture may differ."""

import dataclasses
from collections.abc import Mapping, Sequence

from trainer.layers.base import NON_TRAINABLE, PARAMS
from trainer.layers.lora import belongs_to_adapter, is_adapter
from trainer.symbolic.errors import UserError
from trainer.warm_start.inheritance import Recipe, adapter_recipes, matching_layers, recipes
from trainer.warm_start.layered import Layered, layered
from trainer.warm_start.warm_start_plan import (
    LayerSource,
    Plan,
    Shapes,
    adapters_alone,
    by_layer,
    has_adapters_alone,
    planned,
)
from trainer.warm_start_rules import WarmStart


def inherited(here: Shapes, there: Shapes, branches: Mapping[str, str | None]) -> Plan:
    """Maps the arrays of a run to arrays of a parent with another architecture.

    Args:
        here: shapes of the state of the run.
        there: shapes of the stored state of the parent.
        branches: residual branches of the run's model, as `residual_branches` returns them.

    Raises:
        UserError: the models have no array in common, or the parent has adapters alone.
    """
    ours, stored = layered(here), by_layer(layered(there))
    if has_adapters_alone(stored):
        run_has = any(is_adapter(name) for name in here)
        raise UserError(adapters_alone('the parent', run_has))
    found: dict[str, Recipe] = {}
    names: dict[str, str] = {}
    # A parent with all parameters has no adapters: they begin anew beside its kernels.
    mine = {
        name: each.shape
        for each in ours.values()
        for name in each.names
        if not belongs_to_adapter(name)
    }
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
    return _inheriting(ours, stored, found)


def inherited_adapters(
    here: Shapes, parent: tuple[str, Shapes], base: Sequence[tuple[str, WarmStart, Shapes]]
) -> Plan:
    """Maps the adapters of a run to those of a parent (source 0), and all else to its base.

    Args:
        here: shapes of the state of the run.
        parent: (path of the inheritance in the experiment, shapes of the stored state) of the
            parent, which has adapters alone.
        base: the sources of the frozen parameters, as of `planned`; their numbers begin at 1.

    Raises:
        UserError: the models have no adapter in common, or the base does not fit.
    """
    where, there = parent
    ours, stored = layered(here), by_layer(layered(there))
    if not any(is_adapter(name) for name in here):
        raise UserError(f'{where}: {adapters_alone("the parent", False)}')
    mine = {name: each.shape for each in ours.values() for name in each.names}
    theirs = {name: each[2] for name, each in stored.items()}
    own, other = (_of_part(PARAMS, shapes) for shapes in (mine, theirs))
    found = {
        f'{PARAMS}.{name}': dataclasses.replace(recipe, source=f'{PARAMS}.{recipe.source}')
        for name, recipe in adapter_recipes(own, other).items()
    }
    if not found:
        raise UserError(
            f'{where}: the models have no adapter in common, so nothing can be inherited'
        )
    adapters = _inheriting(ours, stored, found)
    taken = {name for name, _, _ in adapters.arrays}
    frozen = tuple(
        (name, lengths, tuple(map(_of_base, layers)))
        for name, lengths, layers in planned(here, base).arrays
        if name not in taken
    )
    return dataclasses.replace(adapters, arrays=adapters.arrays + frozen)


def _of_base(each: LayerSource | None) -> LayerSource | None:
    return None if each is None else dataclasses.replace(each, source=each.source + 1)


def _inheriting(
    ours: Mapping[str, Layered],
    stored: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]],
    found: Mapping[str, Recipe],
) -> Plan:
    """Plans the arrays of a run with a recipe for one of their layers."""
    arrays, adapted = [], []
    for name, each in ours.items():
        if not any(layer in found for layer in each.names):
            continue
        made = tuple(found.get(layer, Recipe(None)) for layer in each.names)
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
