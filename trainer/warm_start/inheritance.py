"""Inheritance of weights by a model of another architecture, decided by names and shapes.

A wider layer computes the same function as before: its new units have random incoming weights, and
outgoing weights of zero. So their gradients differ from each other, unlike those of copied units
(Chen et al. 2016, "Net2Net"). A new residual block begins as the identity. A narrower layer keeps
its first units, and evenly spaced heads. An image kernel of another size has the same center. A
mixture with another number of experts is a new layer.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from trainer.layers.base import Layer
from trainer.layers.lora import is_adapter
from trainer.layers.stack import Stack, children
from trainer.layers.transformer import Identity, Residual

Shapes = Mapping[str, tuple[int, ...]]

_OUTGOING = ('down', 'output', 'table', 'input_gate', 'read', 'recurrence_gate', 'recurrent')
"""Arrays with new entries of zero: they lead from hidden units to the residual stream, or, in
mixers with a state, to other units."""

_BRANCH_OUTGOING = ('down', 'output', 'kernel')
"""Arrays at the end of a residual branch, by the last part of their names."""

_HEADS = {'query': 1, 'key': 1, 'value': 1, 'output': 0, 'qkv': 2}
_HEADS |= {'query_bias': 0, 'key_bias': 0, 'value_bias': 0, 'sinks': 0}
_HEADS |= {'rotary_query': 1}  # Latent attention.
_HEADS |= {'gate': 1, 'step': 1, 'strength': 1, 'step_bias': 0, 'log_rate': 0}  # Gated DeltaNet.
_CONVOLUTIONS = {f'{name}_convolution': name for name in ('query', 'key', 'value')}
"""Layers of attention whose kernels [width, heads, size] have the heads of a projection."""

_SHARED = ('key', 'value', 'key_bias', 'value_bias')  # Arrays of heads that queries share.

_BLOCK = re.compile(r'(.*?\blayers_)(\d+)\.(.*)')
_SIMILAR = 0.1
"""Two blocks match if so much of their parameters has the same names; norms alone have less."""

_IMAGE_KERNEL = 4  # Axes: height, width, inputs, outputs.

_NO_SCALE = -1.0  # Normalizations multiply by 1 + scale.


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Instructions to make an array of its random initialization and an inherited one.

    Attributes:
        source: the name of the inherited array; None for a new one.
        fill: the value of new entries; None keeps their random initialization.
        heads: the axis of attention heads, and the inherited head of each head, -1 for new ones;
            None if the order of heads stays.
    """

    source: str | None
    fill: float | None = None
    heads: tuple[int, tuple[int, ...]] | None = None

    def apply(self, drawn: Any, inherited: Any = None) -> Array:
        """Makes the array from the entries of the parent, if any, and new entries.

        Example:
            >>> import numpy as np
            >>> Recipe('down', fill=0.0).apply(np.ones((3, 2)), np.full((2, 2), 5.0)).tolist()
            [[5.0, 5.0], [5.0, 5.0], [0.0, 0.0]]
        """
        new = jnp.asarray(drawn) if self.fill is None else jnp.full_like(drawn, self.fill)
        if inherited is None:
            return new
        here: list[np.ndarray] = []
        there: list[np.ndarray] = []
        for axis, sizes in enumerate(zip(new.shape, inherited.shape, strict=True)):
            is_pixels = new.ndim == _IMAGE_KERNEL and axis < 2
            for found, size in ((here, sizes[0]), (there, sizes[1])):
                begin = (size - min(sizes)) // 2 if is_pixels else 0
                found.append(np.arange(begin, begin + min(sizes)))
        if self.heads is not None:
            axis, order = self.heads
            here[axis] = np.flatnonzero(np.array(order) >= 0)
            there[axis] = np.array(order)[here[axis]]
        return new.at[np.ix_(*here)].set(inherited[np.ix_(*there)].astype(new.dtype))


