from paxtune.experiment import Tunable
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from trainer.symbolic.derived import resolve


def parts_of(space: Space, decisions: Decisions) -> dict[str, Tunable]:
    """Makes a tunable experiment concrete, by the name of the sub-experiment ('' without any).

    Derived values follow what a sub-experiment changes.

    Raises:
        ValueError: the decisions do not fit together.
        UserError: a sub-experiment names a path that is not there.
    """
    parts = space.decode(decisions).parts()
    return {name: resolve(part) for name, part in parts.items()}
