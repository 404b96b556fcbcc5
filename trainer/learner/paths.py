"""Paths of parameters: selection by patterns, and parts of parameter trees.

A path names a stored parameter, such as `('stack', 'layers_0x3', 'up', 'kernel')`. A name is
per layer, such as `stack.layers_0.up.kernel`, whether the stack is scanned or unrolled.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.layers.periods import names as names
from trainer.layers.periods import scanned_layers
from trainer.symbolic.errors import UserError, nearest

Path = tuple[str, ...]

_MAX_NAMES = 3


def leaves(params: Any) -> dict[Path, Any]:
    """The parameters in a tree, by path."""
    return dict(flatten_dict(params))


def keys(path: tuple[Any, ...]) -> Path:
    """Converts a path of `jax.tree_util`."""
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)


def scan_lengths(path: Path) -> tuple[int, ...]:
    """The lengths of the scanned runs of a parameter: its first dimensions.

    Example:
        >>> scan_lengths(('stack', 'layers_0x3', 'up', 'kernel'))
        (3,)
    """
    return tuple(len(layers) for layers in map(scanned_layers, map(str, path)) if layers)


def select(params: Any, paths: Collection[Path]) -> Any:
    """The part of a tree at some paths."""
    return unflatten_dict({path: x for path, x in flatten_dict(params).items() if path in paths})


def subtree(tree: Any, part: Any) -> Any:
    """The part of `tree` with the paths of `part`."""
    if not isinstance(part, Mapping):
        return tree
    return {name: subtree(tree[name], child) for name, child in part.items()}


def replaced(tree: Any, part: Any) -> Any:
    """Replaces values of `tree` by values of `part`.

    Example:
        >>> replaced({'up': {'kernel': 1, 'bias': 2}}, {'up': {'bias': 3}})
        {'up': {'kernel': 1, 'bias': 3}}
    """
    if not isinstance(tree, Mapping):
        return part
    return {
        name: replaced(child, part[name]) if name in part else child for name, child in tree.items()
    }


def widened(params: Any) -> Any:
    """Parameters in float32 at least.

    Example:
        >>> widened({'kernel': jnp.ones(2, 'bfloat16')})['kernel'].dtype
        dtype('float32')
    """
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), params)


def check_patterns(patterns: Sequence[str], field: str) -> None:
    """Raises ValueError unless all are regular expressions."""
    for index, pattern in enumerate(patterns):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f'{field}[{index}] is not a regular expression: {pattern!r} ({error})'
            ) from error


def matching(patterns: Sequence[str], params: Any, field: str) -> set[Path]:
    """The paths of the parameters whose whole names match one of the patterns.

    Args:
        patterns: regular expressions, such as `stack.layers_[01].*`.
        params: a tree of parameters, as stored.
        field: path of the patterns, for messages.

    Raises:
        UserError: a pattern matches no parameter, or only some layers of a scanned run.
    """
    of = {path: names(path) for path in leaves(params)}
    known = [name for each in of.values() for name in each]
    matched: set[str] = set()
    for index, pattern in enumerate(patterns):
        these = {name for name in known if re.fullmatch(pattern, name)}
        if not these:
            reason = unmatched(pattern, known, 'trained parameter')
            raise UserError(f'{field}[{index}]: {reason}')
        matched |= these
    for path, each in of.items():
        inside = [name for name in each if name in matched]
        if inside and len(inside) < len(each):
            outside = next(name for name in each if name not in matched)
            raise UserError(
                f'{field}: it matches {inside[0]} but not {outside}, which are scanned together as '
                f"{'.'.join(map(str, path))}: set scan='never' in that stack of task.model"
            )
    return {path for path, each in of.items() if each[0] in matched}


def unmatched(pattern: str, known: Sequence[str], what: str) -> str:
    """The message for a pattern without a match in `known`, names of `what`, with a suggestion."""
    inside = [name for name in known if re.search(pattern, name)]
    hint = f'A pattern matches whole paths: try {pattern + ".*"!r}.' if inside else ''
    hint = hint or nearest(pattern.replace('\\', ''), known)
    examples = ', '.join((inside or list(known))[:_MAX_NAMES])
    return f'no {what} is called {pattern!r}. {hint} There are {examples} …'
