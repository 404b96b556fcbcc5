"""Suggestions: initial trials first, then replicates, then the algorithm's."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from paxtune.algorithms import Exhausted, KnownValue, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.base import Key, key_of
from paxtune.algorithms.encoding.sampling import complete
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.parameters import reader, to_parameters
from paxtune.study import replicates
from paxtune.study.feasibility import Feasibility
from paxtune.study.observations import observe, with_costs, with_predicted_ends
from paxtune.study.record import INITIAL_TRIALS, Lineage
from paxtune.study.trial import Trial
from paxtune.study.trial_table import Trials, column
from trainer.runtime.garbage_collection import gc_paused
from trainer.symbolic.errors import UserError
from trainer.symbolic.plain_numbers import plain

_MAX_DRAWS = 100


def _is_initial(trial: Trial) -> bool:
    return trial.lineage.origin == INITIAL_TRIALS


class SuggestionError(RuntimeError):
    """The algorithm raised. The message holds its traceback."""


class Suggester:
    """Makes the suggestions of a study: a function of its space, its search and its trials.

    Ended trials are read once.

    Attributes:
        algorithm: proposes decisions.
        feasibility: of decisions.
    """

    def __init__(
        self,
        feasibility: Feasibility,
        priors: Sequence[Observation],
        read_trials: Callable[[], Sequence[Trial]],
        known: Mapping[str, KnownValue] | None = None,
    ) -> None:
        """Suggests nothing yet.

        Args:
            feasibility: of decisions.
            priors: trials of other studies.
            read_trials: returns the study's trials as they stand.
            known: known values by the id of their decision.
        """
        self.feasibility, self._priors = feasibility, priors
        space, search = self._space, self._search = feasibility.space, feasibility.search
        self.algorithm = search.algorithm.resolved(space.spec, len(search.rewards))
        self._known = dict(known or {})
        self._read_trials, self._read_parameters = read_trials, reader(space.spec)
        self._memo: dict[str, Any] = {}
        self._tried: set[Key] = set()
        self._tried_revision = 0

    def next(self, number: int) -> tuple[Suggestion, Lineage]:
        """Makes the suggestion for a trial number that is not taken yet.

        Raises:
            Exhausted: nothing is left to try.
            SuggestionError: the algorithm raised, or its decisions are outside the space.
            UserError: nothing in the space satisfies its constraints.
        """
        ordinal = number
        if self._search.replicates > 1:
            trials = self._earlier(number)
            if (due := self.replicate_due(trials)) is not None:
                return Suggestion(due[0].by_id), replicates.lineage_of(*due)
            ordinal = replicates.ordinal(trials, number)
        if self._search.initial_trials:
            added = sum(column(self._earlier(number), _is_initial))
            if added < len(self._search.initial_trials):
                given = self._search.initial_trials[added]
                return Suggestion(self.completed(given, ordinal)), Lineage(INITIAL_TRIALS)
        try:
            suggestion = self.algorithm.suggest(self.context(number, ordinal))
            made = {id_: plain(value) for id_, value in suggestion.decisions.items()}
            suggestion = dataclasses.replace(suggestion, decisions=made)
            self._read_parameters(to_parameters(self._space.spec, made))  # As all readers do.
        except (UserError, Exhausted):
            raise
        except Exception as error:
            raise SuggestionError(''.join(traceback.format_exception(error))) from error
        parent = suggestion.parent
        if parent is None or parent <= 0:
            return suggestion, Lineage()
        warm_start = parent if self._search.warm_start == 'parent' else None
        return suggestion, Lineage(parent=parent, warm_start=warm_start)

    def completed(self, given: Mapping[str, Any], number: int) -> Decisions:
        """Completes given decisions; the missing ones are drawn at random.

        Args:
            given: {path: value}, as `Trial.decisions`.
            number: of their trial.

        Raises:
            UserError: they are not in the space, do not fit together, or are infeasible.
        """
        made = self._space.parse(dict(given), partial=True)
        rng, reason = self.context(number).rng(), None
        for _ in range(_MAX_DRAWS):
            try:
                drawn = complete(self._space.spec, made, rng)
            except ValueError as error:
                raise UserError(f'these decisions do not fit together: {error}') from error
            reason = self.feasibility.why_infeasible(drawn)
            if reason is None:
                return drawn
        raise UserError(f'a trial with these decisions would be infeasible: {reason}')

    def context(self, number: int, ordinal: int | None = None) -> SuggestionContext:
        """Makes the context of a suggestion; `ordinal` is the number without replicates."""
        return SuggestionContext(
            self._space.spec,
            self._search.seed,
            number if ordinal is None else ordinal,
            lambda: self._history(number),
            self.feasibility.why_infeasible,
            self._known,
            self._memo,
            lambda: self._tried_before(number),
        )

    def _tried_before(self, number: int) -> Set[Key]:
        """Returns the keys of the decisions of all trials before a number."""
        trials = self._earlier(number)
        with gc_paused():
            if not isinstance(trials, Trials):
                return {key_of(trial.by_id) for trial in trials}
            # A trial keeps its decisions, so only new ones are added.
            changed: Sequence[Trial] | None = trials.since(self._tried_revision)
            if changed is None:
                self._tried, changed = set(), trials
            self._tried.update(key_of(trial.by_id) for trial in changed)
            self._tried_revision = trials.revision
            return self._tried

    def _history(self, number: int) -> list[Observation]:
        with gc_paused():
            trials = self._earlier(number)
            found = column(trials, observe)
            if self.algorithm.uses_predicted_ends:
                found = with_predicted_ends(trials, found, self._space.spec)
            found = with_costs(self._search.budget, trials, found)
            return [*self._priors, *replicates.merged(trials, found, self._search.replicates)]

    def replicate_due(self, trials: Sequence[Trial]) -> tuple[Trial, int] | None:
        """Finds the replicate that comes after some trials, as (first trial, replicate index)."""
        return replicates.due(trials, self._search.replicates)

    def _earlier(self, number: int) -> Sequence[Trial]:
        trials = self._read_trials()
        if not trials or trials[-1].id < number:
            return trials
        return [trial for trial in trials if trial.id < number]
