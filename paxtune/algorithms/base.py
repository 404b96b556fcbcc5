"""What the study expects of any search algorithm."""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import pyglove as pg

from paxtune.search_space.decisions import Decisions, size
from trainer.runtime.garbage_collection import collected_later
from trainer.symbolic.component import Component

_Key: TypeAlias = tuple[str | int | float, ...]


def _key(decisions: Decisions) -> _Key:
    # Not pairs: a tuple for each of all decisions of thousands of trials takes half the time.
    return (*decisions, *decisions.values())


@dataclasses.dataclass(frozen=True)
class PastTrial:
    """What an algorithm may know of an earlier trial.

    Attributes:
        id: the trial's number; 0 or less for a trial of an earlier study.
        decisions: its decisions.
        state: 'pending' until it is 'completed' or found to be 'infeasible'.
        scores: its rewards, one for each objective, signed such that more is better, where it was
            completed (stopped early included). Empty otherwise: infeasible is no bad reward.
        memo: what the algorithm noted when it suggested the trial.
    """

    id: int
    decisions: Decisions
    state: Literal['pending', 'completed', 'infeasible']
    scores: tuple[float, ...] = ()
    memo: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The score where there is exactly one."""
        return self.scores[0] if len(self.scores) == 1 else None


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """The next trial.

    Attributes:
        decisions: its decisions.
        parent: the trial that they were derived from.
        memo: what the algorithm wants to read when it looks at the trial again. An algorithm keeps
            no state but this.
    """

    decisions: Decisions
    parent: int | None = None
    memo: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Exhausted(Exception):
    """No experiment is left in the space that was not tried and is feasible."""

    def __init__(self) -> None:
        super().__init__('no experiment is left that was not tried and is feasible')


def _all_feasible(decisions: Decisions) -> None:
    return None


class Request:
    """What a suggestion is a function of.

    Attributes:
        spec: the search space.
        seed: the study's seed.
        number: the number of the trial that is asked for.
        prior: decisions, not all of them perhaps, that somebody believes to be good ones.
    """

    def __init__(
        self,
        spec: pg.DNASpec,
        seed: int,
        number: int,
        read_history: Callable[[], Sequence[PastTrial]],
        infeasible: Callable[[Decisions], str | None] = _all_feasible,
        prior: Decisions | None = None,
    ) -> None:
        """Makes a request.

        Args:
            spec: the search space.
            seed: the study's seed.
            number: the number of the trial that is asked for.
            read_history: gives all earlier trials, those of earlier studies included.
            infeasible: says why decisions make no experiment that may be tried; None if they do.
            prior: decisions that somebody believes to be good.
        """
        self.spec = spec
        self.seed = seed
        self.number = number
        self.prior = prior or {}
        self._read_history = read_history
        self._why_infeasible = infeasible
        self._answers: dict[_Key, str | None] = {}

    @functools.cached_property
    def history(self) -> Sequence[PastTrial]:
        """All earlier trials by id. Reading it takes time in large studies: not always needed."""
        return sorted(self._read_history(), key=lambda trial: trial.id)

    @functools.cached_property
    def _seen(self) -> frozenset[_Key]:
        with collected_later():
            return frozenset(_key(trial.decisions) for trial in self.history if trial.id > 0)

    def seen(self, decisions: Decisions) -> bool:
        """Whether an earlier trial has exactly these decisions, whatever became of it.

        Trials of earlier studies do not count: they were trials of another experiment, or saw
        other data.
        """
        return _key(decisions) in self._seen

    def infeasible(self, decisions: Decisions) -> str | None:
        """Why decisions make no experiment that may be tried; None if they do.

        To tell costs time: the experiment is made, and asked.
        """
        key = _key(decisions)
        if key not in self._answers:
            self._answers[key] = self._why_infeasible(decisions)
        return self._answers[key]

    def is_open(self, decisions: Decisions) -> bool:
        """Whether decisions were not tried yet, and may be."""
        return not self.seen(decisions) and self.infeasible(decisions) is None

    @functools.cached_property
    def size(self) -> int | None:
        """How many experiments the space holds; None where they are countless."""
        return size(self.spec)

    @property
    def num_closed(self) -> int:
        """How many experiments are known by now not to be open."""
        refused = {key for key, reason in self._answers.items() if reason is not None}
        return len(self._seen) + len(refused - self._seen)

    def rng(self) -> random.Random:
        """Random numbers that are this trial's own, in any process."""
        return random.Random(f'{self.seed}/{self.number}')


class Algorithm(Component):
    """Proposes the decisions of trials.

    An algorithm keeps no state: a suggestion is a function of the request alone. So the study
    goes on after a kill exactly as it would have.
    """

    def suggest(self, request: Request) -> Suggestion:
        """The next trial: decisions that are open, says the request.

        Raises:
            Exhausted: there are none.
            UserError: none were found, though there may be some.
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def asks_ahead(self) -> bool:
        """Whether it takes so long that the next suggestion is made while trials run.

        It is made of the trials that had ended when the one before it began.
        """
        return False

    @property
    def uses_prior(self) -> bool:
        """Whether it makes use of a belief about where good decisions lie."""
        return False

    def resolved(self, spec: pg.DNASpec, num_objectives: int) -> 'Algorithm':
        """The algorithm that searches a space: itself, unless it only chooses one."""
        return self

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        """Called before the first trial of a study.

        Args:
            spec: the search space.
            num_objectives: how many rewards a trial has; 0 where trials are only measured.

        Raises:
            UserError: the algorithm cannot search it.
        """
