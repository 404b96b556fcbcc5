"""Experiments, or other values, of the trials of a space."""

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
