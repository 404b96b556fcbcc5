import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.vizier_problem import (
    FlatProblem,
    jax_for_designers,
    require_extra,
)
from paxtune.search_space.decisions import Decisions

_MAX_TRIES = 20
_FIREFLY, _POOL = 'fly', 'pool'
_SKIPPED = 1000  # Points of the Halton sequence, as in Vizier.


class Eagle(Algorithm):
    """Vizier's Eagle Strategy: fireflies that are attracted by brighter ones (Yang 2009).

    The first trials are quasi-random (Halton). Each completed trial becomes a firefly until the
    pool is full: 10 fireflies and some for each decision. Then the fireflies take turns. A
    suggestion moves one towards the better ones near it, and slightly away from worse ones. A
    firefly that does not improve moves less and less, and is removed.

    Vizier's designer keeps the pool. Here each trial stores it in the algorithm state, by trial
    numbers (a kilobyte for 20 decisions). The time of a suggestion does not grow with the study.
    Trials of earlier studies and trials added by users join the pool. An infeasible trial counts
    as a failure of its firefly. Inactive decisions are in the middle of their range.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> Eagle().suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.00...}
    """

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)
        require_extra('Eagle')

    def suggest(self, context: SuggestionContext) -> Suggestion:
        problem = FlatProblem(context.spec, 1)
        if not len(problem):
            return Suggestion(draw_eligible(context, context.rng()))
        with jax_for_designers():
            swarm = _Swarm(problem, context)
            swarm.restore(context.observations)
            for _ in range(_MAX_TRIES):
                decisions, fly = swarm.suggest()
                if context.is_eligible(decisions):
                    state = {_FIREFLY: fly, _POOL: swarm.dump()}
                    return Suggestion(decisions, algorithm_state=state)
        state = {_POOL: swarm.dump()}
        return Suggestion(draw_eligible(context, context.rng()), algorithm_state=state)


class _Firefly(NamedTuple):
    id: int
    trial: int  # The best one.
    perturbation: float  # Scale of the random moves.
    generation: int  # Number of improvements.


class _Swarm:
    """Vizier's designer for one suggestion, with conversion from and to the algorithm state."""

    def __init__(self, problem: FlatProblem, context: SuggestionContext) -> None:
        from vizier._src.algorithms.designers.eagle_strategy.eagle_strategy import (
            EagleStrategyDesigner,
        )
        from vizier.pyvizier.converters import embedder

        self._problem, self._number = problem, context.number
        self._seed = import_path.derive_seed(context.seed)
        seed = import_path.derive_seed(context.seed, context.number)
        self._rng_state = json.dumps(np.random.default_rng(seed).bit_generator.state)
        self._scaler = embedder.ProblemAndTrialsScaler(problem.statement)
        self._designer = EagleStrategyDesigner(problem.statement, seed=self._seed)
        self._trials: dict[str, int] = {}
        self._pending: list[int] = []

    def restore(self, observations: Sequence[Observation]) -> None:
        by_id = {trial.id: trial for trial in observations}
        self._pending = [trial.id for trial in observations if trial.state == 'pending']
        latest = next(
            (t for t in reversed(observations) if t.id > 0 and _POOL in t.algorithm_state), None
        )
        state = json.loads(latest.algorithm_state[_POOL]) if latest else {'flies': []}
        flies = [_Firefly(*fly) for fly in state['flies']]
        if latest and all(fly.trial in by_id and by_id[fly.trial].scores for fly in flies):
            unreported = {*state['pending'], latest.id}
            new = [
                trial for trial in observations if trial.id in unreported or trial.id > latest.id
            ]
            capacity, last, next_id = state['capacity'], state['last'], state['next']
        else:  # The first trial, or a trial is missing.
            flies, new = [], list(observations)
            capacity, last = int(self._pool()['capacity']), 0
            next_id = 1 + max(
                (int(trial.algorithm_state.get(_FIREFLY, -1)) for trial in observations), default=-1
            )
        pool = {str(fly.id): self._restored(fly, by_id[fly.trial]) for fly in flies}
        self._load({'capacity': capacity, '_last_id': last, '_max_fly_id': next_id, '_pool': pool})
        self._update([trial for trial in new if trial.state != 'pending'])

    def _restored(self, fly: _Firefly, trial: Observation) -> dict[str, Any]:
        (scaled,) = self._scaler.map([self._problem.trial(trial, 1)])
        dumped = {
            'parameters': scaled.parameters.as_dict(),
            'objective': trial.scores[0],
            'infeasibility_reason': None,
        }
        self._trials[_name(dumped)] = trial.id
        return {
            'id_': fly.id,
            'perturbation': fly.perturbation,
            'generation': fly.generation,
            'trial': dumped,
        }

    def _load(self, pool: dict[str, Any]) -> None:
        from vizier import pyvizier as vz

        metadata = vz.Metadata()
        state = metadata.ns('eagle')
        state['serialization_version'] = 'v1'
        state['dump_timestamp'] = '0'
        state['rng'] = self._rng_state
        state['firefly_pool'] = json.dumps(pool)
        halton = state.ns('random_designer').ns('quasi_random')
        halton['seed'] = str(self._seed)
        halton['skip_points'] = str(_SKIPPED + self._number - 1)
        self._designer.load(metadata)

    def _update(self, ended: Sequence[Observation]) -> None:
        from vizier import algorithms as vza

        made = []
        for i, trial in enumerate(ended):
            made.append(self._problem.trial(trial, i + 1))
            if _FIREFLY in trial.algorithm_state:
                made[-1].metadata.ns('eagle')['parent_fly_id'] = trial.algorithm_state[_FIREFLY]
        for trial, scaled in zip(ended, self._scaler.map(made), strict=True):
            if trial.scores:
                dumped = {'parameters': scaled.parameters.as_dict(), 'objective': trial.scores[0]}
                self._trials[_name(dumped)] = trial.id
        self._designer.update(vza.CompletedTrials(made), vza.ActiveTrials([]))

    def suggest(self) -> tuple[Decisions, str]:
        (suggestion,) = self._designer.suggest(1)
        fly = str(suggestion.metadata.ns('eagle')['parent_fly_id'])
        return self._problem.decisions(suggestion.parameters.as_dict()), fly

    def _pool(self) -> dict[str, Any]:
        pool: dict[str, Any] = json.loads(str(self._designer.dump().ns('eagle')['firefly_pool']))
        return pool

    def dump(self) -> str:
        pool = self._pool()
        flies = []
        for fly in pool['_pool'].values():
            trial = self._trials[_name(fly['trial'])]
            flies.append(_Firefly(fly['id_'], trial, fly['perturbation'], fly['generation']))
        state = {
            'flies': flies,
            'capacity': pool['capacity'],
            'last': pool['_last_id'],
            'next': pool['_max_fly_id'],
            'pending': self._pending,
        }
        return json.dumps(state)


def _name(dumped: dict[str, Any]) -> str:
    """Identity of a dumped trial: a firefly does not distinguish trials of the same name."""
    return json.dumps([sorted(dumped['parameters'].items()), float(dumped['objective'])])
