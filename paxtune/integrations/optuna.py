"""Our algorithms as a sampler of Optuna."""

import math
import random
import threading
from collections.abc import Sequence
from typing import Any

from paxtune.algorithms import (
    NSGA2,
    Algorithm,
    Exhausted,
    Observation,
    Portfolio,
    Suggestion,
    SuggestionContext,
)
from paxtune.algorithms.encoding.sampling import draw
from paxtune.algorithms.gp.bandit import MAX_REWARDS
from paxtune.config.named_components import component
from trainer.symbolic import extras
from trainer.symbolic.plain_numbers import plain

with extras.needed('optuna', 'PaxtuneSampler'):
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

    from paxtune.integrations.optuna_space import ConditionalSpace, Domains

_SUGGESTED = 'paxtune:suggested'  # A system attribute of a trial.
_STATE = 'paxtune:algorithm_state'
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
_asking = threading.Lock()


class PaxtuneSampler(BaseSampler):
    """Sampler of Optuna that uses an algorithm of paxtune.

    The conditions of a define-by-run space are inferred from the trials that have ended. A
    parameter that occurs with some values of a choice, or of an integer, is conditional on it.
    Parameters of the first trial, and new ones, are drawn at random. So are all of them once every
    point was tried.

    A pruned trial counts with its last value. A trial that failed, that was pruned without a value,
    or that violates a constraint (`trial.set_constraint`) is infeasible, and the algorithm avoids
    its region. Running trials are pending. If a range changes, the latest one counts.

    A suggestion is a function of the seed, the trial's number and the other trials. It is the same
    after a reload of the storage. Parallel trials differ by their numbers, so `reseed_rng` does
    nothing.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study(sampler=PaxtuneSampler(seed=0))
        >>> study.optimize(lambda trial: trial.suggest_float('x', -1.0, 1.0) ** 2, n_trials=12)
        >>> study.best_value < 1e-2
        True
    """

    def __init__(
        self, algorithm: Algorithm | str | None = None, *, seed: int | None = None
    ) -> None:
        """Makes a sampler.

        Args:
            algorithm: an algorithm, or its name as in `--algorithm`. By default it is `Portfolio`
                for one to four objectives, and `NSGA2` for more.
            seed: of all draws; a random one by default.

        Raises:
            UserError: no algorithm has this name.
        """
        if isinstance(algorithm, str):
            algorithm = component(Algorithm, algorithm, f'algorithm={algorithm}')
        self._algorithm = algorithm
        self._seed = random.SystemRandom().getrandbits(32) if seed is None else plain(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the parameters of ended trials, each with its latest distribution."""
        found: dict[str, BaseDistribution] = {}
        for each in study.get_trials(deepcopy=False, states=_ENDED):
            found |= each.distributions
        return {name: domain for name, domain in sorted(found.items()) if not domain.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the active parameters of a suggestion; none without a search space.

        Raises:
            UserError: the algorithm cannot search the space, or has no use for several objectives.
        """
        domains = {name: each for name, each in search_space.items() if not each.single()}
        if not domains:
            return {}
        # Threads ask at once: the later one sees the suggestion of the earlier one.
        with _asking:
            return self._suggested(study, trial, domains)

    def _suggested(self, study: Study, trial: FrozenTrial, domains: Domains) -> dict[str, Any]:
        directions = study.directions
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        space = ConditionalSpace(domains, [t.params for t in trials if t.state in _ENDED])
        algorithm = self._algorithm or (Portfolio() if len(directions) <= MAX_REWARDS else NSGA2())
        algorithm.check_space(space.spec, len(directions))

        def observations() -> list[Observation]:
            found = (self._observe(space, domains, directions, each) for each in trials)
            return [each for each in found if each is not None]

        context = SuggestionContext(space.spec, self._seed, trial.number + 1, observations)
        try:
            suggestion = algorithm.resolved(space.spec, len(directions)).suggest(context)
        except Exhausted:
            suggestion = Suggestion(draw(space.spec, context.rng()))
        params = space.decode(suggestion.decisions)
        # As Optuna's own samplers do: there is no public method.
        suggested = {name: domains[name].to_internal_repr(each) for name, each in params.items()}
        study._storage.set_trial_system_attr(trial._trial_id, _SUGGESTED, suggested)
        state = dict(suggestion.algorithm_state)
        study._storage.set_trial_system_attr(trial._trial_id, _STATE, state)
        return params

    def _observe(
        self,
        space: ConditionalSpace,
        domains: Domains,
        directions: Sequence[StudyDirection],
        trial: FrozenTrial,
    ) -> Observation | None:
        """Observes a trial; None if it has no decisions in the space."""
        suggested = {
            name: domains[name].to_external_repr(value)
            for name, value in trial.system_attrs.get(_SUGGESTED, {}).items()
            if name in domains
        }
        if trial.state is TrialState.WAITING or not (suggested or trial.params):
            return None
        # A running trial may not have asked for its suggested parameters yet.
        decisions = space.encode(suggested | trial.params, self._rng(trial))
        if decisions is None:
            return None
        number, state = trial.number + 1, trial.system_attrs.get(_STATE, {})
        if trial.state is TrialState.RUNNING:
            return Observation(number, decisions, 'pending', algorithm_state=state)
        values = trial.values or []
        is_feasible = all(each <= 0 for each in trial.constraints.values())
        if trial.state not in _ENDED or not values or not is_feasible:
            return Observation(number, decisions, 'infeasible', algorithm_state=state)
        if not all(map(math.isfinite, values)):
            return Observation(number, decisions, 'infeasible', algorithm_state=state)
        signs = [1.0 if each is StudyDirection.MAXIMIZE else -1.0 for each in directions]
        scores = tuple(sign * value for sign, value in zip(signs, values, strict=True))
        return Observation(number, decisions, 'completed', scores, state)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draws a parameter at random, by the seed, the trial's number and the name."""
        if param_distribution.single():
            return param_distribution.to_external_repr(0)
        space = ConditionalSpace({param_name: param_distribution}, [])
        decisions = space.encode({}, self._rng(trial, param_name))
        assert decisions is not None
        return space.decode(decisions)[param_name]

    def _rng(self, trial: FrozenTrial, name: str = '') -> random.Random:
        return random.Random(f'{self._seed}/{trial.number}/{name}')
