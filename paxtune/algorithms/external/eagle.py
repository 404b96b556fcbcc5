"""Vizier's Eagle Strategy."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.algorithms.external import import_path
from paxtune.algorithms.external.vizier_problem import FlatProblem, designers_jax
from paxtune.search_space.decisions import Decisions
from trainer.symbolic.errors import UserError

_MAX_TRIES = 20
_FLY, _POOL = 'fly', 'pool'
_SKIPPED = 1000  # Points of the quasi-random sequence, as Vizier skips them.


class Eagle(Algorithm):
    """Vizier's Eagle Strategy: fireflies that are drawn to brighter ones (Yang 2009).

    The first trials are quasi-random (Halton); each that completes becomes a firefly, until there
    are 10 and some for each decision. Then the fireflies take turns: a suggestion is where one
    flies, towards the better ones near it and a little away from worse ones. One that does not get
    better moves less and less, and dies.

    Vizier's designer keeps the swarm; here it is noted with each trial (a kilobyte for 20
    decisions), as numbers of trials, so that a suggestion costs the same however many trials there
    are. Trials of earlier studies and those that people added join the swarm. Infeasible ones count
    as no success of their firefly. Decisions that are not open are in the middle of their range.

    Example:
        >>> spec = pg.dna_spec(pg.Dict(rate=pg.floatv(1e-4, 1e-2, 'log')))
        >>> Eagle().suggest(SuggestionContext(spec, 0, 1, list)).decisions
        {'rate': 0.00...}
    """

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        if num_objectives != 1:
            raise UserError(
                f'search.algorithm: Eagle is for one reward, and there are {num_objectives}. '
                'RegularizedEvolution searches for several, RandomSearch without any.'
            )

    def suggest(self, context: SuggestionContext) -> Suggestion:
        problem = FlatProblem(context.spec, 1)
        if not len(problem):
            return Suggestion(draw_eligible(context, context.rng()))
        with designers_jax():
            swarm = _Swarm(problem, context)
            swarm.restore(context.observations)
            for _ in range(_MAX_TRIES):
                decisions, fly = swarm.suggest()
                if context.is_eligible(decisions):
                    return Suggestion(decisions, algorithm_state={_FLY: fly, _POOL: swarm.dump()})
        algorithm_state = {_POOL: swarm.dump()}
        return Suggestion(draw_eligible(context, context.rng()), algorithm_state=algorithm_state)


@dataclasses.dataclass(frozen=True)
class _Fly:
    """A firefly as it is noted.

    Attributes:
        id: its number.
        trial: the trial that is its best.
        perturbation: how far it moves by chance.
        generation: how often it got better.
    """

    id: int
    trial: int
    perturbation: float
    generation: int


class _Swarm:
    """Vizier's designer for one suggestion, and the way from and to notes."""

    def __init__(self, problem: FlatProblem, context: SuggestionContext) -> None:
        from vizier._src.algorithms.designers.eagle_strategy.eagle_strategy import (
            EagleStrategyDesigner,
        )
        from vizier.pyvizier.converters import embedder

        self._problem, self._number = problem, context.number
        self._seed = import_path.seed_of(context.seed)
        seed = import_path.seed_of(context.seed, context.number)
        self._rng_state = json.dumps(np.random.default_rng(seed).bit_generator.state)
        self._scaler = embedder.ProblemAndTrialsScaler(problem.statement)
        self._designer = EagleStrategyDesigner(problem.statement, seed=self._seed)
        self._trials: dict[str, int] = {}
        self._pending: list[int] = []

    def restore(self, observations: Sequence[Observation]) -> None:
        """Brings the swarm to where it is after a history."""
        by_id = {trial.id: trial for trial in observations}
        self._pending = [trial.id for trial in observations if trial.state == 'pending']
        noted = next(
            (t for t in reversed(observations) if t.id > 0 and _POOL in t.algorithm_state), None
        )
        state = json.loads(noted.algorithm_state[_POOL]) if noted else None
        flies = [_Fly(*fly) for fly in state['flies']] if state else []
        if state and all(fly.trial in by_id and by_id[fly.trial].scores for fly in flies):
            assert noted is not None
            untold = {*state['pending'], noted.id}
            new = [trial for trial in observations if trial.id in untold or trial.id > noted.id]
            capacity, last, next_id = state['capacity'], state['last'], state['next']
        else:  # At the start, or where a trial is gone.
            flies, new = [], list(observations)
            capacity, last = self._capacity(), 0
            next_id = 1 + max(
                (int(trial.algorithm_state.get(_FLY, -1)) for trial in observations), default=-1
            )
        pool = {str(fly.id): self._loaded(fly, by_id[fly.trial]) for fly in flies}
        self._load({'capacity': capacity, '_last_id': last, '_max_fly_id': next_id, '_pool': pool})
        self._tell([trial for trial in new if trial.state != 'pending'])

    def _capacity(self) -> int:
        return int(self._dumped()['capacity'])

    def _loaded(self, fly: _Fly, trial: Observation) -> dict[str, Any]:
        (scaled,) = self._scaler.map([self._problem.trial(trial, 1)])
        shown = {
            'parameters': scaled.parameters.as_dict(),
            'objective': trial.scores[0],
            'infeasibility_reason': None,
        }
        self._trials[_name(shown)] = trial.id
        return {
            'id_': fly.id,
            'perturbation': fly.perturbation,
            'generation': fly.generation,
            'trial': shown,
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

    def _tell(self, ended: Sequence[Observation]) -> None:
        from vizier import algorithms as vza

        made = []
        for i, trial in enumerate(ended):
            made.append(self._problem.trial(trial, i + 1))
            if _FLY in trial.algorithm_state:
                made[-1].metadata.ns('eagle')['parent_fly_id'] = trial.algorithm_state[_FLY]
        for trial, scaled in zip(ended, self._scaler.map(made), strict=True):
            if trial.scores:
                shown = {'parameters': scaled.parameters.as_dict(), 'objective': trial.scores[0]}
                self._trials[_name(shown)] = trial.id
        self._designer.update(vza.CompletedTrials(made), vza.ActiveTrials([]))

    def suggest(self) -> tuple[Decisions, str]:
        """Decisions, and the firefly that they are from."""
        (suggestion,) = self._designer.suggest(1)
        fly = str(suggestion.metadata.ns('eagle')['parent_fly_id'])
        return self._problem.decisions(suggestion.parameters.as_dict()), fly

    def _dumped(self) -> dict[str, Any]:
        dumped: dict[str, Any] = json.loads(str(self._designer.dump().ns('eagle')['firefly_pool']))
        return dumped

    def dump(self) -> str:
        """The swarm as a note."""
        pool = self._dumped()
        flies = [
            dataclasses.astuple(
                _Fly(
                    fly['id_'],
                    self._trials[_name(fly['trial'])],
                    fly['perturbation'],
                    fly['generation'],
                )
            )
            for fly in pool['_pool'].values()
        ]
        return json.dumps(
            {
                'flies': flies,
                'capacity': pool['capacity'],
                'last': pool['_last_id'],
                'next': pool['_max_fly_id'],
                'pending': self._pending,
            }
        )


def _name(shown: dict[str, Any]) -> str:
    """A name for a trial as it is dumped: those of one name are the same to a firefly."""
    return json.dumps([sorted(shown['parameters'].items()), float(shown['objective'])])
