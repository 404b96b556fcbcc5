"""An algorithm that asks ahead, and shows in what it suggests all that it knew."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyglove as pg

from paxtune.algorithms import Algorithm, Request, Suggestion
from paxtune.algorithms.sampling import draw_open
from paxtune.rewards import MetricReward
from paxtune.runners import FunctionRunner
from paxtune.searching import Search
from paxtune.study import Study
from paxtune.tuner import Tuner
from trainer.signals import SkipTrial


class Digest(Algorithm):
    """Draws with all that it is told of earlier trials as the seed of its random numbers.

    Attributes:
        seconds: how long that takes.
        breaks_at: the number of the trial at which it raises.
    """

    seconds: float = 0.0
    breaks_at: int | None = None

    @property
    def asks_ahead(self) -> bool:
        return True

    def suggest(self, request: Request) -> Suggestion:
        time.sleep(self.seconds)
        if request.number == self.breaks_at:
            raise RuntimeError('this algorithm breaks')
        told = [(t.id, dict(t.decisions), t.state, t.scores) for t in request.history]
        decisions = draw_open(request, random.Random(repr((request.seed, request.number, told))))
        seen = ' '.join(f'{trial.id}:{trial.state}' for trial in request.history)
        return Suggestion(decisions, memo={'seen': seen, 'by': threading.current_thread().name})


def Ahead() -> Any:
    """Five small trials of two structures; each is traced before it is suggested."""
    # Imported here: it imports JAX.
    from tests.paxtune import tunables

    fields = {'search.num_trials': 5, 'search.algorithm': Digest(), 'search.early_stopping': None}
    return tunables.Kinds().rebind(fields)


def space() -> Any:
    """A range, and choices inside of a choice."""
    return pg.Dict(x=pg.floatv(-1.0, 1.0), kind=pg.oneof(['a', pg.oneof([1, 2])]))


def measured(value: Any) -> Iterator[dict[str, float]]:
    """Two measurements; some trials are infeasible."""
    for step in (1, 2):
        time.sleep(0.02)
        if value.x > 0.8:
            raise SkipTrial('too large')
        yield {'y': value.x**2 / step}


def main(directory: str) -> None:
    """Ten trials, in a process of their own."""
    search = Search(MetricReward('minimize', 'y'), num_trials=10, algorithm=Digest(seconds=0.02))
    with Study.open(directory, space(), search=search) as study:
        Tuner(study, FunctionRunner(measured)).run()


if __name__ == '__main__':
    main(sys.argv[1])
