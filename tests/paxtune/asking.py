"""An algorithm with prefetched suggestions that record the observations it saw."""

import random
import sys
import threading
import time
from typing import Any

import pyglove as pg

from paxtune.algorithms import Algorithm, Suggestion, SuggestionContext
from paxtune.algorithms.encoding.sampling import draw_eligible
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.open_study import open_study
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study


class Digest(Algorithm):
    """Draws with all observations as the seed of its random numbers.

    Attributes:
        seconds: duration of a suggestion.
        breaks_at: number of the trial at which it raises.
    """

    prefetches = True
    prefetch_share = 0.0

    seconds: float = 0.0
    breaks_at: int | None = None

    def suggest(self, context: SuggestionContext) -> Suggestion:
        time.sleep(self.seconds)
        if context.number == self.breaks_at:
            raise RuntimeError('this algorithm breaks')
        seen_trials = [(t.id, dict(t.decisions), t.state, t.scores) for t in context.observations]
        decisions = draw_eligible(
            context, random.Random(repr((context.seed, context.number, seen_trials)))
        )
        seen = ' '.join(f'{trial.id}:{trial.state}' for trial in context.observations)
        return Suggestion(
            decisions, algorithm_state={'seen': seen, 'by': threading.current_thread().name}
        )


def Ahead() -> Any:
    """Five small trials of two structures; each is traced before it is suggested."""
    # Imported here: it imports JAX.
    from tests.paxtune import tunables

    fields = {'search.budget.trials': 5, 'search.algorithm': Digest(), 'search.scheduler': None}
    return tunables.Kinds().rebind(fields)


def space() -> Any:
    """A range, and choices inside of a choice."""
    return pg.Dict(x=pg.floatv(-1.0, 1.0), kind=pg.oneof(['a', pg.oneof([1, 2])]))


def finish(study: Study, trial: RunningTrial) -> None:
    """Ends a trial as it always ends: by what its decisions are."""
    x = trial.materialize().x
    if x > 0.8:
        study.tell(trial, infeasible='too large')
        return
    for step in (1, 2):
        trial.report(step, {'y': x**2 / step})
    study.tell(trial)


def main(directory: str) -> None:
    """Ten trials, in a process of their own."""
    search = Search(
        MetricReward('minimize', 'y'), budget=Budget(10), algorithm=Digest(seconds=0.02)
    )
    with open_study(directory, space(), search=search) as study:
        while (trial := study.ask()) is not None:
            finish(study, trial)


if __name__ == '__main__':
    # The classes by the name under which others know them.
    from tests.paxtune import asking

    asking.main(sys.argv[1])
