"""An algorithm whose suggestions record the observations that it saw."""

import random
import sys
from pathlib import Path
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

REWARD = MetricReward('minimize', 'y')


class Digest(Algorithm):
    """Draws with all observations as the seed of its random numbers."""

    def suggest(self, context: SuggestionContext) -> Suggestion:
        trials = [(t.id, dict(t.decisions), t.state, t.scores) for t in context.observations]
        rng = random.Random(repr((context.seed, context.number, trials)))
        seen = ' '.join(f'{trial.id}:{trial.state}' for trial in context.observations)
        return Suggestion(draw_eligible(context, rng), algorithm_state={'seen': seen})


def space() -> Any:
    """A range, and choices inside of a choice."""
    return pg.Dict(x=pg.floatv(-1.0, 1.0), kind=pg.oneof(['a', pg.oneof([1, 2])]))


def opened(directory: Path | str | None = None, **fields: Any) -> Study:
    """A study of eight trials by `Digest`; the fields are those of its search."""
    search = Search(REWARD, **({'budget': Budget(8), 'algorithm': Digest()} | fields))
    return open_study(directory, space(), search=search)


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
    with opened(directory, budget=Budget(10)) as study:
        while (trial := study.ask()) is not None:
            finish(study, trial)


if __name__ == '__main__':
    # The classes by the name under which others know them.
    from tests.factories import digest_studies as asking

    asking.main(sys.argv[1])