def recipes(
    here: Shapes,
    there: Shapes,
    branches: Mapping[str, str | None] | None = None,
    names: Mapping[str, str] | None = None,
) -> dict[str, Recipe]:
    """Maps each array of a child to its sources.

    A layer whose arrays have other names than before, such as a layer that got a gate, is new.

    Args:
        here: shapes of the child's arrays, by name, layer by layer.
        there: arrays of its parent.
        branches: the residual branches of the child, as `residual_branches` returns them.
        names: of the parent's layers, by the layer of the child; `matching_layers` by default.
    """
    branches = branches or {}
    renamed = matching_layers(here, there) if names is None else names
    ours, theirs = _by_owner(here), _by_owner(there)
    is_kept = {owner: ours[owner] == theirs.get(renamed[owner]) for owner in ours}
    is_kept |= dict.fromkeys(_other_experts(here, there, renamed), False)
    is_kept |= dict.fromkeys(_other_groups(here, there, renamed), False)
    found = {}
    for name, shape in here.items():
        owner, _, last = name.rpartition('.')
        source = f'{renamed[owner]}.{last}'
        if is_kept[owner] and len(there[source]) == len(shape):
            fill = 0.0 if last in _OUTGOING else None
            found[name] = Recipe(source, fill, _head_order(name, source, here, there))
        else:
            found[name] = Recipe(None)
    for branch, norm in branches.items():
        if not is_kept.get(branch, True):
            found |= _silent(branch, norm, ours)
    return found


def _other_experts(here: Shapes, there: Shapes, renamed: Mapping[str, str]) -> list[str]:
    """Mixtures with another number of experts, and their routers: another choice is a new layer."""
    found = []
    for name, shape in here.items():
        router = name.rpartition('.')[0]
        source = there.get(f'{renamed[router]}.kernel', ())
        if name.endswith('.router.kernel') and shape[-1:] != source[-1:]:
            found += [router, router.removesuffix('.router')]
    return found


def _other_groups(here: Shapes, there: Shapes, renamed: Mapping[str, str]) -> list[str]:
    """Attention by one kernel, with another number of queries for each key."""
    owners = [name.rpartition('.')[0] for name in here if name.rpartition('.')[2] == 'qkv']
    each = [(owner, there.get(f'{renamed[owner]}.qkv')) for owner in owners]
    return [owner for owner, source in each if source and source[0] != here[f'{owner}.qkv'][0]]


def _silent(branch: str, norm: str | None, ours: Mapping[str, frozenset[str]]) -> dict[str, Recipe]:
    """Lets a new residual branch add zero: by its last normalization, or its last product."""
    if norm is not None:
        fills = {last: _NO_SCALE if last == 'scale' else 0.0 for last in ours.get(norm, ())}
        return {f'{norm}.{last}': Recipe(None, fill) for last, fill in fills.items()}
    last = [each for each in ours[branch] if each in _BRANCH_OUTGOING]
    return {f'{branch}.{each}': Recipe(None, 0.0) for each in last}


def adapter_recipes(here: Shapes, there: Shapes) -> dict[str, Recipe]:
    """Maps the adapters of a child to those of its parent, which has the same frozen parameters.

    A larger rank begins as the same function if the scale is the same, and a smaller one keeps the
    first columns. An adapter of another kind, or of a kernel that had none, is new.

    Example:
        >>> here, there = ({'up_lora_a': (8, n), 'up_lora_b': (n, 4)} for n in (3, 2))
        >>> adapter_recipes(here, there)['up_lora_b']
        Recipe(source='up_lora_b', fill=0.0, heads=None)
    """
    ours, theirs = ({name for name in each if is_adapter(name)} for each in (here, there))
    found = {}
    for name in sorted(ours & theirs):
        kernel, _, part = name.rpartition('_lora_')
        is_same_kind = _adapter(kernel, ours) == _adapter(kernel, theirs)
        if is_same_kind and len(here[name]) == len(there[name]):
            found[name] = Recipe(name, 0.0 if part == 'b' else None)
    return found


def _adapter(kernel: str, names: set[str]) -> set[str]:
    return {f'{kernel}_lora_{part}' for part in ('a', 'b', 'magnitude')} & names


