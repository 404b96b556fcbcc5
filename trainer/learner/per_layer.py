from collections.abc import Callable
from typing import Any

import jax
import optax

from trainer.learner.paths import Path, leaves, replaced, scan_lengths, select, subtree


def per_layer_transform(
    make: Callable[[Any], optax.GradientTransformation], mask: Any
) -> optax.GradientTransformation:
    """A transformation with the same result for scanned and unrolled layers.

    Parameters of scanned layers are one array. An optimizer that uses the norm or the dimensions
    of an array would treat it as one parameter, so it is mapped over the layers. `make` maps a part
    of the mask to the transformation of that part of the parameters.
    """

    def mapped(function: Callable[..., Any], depth: int) -> Callable[..., Any]:
        for _ in range(depth):
            function = jax.vmap(function)
        return function

    def init(params: Any) -> dict[str, Any]:
        return {
            name: mapped(make(subtree(mask, part)).init, depth)(part)
            for name, depth, part in _parts(params)
        }

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
        new_state = {}
        for name, depth, part in _parts(params):
            step = mapped(make(subtree(mask, part)).update, depth)
            new, new_state[name] = step(subtree(updates, part), state[name], part)
            updates = replaced(updates, new)
        return updates, new_state

    return optax.GradientTransformation(init, update)


def _parts(params: Any) -> list[tuple[str, int, Any]]:
    """Groups parameters by the lengths of their scanned runs: [(name, number of runs, part)]."""
    paths: dict[tuple[int, ...], set[Path]] = {}
    for path in leaves(params):
        paths.setdefault(scan_lengths(path), set()).add(path)
    return [
        (f'scanned_{"x".join(map(str, key))}' if key else 'single', len(key), select(params, at))
        for key, at in sorted(paths.items())
    ]
