"""Experiments, or other values, of the trials of a space."""

import functools
from typing import TYPE_CHECKING, Any

from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from trainer.symbolic.derived import resolve

if TYPE_CHECKING:
    from paxtune.experiment import Tunable


def parts_of(space: Space, decisions: Decisions) -> 'dict[str, Tunable]':
    """Makes a tunable experiment concrete, by the name of the sub-experiment ('' without any).

    Derived values follow what a sub-experiment changes.

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = space.decode(decisions).parts()
    return {name: resolve(part) for name, part in parts.items()}


def values_of(space: Space, decisions: Decisions) -> dict[str, Any]:
    """Makes the values of a trial: those of `parts_of`, or without an experiment one, called ''."""
    if space.is_tunable:
        return dict(parts_of(space, decisions))
    return {'': space.materialize(decisions)}


def shared_values_of(space: Space, decisions: Decisions) -> dict[str, Any]:
    """Returns what `values_of` makes; the last experiments are kept, and must not be changed."""
    return shared_parts_of(space, decisions) if space.is_tunable else values_of(space, decisions)


def shared_parts_of(space: Space, decisions: Decisions) -> 'dict[str, Tunable]':
    """Returns what `parts_of` makes; the last ones are kept, and must not be changed.

    A suggestion, the checks of a trial and its training need the same experiments.
    """
    return dict(_kept_parts(space, tuple(sorted(decisions.items()))))


@functools.lru_cache(maxsize=4)
def _kept_parts(
    space: Space, decisions: tuple[tuple[str, int | float], ...]
) -> 'dict[str, Tunable]':
    return parts_of(space, dict(decisions))
