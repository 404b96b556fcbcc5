"""The next trial of a study: from its seeds, then from its algorithm."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paxtune.algorithms import Exhausted, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import complete
from paxtune.config.search import Search
from paxtune.objectives.limits import violation
from paxtune.search_space.decisions import Decisions
from paxtune.search_space.space import Space
from paxtune.storage.vizier_space import to_parameters
from paxtune.study import prefetch, replicates
from paxtune.study.reasons import commonest
from paxtune.study.trial import Trial
from trainer.runtime.garbage_collection import collected_later
from trainer.runtime.signals import SkipTrial
from trainer.symbolic.errors import UserError

# What says that decisions are infeasible. `Infeasible` is a ValueError.
_REFUSALS = (SkipTrial, ArithmeticError, LookupError, TypeError, ValueError)

_MAX_DRAWS = 100  # Of what a seed leaves open, until one is feasible.


class SuggestionError(RuntimeError):
    """The algorithm raised. The message holds its traceback."""


class Suggestions:
    """What a study suggests: a function of its space, its search and its trials.

    Trials that have ended are looked at once, and decisions are checked once.

    Attributes:
        algorithm: what proposes them.
    """

    def __init__(
        self,
        space: Space,
        search: Search,
        priors: Sequence[Observation],
        read_trials: Callable[[], Sequence[Trial]],
    ) -> None:
        """Makes the suggestions of a study.

        Args:
            space: the study's.
            search: how it is searched.
            priors: what the algorithm knows from elsewhere.
            read_trials: the study's trials as they stand.
        """
        self._space, self._search, self._priors = space, search, priors
        self.algorithm = search.algorithm.resolved(space.spec, len(search.rewards))
        self._prior = space.parse(dict(search.prior), partial=True)
        self._read_trials = read_trials
        self._past: dict[int, Observation] = {}
        self._reasons: dict[object, str | None] = {}

    def next(self, number: int) -> tuple[Suggestion, dict[str, str]]:
        """The trial with a number that is not taken yet, and notes for it.

        Raises:
            Exhausted: nothing is left to try.
            SuggestionError: the algorithm raised.
            UserError: nothing in the space satisfies its constraints.
        """
        ordinal = number
        if self._search.repeats > 1:
            trials, _ = self._earlier(number)
            if (due := self.repeat_due(trials)) is not None:
                return Suggestion(due[0].by_id), replicates.notes_of(*due)
            ordinal = replicates.ordinal(trials, number)
        if self._search.seeds:
            sown = sum(t.origin == 'seed' for t in self._read_trials() if t.id < number)
            if sown < len(self._search.seeds):
                seed = self._search.seeds[sown]
                return Suggestion(self.completed(seed, ordinal)), {'origin': 'seed'}
        try:
            suggestion = self.algorithm.suggest(self.request(number, ordinal))
            to_parameters(self._space.spec, suggestion.decisions)
        except (UserError, Exhausted):
            raise
        except Exception as error:
            raise SuggestionError(''.join(traceback.format_exception(error))) from error
        return suggestion, {}

    def completed(self, given: Mapping[str, Any], number: int) -> Decisions:
        """Decisions that a person gave, the missing ones drawn at random.

        Args:
            given: {path: value}, as `Trial.decisions`.
            number: of the trial that they are for.

        Raises:
            UserError: they are none of the space, do not fit together, or make nothing feasible.
        """
        made = self._space.parse(dict(given), partial=True)
        rng, reason = self.request(number).rng(), None
        for _ in range(_MAX_DRAWS):
            try:
                drawn = complete(self._space.spec, made, rng)
            except ValueError as error:
                raise UserError(f'these decisions do not fit together: {error}') from error
            reason = self.why_infeasible(drawn)
            if reason is None:
                return drawn
        raise UserError(f'a trial with these decisions would be infeasible: {reason}')

    @property
    def commonest_reason(self) -> str | None:
        """The commonest of the reasons for which decisions were infeasible; None without any."""
        # A copy: another thread may be adding to them.
        found = commonest(filter(None, list(self._reasons.values())))
        return found[0][1] if found else None

    def why_infeasible(self, decisions: Decisions) -> str | None:
        """Why decisions make no experiment that the search wants; None if they do."""
        key = tuple(decisions.items())
        if key not in self._reasons:
            self._reasons[key] = self._find_reason(decisions)
        return self._reasons[key]

    def _find_reason(self, decisions: Decisions) -> str | None:
        try:
            values = self.values(decisions)
        except _REFUSALS as error:
            return str(error).split('\n')[0]
        except UserError as error:
            if not self._space.sub_experiments:
                raise
            return str(error).split('\n')[0]  # What a sub-experiment changes does not fit.
        except Exception:
            return None  # A bug in the `check` of a component: the trial will tell.
        try:
            for value in values.values():
                for constraint in self._search.constraints:
                    constraint.require(value)
        # A constraint may have no value under some decisions; `study_checks` has seen others.
        except (UserError, *_REFUSALS) as error:
            return str(error).split('\n')[0]
        return self._too_costly(values) if self._space.is_tunable else None

    def values(self, decisions: Decisions) -> dict[str, Any]:
        """What a trial is about, by the name of the sub-experiment ('' without any).

        Raises:
            ValueError, UserError: the decisions do not fit together.
        """
        if not self._space.is_tunable:
            return {'': self._space.materialize(decisions)}
        # Imported here: it imports JAX, and a study of a function has no use for it.
        from paxtune.running.runners import parts_of

        return dict(parts_of(self._space, decisions))

    def _too_costly(self, parts: dict[str, Any]) -> str | None:
        from paxtune.study.trial_costs import static_costs

        try:
            return violation(self._search.limits, static_costs(parts))
        except UserError as error:
            return str(error).split('\n')[0]
        except Exception:
            # A bug, or a signal, that came up while the model was traced: the trial will tell.
            return None

    def request(self, number: int, ordinal: int | None = None) -> SuggestionContext:
        """What is asked for the trial of a number, which is the ordinal-th without repeats."""
        return SuggestionContext(
            self._space.spec,
            self._search.seed,
            number if ordinal is None else ordinal,
            lambda: self._history(number),
            self.why_infeasible,
            self._prior,
        )

    def _history(self, number: int) -> list[Observation]:
        with collected_later():
            trials, then = self._earlier(number)
            past = [_as_of(t, then[t.id]) if t.id in then else self._remember(t) for t in trials]
            return [*self._priors, *replicates.as_one(trials, past, self._search.repeats)]

    def repeat_due(self, trials: Sequence[Trial]) -> tuple[Trial, int] | None:
        """The repeat that is to come after some trials: of which trial, and its number."""
        return replicates.due(trials, self._search.repeats, frozenset(self._open_then(trials)))

    def _earlier(self, number: int) -> tuple[list[Trial], dict[int, int | None]]:
        """The trials below a number, and those that count as open though they may have ended."""
        trials = [trial for trial in self._read_trials() if trial.id < number]
        return trials, self._open_then(trials)

    def _open_then(self, trials: Sequence[Trial]) -> dict[int, int | None]:
        # As they were when the last of them began, whenever this is asked.
        return prefetch.open_then(trials) if self.algorithm.prefetches else {}

    def _remember(self, trial: Trial) -> Observation:
        known = self._past.get(trial.id)
        # One that has ended is the same object each time, unless another one took its number.
        if known is None or known.decisions is not trial.by_id:
            known = self._past[trial.id] = _past(trial)
        return known


def _past(trial: Trial) -> Observation:
    if trial.state == 'COMPLETED':
        return Observation(trial.id, trial.by_id, 'completed', trial.scores, trial.memo)
    if trial.state == 'INFEASIBLE':
        return Observation(trial.id, trial.by_id, 'infeasible', algorithm_state=trial.memo)
    return _as_of(trial, trial.paused_at)


def _as_of(trial: Trial, paused_at: int | None) -> Observation:
    """A trial that had not ended; one that is paused counts with what it has come to."""
    if paused_at is not None and (scores := trial.scores_at(paused_at)):
        return Observation(trial.id, trial.by_id, 'completed', scores, trial.memo)
    return Observation(trial.id, trial.by_id, 'pending', algorithm_state=trial.memo)