def residual_branches(model: Layer, path: str = '') -> dict[str, str | None]:
    """Lists the residual branches of a model by name, each with a normalization of its result.

    Example:
        >>> from trainer.layers import FeedForward, Residual, Stack
        >>> residual_branches(Stack([Residual(FeedForward(), norm_policy='post')]), 'stack.')
        {'stack.layers_0.layer': 'stack.layers_0.norm'}
    """
    found: dict[str, str | None] = {}
    policy = model.sym_getattr('norm_policy', None)
    for name in model.sym_init_args if policy is not None else ():
        norm = 'norm' if isinstance(model, Residual) else f'{name}_norm'
        if name != norm and norm in model.sym_init_args and name in _branch_names(model):
            after = {'post': norm, 'primer_hybrid': f'{norm}_after'}.get(str(policy))
            found[f'{path}{name}'] = None if after is None else f'{path}{after}'
    if isinstance(model, Stack):
        for part in model.storage():
            for index, layer in zip(part.indices, part.layers, strict=True):
                found |= residual_branches(layer, f'{path}layers_{index}.')
        return found
    for child in children(model):
        found |= residual_branches(child, f'{path}{child.scope_name()}.')
    return found


def _branch_names(model: Layer) -> list[str]:
    layers = {name: model.sym_getattr(name) for name in model.sym_init_args}
    return [
        str(name)
        for name, layer in layers.items()
        if isinstance(layer, Layer) and not isinstance(layer, Identity)
    ]


def matching_blocks(here: Sequence[Shapes], there: Sequence[Shapes]) -> list[int | None]:
    """Finds the block of the parent that each block of the child continues.

    Blocks keep their order, so that an inserted one shifts those after it. Blocks
    that are left over, such as swapped ones, match by their content alone.

    Example:
        >>> attention, feed_forward = {'layer.query': (8, 8)}, {'layer.up': (8, 8)}
        >>> matching_blocks([attention, attention, feed_forward], [attention, feed_forward])
        [0, None, 1]
    """
    score = np.array([[_similarity(one, other) for other in there] for one in here])
    score = score.reshape(len(here), len(there))
    # Among equals, a block continues that of its own position.
    bonus = 1e-3 * np.eye(len(here), len(there))
    best = np.zeros((len(here) + 1, len(there) + 1))
    for i in reversed(range(len(here))):
        for j in reversed(range(len(there))):
            matched = best[i + 1, j + 1] + score[i, j] + bonus[i, j] if score[i, j] else -1.0
            best[i, j] = max(matched, best[i + 1, j], best[i, j + 1])
    found: list[int | None] = [None] * len(here)
    i = j = 0
    while i < len(here) and j < len(there):
        if score[i, j] and best[i, j] == best[i + 1, j + 1] + score[i, j] + bonus[i, j]:
            found[i], i, j = j, i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    for i in range(len(here)):
        free = [j for j in range(len(there)) if j not in found and score[i, j]]
        if found[i] is None and free:
            found[i] = max(free, key=lambda j: (score[i, j], -abs(i - j), -j))
    return found


def _similarity(one: Shapes, other: Shapes) -> float:
    """The share of parameters in layers with the same names; half as much for other shapes."""
    ours, theirs = _by_owner(one), _by_owner(other)
    total = sum(float(np.prod(shape)) for shape in one.values())
    shared = 0.0
    for name, shape in one.items():
        owner = name.rpartition('.')[0]
        if ours[owner] == theirs.get(owner):
            shared += float(np.prod(shape)) * (1.0 if other[name] == shape else 0.5)
    return shared / total if shared > _SIMILAR * total else 0.0


