"""Suggestions for a study of Vizier clients, by our algorithms."""

import hashlib
from collections.abc import Sequence
from typing import Any

from paxtune.algorithms import (
    Algorithm,
    Default,
    Exhausted,
    GPBandit,
    Observation,
    SuggestionContext,
)
from paxtune.algorithms.external.vizier_names import VIZIER_NAMES, translated
from paxtune.config.named_components import component
from paxtune.storage.codec import (
    StudySpec,
    TrialProto,
    read_algorithm_state,
    write_algorithm_state,
)
from paxtune.storage.stored_parameters import read_parameters, write_parameters
from paxtune.vizier_service.metrics import objectives, scores
from paxtune.vizier_service.space import PlainSpace
from trainer.symbolic.errors import UserError


class PlainSuggester:
    """Makes the suggestions of a study: a function of its name, its number and its trials.

    Example:
        >>> spec = StudySpec(algorithm='RANDOM_SEARCH')
        >>> rate = spec.parameters.add(parameter_id='rate')
        >>> rate.double_value_spec.max_value = 1.0
        >>> trial = PlainSuggester('owners/me/studies/mine', spec).suggest([], 1)
        >>> 0.0 <= read_parameters(trial)['rate'] <= 1.0
        True
    """

    def __init__(self, study: str, spec: StudySpec) -> None:
        """Reads the space of a study.

        Args:
            study: its resource name, which its seed is made from.

        Raises:
            UserError: the study's space cannot be searched by the algorithm that it names.
        """
        self._spec = spec
        try:
            self._space = PlainSpace(spec.parameters)
        except ValueError as error:
            raise UserError(f'the search space cannot be searched: {error}') from error
        count = len(objectives(spec))
        algorithm = _algorithm(spec.algorithm)
        if isinstance(algorithm, GPBandit) and count != 1:
            algorithm = Default()  # Vizier's names of it allow any number.
        self._algorithm = algorithm.resolved(self._space.spec, count)
        self._algorithm.check_space(self._space.spec, count)
        self._seed = int.from_bytes(hashlib.blake2b(study.encode(), digest_size=4).digest())
        self._known: dict[int, tuple[TrialProto, Observation | None]] = {}
        self._memo: dict[str, Any] = {}

    def suggest(self, trials: Sequence[TrialProto], number: int) -> TrialProto | None:
        """Returns a trial with parameters alone; None where nothing is left to suggest.

        Args:
            trials: all of the study.
            number: of the trial to suggest.

        Raises:
            UserError: nothing was found, although something may be left.
        """
        context = SuggestionContext(
            self._space.spec,
            self._seed,
            number,
            lambda: self._observations(trials),
            memo=self._memo,
        )
        try:
            suggestion = self._algorithm.suggest(context)
        except Exhausted:
            return None
        trial = TrialProto()
        write_parameters(trial, self._space.parameters(suggestion.decisions))
        write_algorithm_state(trial, suggestion.algorithm_state)
        return trial

    def _observations(self, trials: Sequence[TrialProto]) -> list[Observation]:
        observed = []
        for trial in trials:
            id_ = int(trial.id)
            known = self._known.get(id_)
            if known is None or known[0] is not trial:
                known = self._known[id_] = trial, self._observe(trial)
            if known[1] is not None:
                observed.append(known[1])
        return observed

    def _observe(self, trial: TrialProto) -> Observation | None:
        """Observes a trial; None if its parameters are not in the space."""
        id_, states = int(trial.id), TrialProto.State
        try:
            decisions = self._space.decisions(read_parameters(trial))
            state = read_algorithm_state(trial)
        except (UserError, ValueError):
            return None
        if trial.state not in (states.SUCCEEDED, states.INFEASIBLE):
            return Observation(id_, decisions, 'pending', algorithm_state=state)
        found = scores(self._spec, trial) if trial.state == states.SUCCEEDED else None
        if found is None:
            return Observation(id_, decisions, 'infeasible', algorithm_state=state)
        return Observation(id_, decisions, 'completed', found, state)


def _algorithm(name: str) -> Algorithm:
    """Returns the algorithm of one of Vizier's names, and of no other: none names users' code."""
    where = f'the algorithm {name[:60]!r}'
    text = translated(name or 'DEFAULT', where)
    if name and name not in VIZIER_NAMES:
        raise UserError(
            f'{where}: expected one of {", ".join(VIZIER_NAMES)}. The service runs no algorithm '
            'of a client (EXTERNAL_PYTHIA_SERVICE).'
        )
    return component(Algorithm, text, where)
