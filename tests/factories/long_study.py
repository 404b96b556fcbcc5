"""A large study for a report: 100 trials with long, noisy curves and many decisions."""

from pathlib import Path

import numpy as np
import pyglove as pg

from paxtune import Budget, MetricReward, RandomSearch, Search
from paxtune.objectives.measurement import Measurement
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import open_study
from paxtune.study.record import Status, TrialRecord
from paxtune.study.study import Study

NUM_TRIALS = 100
EVIL = '<script>document.title = "stolen"</script>'
SPACE = pg.Dict(
    **{f'a_decision_of_some_length_{i}': pg.floatv(1e-4, 1e-1, 'log') for i in range(12)},
    kind=pg.oneof(['plain', 'other', EVIL]),
)


def make_long_study(directory: Path) -> None:
    """Makes the study. Every tenth trial is infeasible."""
    search = Search(MetricReward('minimize', 'loss'), Budget(NUM_TRIALS), RandomSearch())
    with open_study(directory, SPACE, search=search) as study:
        rng = np.random.default_rng(0)
        study.store.add_trials([_trial(study, i, rng) for i in range(1, NUM_TRIALS + 1)])


def _trial(study: Study, number: int, rng: np.random.Generator) -> TrialRecord:
    decisions = study.suggester.next(number)[0].decisions
    losses = rng.random(300)  # Random digits compress worst.
    measured = tuple(
        Measurement(step, {'loss': float(loss)}, (float(loss),))
        for step, loss in enumerate(losses, start=1)
    )
    is_infeasible = number % 10 == 0
    return TrialRecord(
        to_parameters(study.space.spec, decisions),
        id=number,
        status=Status.INFEASIBLE if is_infeasible else Status.COMPLETED,
        measurements=measured,
        final=None if is_infeasible else measured[-1],
        reason=f'no memory {EVIL}' if is_infeasible else None,
        created=study.store.now(),
        ended=study.store.now(),
        seconds=float(rng.random()),
    )
