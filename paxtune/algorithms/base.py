"""Interface of search algorithms."""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, Literal, TypeAlias

import pyglove as pg

from paxtune.search_space.decisions import Decisions, size
from trainer.runtime.garbage_collection import gc_paused
from trainer.symbolic.component import Component
from trainer.symbolic.errors import UserError

Key: TypeAlias = tuple[str | int | float, ...]


def key_of(decisions: Decisions) -> Key:
    """Returns a value that equal decisions share, for a set."""
    # Flat: building pairs for the decisions of thousands of trials takes twice as long.
    return (*decisions, *decisions.values())


@dataclasses.dataclass(frozen=True)
class KnownValue:
    """A value of a decision that is expected to be good.

    Attributes:
        value: index of a candidate, or a number, as in `Decisions`.
        deviation: standard deviation of good values about it, as a share of the range on its scale.
            For a choice of candidates without an order, the probability of all others.
    """

    value: int | float
    deviation: float = 0.2


@dataclasses.dataclass(frozen=True)
class Observation:
    """An earlier trial, as algorithms see it.

    Attributes:
        id: trial number; 0 or less for a trial of an earlier study.
        decisions: decisions of the trial.
        state: 'pending' until the trial is 'completed' or 'infeasible'.
        scores: rewards of a completed trial, one for each objective, signed so that larger is
            better. A trial that was stopped early is completed. Empty in any other state.
        algorithm_state: notes that the algorithm attached to the suggestion.
        cost: run time of a whole trial, in seconds, times its devices for a budget of device
            hours; the cost of a trial that was stopped early is predicted. None if the budget has
            no hours.
        source: names the earlier study of the trial; '' for a trial of this study. Scores of
            different studies are on different scales.
    """

    id: int
    decisions: Decisions
    state: Literal['pending', 'completed', 'infeasible']
    scores: tuple[float, ...] = ()
    algorithm_state: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cost: float | None = None
    source: str = ''


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """The next trial.

    Attributes:
        decisions: decisions of the trial.
        parent: number of the trial from which the decisions were derived.
        algorithm_state: notes that come back with the observation. An algorithm has no other
            state.
    """

    decisions: Decisions
    parent: int | None = None
    algorithm_state: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Exhausted(Exception):
    """Every feasible experiment of the space was tried."""

    def __init__(self) -> None:
        super().__init__('no experiment is left that is feasible and was not tried')


@dataclasses.dataclass(eq=False)
class SuggestionContext:
    """All inputs of a suggestion.

    Attributes:
        spec: search space.
        seed: seed of the study.
        number: number of the trial to suggest.
        read_observations: returns all earlier trials, also of earlier studies.
        why_infeasible: returns the reason why decisions are infeasible, or None.
        prior: known values by the id of their decision; some decisions have none.
        memo: values that are kept for the next suggestion of the study. They save time only: a
            suggestion does not depend on them.
        tried: returns the keys of the decisions of this study's earlier trials; by default, those
            of the observations.
    """

    spec: pg.DNASpec
    seed: int
    number: int
    read_observations: Callable[[], Sequence[Observation]]
    why_infeasible: Callable[[Decisions], str | None] = lambda decisions: None
    prior: Mapping[str, KnownValue] = dataclasses.field(default_factory=dict)
    memo: dict[str, Any] = dataclasses.field(default_factory=dict)
    tried: Callable[[], Set[Key]] | None = None
    _reasons: dict[Key, str | None] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def observations(self) -> Sequence[Observation]:
        """All earlier trials by id. Read on demand, because reading a large study takes time."""
        return sorted(self.read_observations(), key=lambda trial: trial.id)

    @functools.cached_property
    def _seen(self) -> Set[Key]:
        if self.tried is not None:
            return self.tried()
        with gc_paused():
            return frozenset(key_of(each.decisions) for each in self.observations if each.id > 0)

    def seen(self, decisions: Decisions) -> bool:
        """Returns True if an earlier trial of this study has these decisions, in any state.

        Trials of earlier studies do not count: their experiment or their data may differ.
        """
        return key_of(decisions) in self._seen

    def infeasibility_reason(self, decisions: Decisions) -> str | None:
        """Returns the reason why decisions are infeasible, or None.

        The check is expensive, because it builds the experiment. Results are cached.
        """
        key = key_of(decisions)
        if key not in self._reasons:
            self._reasons[key] = self.why_infeasible(decisions)
        return self._reasons[key]

    def is_eligible(self, decisions: Decisions) -> bool:
        """Returns True if decisions are untried and feasible."""
        return not self.seen(decisions) and self.infeasibility_reason(decisions) is None

    @functools.cached_property
    def size(self) -> int | None:
        """Number of experiments in the space; None if it is infinite."""
        return size(self.spec)

    @property
    def num_ineligible(self) -> int:
        """Number of experiments that are known to be tried or infeasible."""
        infeasible = {key for key, reason in self._reasons.items() if reason is not None}
        return len(self._seen) + len(infeasible - self._seen)

    def rng(self) -> random.Random:
        """Returns a generator that depends on the seed and the trial number alone."""
        return random.Random(f'{self.seed}/{self.number}')


class Algorithm(Component):
    """Suggests the decisions of trials.

    An algorithm is stateless: a suggestion is a function of its context. A study therefore
    continues after a kill with the same suggestions.
    """

    uses_prior: ClassVar[bool] = False
    """True if the algorithm uses known values."""

    names_parents: ClassVar[bool] = False
    """True if suggestions name their parents, for `Search(warm_start='parent')`."""

    uses_predicted_ends: ClassVar[bool] = False
    """True if it sees stopped and paused trials with the scores predicted for their ends.

    Later trials change these predictions. An algorithm that replays its observations does not
    use them.
    """

    def suggest(self, context: SuggestionContext) -> Suggestion:
        """Returns the next trial, with decisions that are eligible in the context.

        Raises:
            Exhausted: no eligible decisions exist.
            UserError: no eligible decisions were found, although some may exist.
        """
        raise NotImplementedError(type(self).__name__)

    def resolved(self, spec: pg.DNASpec, num_objectives: int) -> 'Algorithm':
        """Returns the algorithm for a space: this one, unless it only selects another."""
        return self

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        """Validates the space before the first trial; `num_objectives` is 0 without rewards.

        Raises:
            UserError: the algorithm cannot search the space.
        """

    def _require_reward(
        self, num_objectives: int, exactly_one: bool = False, name: str | None = None
    ) -> None:
        if num_objectives and not (exactly_one and num_objectives > 1):
            return
        others = 'NSGA2 or RegularizedEvolution' if num_objectives else 'RandomSearch or Grid'
        raise UserError(
            f'search.algorithm: {name or type(self).__name__} needs '
            f'{"one" if exactly_one else "a"} reward; there are {num_objectives}. Use {others}.'
        )
