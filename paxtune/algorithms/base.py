"""What the study expects of any search algorithm."""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Literal

import pyglove as pg

from paxtune.decisions import Decisions
from trainer.component import Component


@dataclasses.dataclass(frozen=True)
class PastTrial:
    """What an algorithm may know of an earlier trial.

    Attributes:
        id: the trial's number.
        decisions: its decisions.
        state: 'pending' until it is 'completed' or found to be 'infeasible'.
        score: its reward, signed such that more is better, where it was completed (stopped early
            included). An infeasible trial has none: it is no bad reward.
    """

    id: int
    decisions: Decisions
    state: Literal['pending', 'completed', 'infeasible']
    score: float | None = None


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """The decisions of a new trial, and the trial that they were derived from."""

    decisions: Decisions
    parent: int | None = None


class Request:
    """What a suggestion is a function of.

    Attributes:
        spec: the search space.
        seed: the study's seed.
        number: the number of the trial that is asked for.
    """

    def __init__(
        self,
        spec: pg.DNASpec,
        seed: int,
        number: int,
        read_history: Callable[[], Sequence[PastTrial]],
    ) -> None:
        self.spec = spec
        self.seed = seed
        self.number = number
        self._read_history = read_history

    @functools.cached_property
    def history(self) -> Sequence[PastTrial]:
        """All earlier trials by id. Reading it takes time in large studies: not always needed."""
        return sorted(self._read_history(), key=lambda trial: trial.id)

    @functools.cached_property
    def _seen(self) -> frozenset[tuple[tuple[str, int | float], ...]]:
        return frozenset(tuple(trial.decisions.items()) for trial in self.history)

    def seen(self, decisions: Decisions) -> bool:
        """Whether an earlier trial has exactly these decisions, whatever became of it."""
        return tuple(decisions.items()) in self._seen

    def rng(self) -> random.Random:
        """Random numbers that are this trial's own, in any process."""
        return random.Random(f'{self.seed}/{self.number}')


class Algorithm(Component):
    """Proposes the decisions of trials.

    An algorithm keeps no state: a suggestion is a function of the request alone. So the study
    goes on after a kill exactly as it would have.
    """

    def suggest(self, request: Request) -> Suggestion:
        """The next trial. The space holds at least one experiment that was not tried."""
        raise NotImplementedError(type(self).__name__)
