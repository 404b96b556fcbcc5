"""Draws from a search space whose values fit together."""

import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paxtune.algorithms.encoding.sampling import draw
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.study.trial_experiments import values_of
from trainer.symbolic.errors import UserError

_MAX_DRAWS = 100


class NothingFits(UserError):
    """No draw was found whose values fit together."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A point of a space whose values fit together.

    Attributes:
        decisions: by id.
        values: by the name of the sub-experiment, as of `values_of`.
    """

    decisions: Decisions
    values: Mapping[str, Any]


def first_fitting(space: Space, seed: int = 0) -> Sample:
    """Returns the first draw of a seed whose values fit together; NothingFits if none of 100 do."""
    return next(fitting(space, draws(space, seed)))


def draws(space: Space, seed: int = 0) -> Iterator[Decisions]:
    """Draws 100 times, the same each time."""
    rng = random.Random(seed)
    return (draw(space.spec, rng) for _ in range(_MAX_DRAWS))


def fitting(space: Space, drawn: Iterable[Decisions]) -> Iterator[Sample]:
    """Yields the draws whose values fit together; raises NothingFits if none do."""
    found, reason = 0, None
    reasons: set[str] = set()
    for decisions in drawn:
        try:
            values = values_of(space, decisions)
        # An error of a `check`: a trial with these decisions would fail, another need not.
        except Exception as error:
            reason = error
            reasons.add(str(error))
            continue
        found += 1
        yield Sample(decisions, values)
    if not found:
        # No decision is involved where all draws have the same reason.
        why = '' if len(reasons) == 1 else 'no experiment was found whose values fit together: '
        raise NothingFits(f'{why}{reason}') from reason
