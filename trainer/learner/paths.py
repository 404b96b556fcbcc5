"""Parameters by their paths: which of them patterns select, and the parts of their trees.

A path is that of a parameter as it is stored, such as `('stack', 'layers_0x3', 'up', 'kernel')`.
People name parameters layer by layer instead: `stack.layers_0.up.kernel`, whatever the stack does.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from trainer.layers.stack import scanned_layers
from trainer.symbolic.errors import UserError
from trainer.symbolic.names import nearest

Path = tuple[str, ...]

_MOST_NAMED = 3


def leaves(params: Any) -> dict[Path, Any]:
    """The parameters in a tree, by path."""
    return dict(flatten_dict(params))


def keys(path: tuple[Any, ...]) -> Path:
    """The path of a leaf as `jax.tree_util` gives it."""
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)


def lengths(path: Path) -> tuple[int, ...]:
    """The lengths of the scanned runs that a parameter is in: those of its first dimensions.

    Example:
        >>> lengths(('stack', 'layers_0x3', 'up', 'kernel'))
        (3,)
    """
    return tuple(len(layers) for layers in map(scanned_layers, map(str, path)) if layers)


def names(path: Path, separator: str = '.') -> list[str]:
    """What people call the parameters that are stored at a path: one for each layer of a run.

    Example:
        >>> names(('stack', 'layers_0x2', 'scale'))
        ['stack.layers_0.scale', 'stack.layers_1.scale']
    """
    parts = [scanned_layers(part) or [part] for part in map(str, path)]
    return [separator.join(each) for each in itertools.product(*parts)]


def select(params: Any, paths: Collection[Path]) -> Any:
    """The part of a tree that is at some paths; there is no trace of the rest in it."""
    return unflatten_dict({path: x for path, x in flatten_dict(params).items() if path in paths})


def alike(tree: Any, part: Any) -> Any:
    """The part of `tree` that is where `part` has something."""
    if not isinstance(part, Mapping):
        return tree
    return {name: alike(tree[name], child) for name, child in part.items()}


def replaced(tree: Any, part: Any) -> Any:
    """`tree` with what `part` has in its place.

    Example:
        >>> replaced({'up': {'kernel': 1, 'bias': 2}}, {'up': {'bias': 3}})
        {'up': {'kernel': 1, 'bias': 3}}
    """
    if not isinstance(tree, Mapping):
        return part
    return {
        name: replaced(child, part[name]) if name in part else child for name, child in tree.items()
    }


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
    """The paths of the parameters whose whole names one of the patterns matches.

    Args:
        patterns: regular expressions, such as `stack.layers_[01].*`.
        params: a tree of parameters, as stored.
        field: where the patterns are, for messages.

    Raises:
        UserError: a pattern matches nothing, or some layers of a scanned run and not the others.
    """
    of = {path: names(path) for path in leaves(params)}
    known = [name for each in of.values() for name in each]
    matched: set[str] = set()
    for index, pattern in enumerate(patterns):
        these = {name for name in known if re.fullmatch(pattern, name)}
        if not these:
            told = unmatched(pattern, known, 'parameter that is trained')
            raise UserError(f'{field}[{index}]: {told}')
        matched |= these
    for path, each in of.items():
        inside = [name for name in each if name in matched]
        if inside and len(inside) < len(each):
            outside = next(name for name in each if name not in matched)
            raise UserError(
                f'{field}: it matches {inside[0]} and not {outside}, which are scanned together as '
                f"{'.'.join(map(str, path))}: set scan='never' in that stack of task.model"
            )
    return {path for path, each in of.items() if each[0] in matched}


def unmatched(pattern: str, known: Sequence[str], what: str) -> str:
    """That a pattern matches the whole of no name, and what might be meant.

    Args:
        pattern: the regular expression.
        known: the names.
        what: they are names of.
    """
    inside = [name for name in known if re.search(pattern, name)]
    hint = f'A pattern matches whole paths: try {pattern + ".*"!r}.' if inside else ''
    hint = hint or nearest(pattern.replace('\\', ''), known)
    shown = ', '.join((inside or list(known))[:_MOST_NAMED])
    return f'no {what} is called {pattern!r}. {hint} There are {shown} …'
