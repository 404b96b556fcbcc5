import functools
import random

from paxtune.algorithms.encoding.sampling import draw
from paxtune.experiment import Tunable
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from trainer.symbolic.derived import resolve
from trainer.symbolic.errors import UserError

_MAX_DRAWS = 100


def parts_of(space: Space, decisions: Decisions) -> dict[str, Tunable]:
    """Makes a tunable experiment concrete, by the name of the sub-experiment ('' without any).

    Derived values follow what a sub-experiment changes.

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = space.decode(decisions).parts()
    return {name: resolve(part) for name, part in parts.items()}


def shared_parts_of(space: Space, decisions: Decisions) -> dict[str, Tunable]:
    """Returns what `parts_of` makes; the last ones are kept, and must not be changed.

    A suggestion, the checks of a trial and its training need the same experiments.
    """
    return dict(_kept_parts(space, tuple(sorted(decisions.items()))))


@functools.lru_cache(maxsize=4)
def _kept_parts(space: Space, decisions: tuple[tuple[str, int | float], ...]) -> dict[str, Tunable]:
    return parts_of(space, dict(decisions))


def fitting_decisions(space: Space) -> Decisions:
    """Draws decisions that fit together, always the same; raises UserError if none are found."""
    for seed in range(_MAX_DRAWS):
        try:
            decisions = draw(space.spec, random.Random(seed))
            parts_of(space, decisions)
        except ValueError as error:
            reason = error
        else:
            return decisions
    raise UserError(f'no experiment was found whose values fit together: {reason}') from reason
