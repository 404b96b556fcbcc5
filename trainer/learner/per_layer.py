"""Optimizers that look at whole arrays see each layer of a scanned run on its own."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from trainer.learner.paths import Path, alike, leaves, lengths, replaced, select


def per_layer_transform(
    make: Callable[[Any], optax.GradientTransformation], mask: Any
) -> optax.GradientTransformation:
    """A transformation that does the same whether layers are scanned or not.

    Parameters of layers that are scanned together are one array, of whose norm, say, or of whose
    largest dimensions an optimizer would make something else. Here it is mapped over the layers.

    Args:
        make: from a part of the mask to the transformation of that part of the parameters.
        mask: a tree like the parameters.
    """

    def mapped(function: Callable[..., Any], depth: int) -> Callable[..., Any]:
        for _ in range(depth):
            function = jax.vmap(function)
        return function

    def init(params: Any) -> dict[str, Any]:
        return {
            name: mapped(make(alike(mask, part)).init, depth)(part)
            for name, depth, part in _parts(params)
        }

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
        new_state = {}
        for name, depth, part in _parts(params):
            step = mapped(make(alike(mask, part)).update, depth)
            new, new_state[name] = step(alike(updates, part), state[name], part)
            updates = replaced(updates, new)
        return updates, new_state

    return optax.GradientTransformation(init, update)


def _parts(params: Any) -> list[tuple[str, int, Any]]:
    """Parameters by the lengths of the runs they are in: [(name, how many runs, the part)]."""
    paths: dict[tuple[int, ...], set[Path]] = {}
    for path in leaves(params):
        paths.setdefault(lengths(path), set()).add(path)
    return [
        (f'scanned_{"x".join(map(str, key))}' if key else 'single', len(key), select(params, at))
        for key, at in sorted(paths.items())
    ]
