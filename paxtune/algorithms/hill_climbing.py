from collections.abc import Sequence

import pyglove as pg

from paxtune.algorithms.base import Algorithm, Observation, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import changeable_points, mutate
from paxtune.algorithms.quasi_random import draw_quasi_random
from trainer.symbolic.component import require_above_zero

_MAX_TRIES = 100


class HillClimbing(Algorithm):
    """Small changes of the best trial; restarts elsewhere when none of them is better.

    A climb begins with a few quasi-random trials. Each later trial differs from the best of its
    climb in one decision: a number moves a step, a choice changes to another candidate. Trials
    that run at the same time have the same parent and differ from each other. The first climb
    includes trials of earlier studies and of users.

    S. Russell, P. Norvig, "Artificial Intelligence: A Modern Approach", 4th edition, §4.1.1
    (stochastic hill climbing with random restarts).

    Attributes:
        starts: number of trials that a climb begins with.
        step: standard deviation of a step of a number, relative to the range on its scale.
        patience: number of ended children without an improvement before a restart.
    """

    names_parents = True

    starts: int = 5
    step: float = 0.2
    patience: int = 30

    def check(self) -> None:
        require_above_zero(self, 'starts', 'step', 'patience')

    def check_space(self, spec: pg.DNASpec, num_objectives: int) -> None:
        self._require_reward(num_objectives, exactly_one=True)

    def suggest(self, context: SuggestionContext) -> Suggestion:
        rng = context.rng()
        climb = max(map(_climb, context.observations), default=0)
        trials = [trial for trial in context.observations if _climb(trial) == climb]
        started = sum(trial.state != 'infeasible' for trial in trials)
        completed = [trial for trial in trials if trial.scores]
        if completed and started >= self.starts:
            # The oldest wins a tie.
            best = max(completed, key=lambda trial: (trial.scores, -trial.id))
            algorithm_state = {'climb': str(climb), 'from': str(best.id)}
            if _num_children(trials, best) < self.patience and changeable_points(
                context.spec, best.decisions
            ):
                for _ in range(_MAX_TRIES):
                    child = mutate(context.spec, best.decisions, rng, self.step)
                    if context.is_eligible(child):
                        return Suggestion(child, best.id if best.id > 0 else None, algorithm_state)
            climb += 1  # A local optimum, or all of its neighbours were tried.
        return Suggestion(draw_quasi_random(context), algorithm_state={'climb': str(climb)})


def _climb(trial: Observation) -> int:
    return int(trial.algorithm_state.get('climb', 0)) if trial.id > 0 else 0


def _num_children(trials: Sequence[Observation], parent: Observation) -> int:
    name = str(parent.id)
    return sum(
        trial.id > 0 and trial.state != 'pending' and trial.algorithm_state.get('from') == name
        for trial in trials
    )