def matching_layers(here: Shapes, there: Shapes) -> dict[str, str]:
    """Maps the layers of the child to the names they would have in the parent.

    Layers match by their position and content: see `matching_blocks`.
    """
    ours, theirs = _by_block(here), _by_block(there)
    blocks: dict[tuple[str, int], int | None] = {}
    for stack, each in ours.items():
        others = theirs.get(stack, {})
        matched = matching_blocks(list(each.values()), list(others.values()))
        numbers = list(others)
        blocks |= {
            (stack, index): None if at is None else numbers[at]
            for index, at in zip(each, matched, strict=True)
        }
    found = {}
    for name in here:
        owner = name.rpartition('.')[0]
        found[owner] = owner
        if block := _BLOCK.fullmatch(name):
            index = blocks[block[1], int(block[2])]
            rest = owner[len(block[1]) + len(block[2]) :]
            found[owner] = f'{block[1]}{"new" if index is None else index}{rest}'
    return found


def _by_block(shapes: Shapes) -> dict[str, dict[int, dict[str, tuple[int, ...]]]]:
    """Groups arrays by (stack, index of the block), in the order of the blocks."""
    found: dict[str, dict[int, dict[str, tuple[int, ...]]]] = {}
    for name, shape in shapes.items():
        if block := _BLOCK.fullmatch(name):
            found.setdefault(block[1], {}).setdefault(int(block[2]), {})[block[3]] = shape
    return {stack: dict(sorted(each.items())) for stack, each in found.items()}


def _by_owner(shapes: Shapes) -> dict[str, frozenset[str]]:
    """Groups the last parts of names by the parts before them."""
    found: dict[str, set[str]] = {}
    for name in shapes:
        owner, _, last = name.rpartition('.')
        found.setdefault(owner, set()).add(last)
    return {owner: frozenset(each) for owner, each in found.items()}


def _head_order(
    name: str, source: str, here: Shapes, there: Shapes
) -> tuple[int, tuple[int, ...]] | None:
    """The order of heads in an array of attention; None for other arrays, and the same order."""
    owner, last, axis = _attention_array(name)
    origin, _, _ = _attention_array(source)
    if axis is None:
        return None
    new, old = _num_heads(here, owner), _num_heads(there, origin)
    if new is None or old is None or new == old:
        return None
    queries, shared = head_orders(old, new)
    if last == 'qkv':  # Queries follow their key, since each key has as many of them as before.
        size = new[0] // new[1]
        return axis, tuple(query // size for query in queries[::size])
    return axis, shared if last in _SHARED else queries


def _num_heads(shapes: Shapes, owner: str) -> tuple[int, int] | None:
    """Query heads, and key and value heads, of a layer of attention."""
    if combined := shapes.get(f'{owner}.qkv'):
        return (combined[0] - 2) * combined[2], combined[2]
    query, key = (shapes.get(f'{owner}.{of}') for of in ('query', 'key'))
    return (query[1], key[1]) if query and key else None


def _attention_array(name: str) -> tuple[str, str, int | None]:
    """Splits a name: the attention layer, the projection, and the axis of heads, if it has one."""
    owner, _, last = name.rpartition('.')
    before, _, layer = owner.rpartition('.')
    if layer in _CONVOLUTIONS:
        return before, _CONVOLUTIONS[layer], 1
    if (layer, last) == ('position', 'table'):  # `RelativeBias`: [ranges, heads].
        return before, 'query', 1
    return owner, last, _HEADS.get(last)


def head_orders(
    old: tuple[int, int], new: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Orders heads so that each query head keeps its key head, if that exists.

    Args:
        old: query heads, and key and value heads, of the parent.
        new: heads of the child.

    Returns:
        The inherited head of each query head, -1 for new ones, and of each key head.

    Example:
        >>> head_orders((2, 2), (4, 2))
        ((0, -1, 1, -1), (0, 1))
        >>> head_orders((2, 1), (2, 2))
        ((0, 1), (0, 0))
    """
    shared = tuple(key * old[1] // new[1] for key in range(new[1]))
    queries = [-1] * new[0]
    for head in range(old[0]):
        key = head * old[1] // old[0]
        read = max(each for each in shared if each <= key)
        free = [
            slot
            for slot in range(new[0])
            if queries[slot] < 0 and shared[slot * new[1] // new[0]] == read
        ]
        if free:
            queries[free[0]] = head
    return tuple(queries), shared
