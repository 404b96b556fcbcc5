"""Stored arrays and their layers."""

import itertools
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from trainer.layers.periods import scanned_layers

Shapes = Mapping[str, tuple[int, ...]]

_OPTIMIZER = 'opt_state'
_GROUP = re.compile(r'single|scanned_(\d+(?:x\d+)*)')  # As `trainer.learner.per_layer` names them.


class Layered(NamedTuple):
    """A stored array and its layers.

    Attributes:
        lengths: its first dimensions, of scanned layers.
        names: names of its layers, in order; one name if nothing is scanned.
        shape: shape of each layer.
    """

    lengths: tuple[int, ...]
    names: list[str]
    shape: tuple[int, ...]


def layered(shapes: Shapes) -> dict[str, Layered]:
    """Splits arrays into layers, by the names under which they are stored.

    Example:
        >>> layered({'params.stack.layers_0x2.scale': (2, 16)})['params.stack.layers_0x2.scale']
        Layered(lengths=(2,), names=['params.stack.layers_0.scale', 'params.stack.layers_1.scale'],\
 shape=(16,))
    """
    return {name: _layered(name, shape) for name, shape in shapes.items()}


def _layered(name: str, shape: tuple[int, ...]) -> Layered:
    parts: list[list[str]] = []
    lengths: list[int] = []
    grouped: list[int] = []
    for part in name.split('.'):
        group = _GROUP.fullmatch(part) if name.startswith(f'{_OPTIMIZER}.') else None
        if group:
            grouped = [int(each) for each in (group[1] or '').split('x') if each]
            continue
        layers = scanned_layers(part)
        lengths += [len(layers)] if layers else []
        parts.append(layers or [part])
    # Layers that are scanned together have one counter each.
    names = ['.'.join(each) for each in itertools.product(*parts)]
    if not lengths and grouped:
        lengths, names = grouped, names * math.prod(grouped)
    depth = len(lengths)
    if shape[:depth] != tuple(lengths):
        return Layered((), [name], shape)
    return Layered(tuple(lengths), names, shape[depth:])
