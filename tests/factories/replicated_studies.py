"""Studies whose decisions are tried more than once, for tests."""

from pathlib import Path
from typing import Any

import pyglove as pg

from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.config.search import Search
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import open_study
from paxtune.study.record import TrialRecord
from paxtune.study.running_trial import RunningTrial
from paxtune.study.study import Study
from paxtune.study.transitions import claim
from tests.factories.studies import ask
from tests.factories.toys import LOSS


def opened(directory: Path | None = None, space: Any = None, **fields: Any) -> Study:
    given = {'objective': LOSS, 'budget': Budget(99), 'algorithm': RandomSearch()} | fields
    search = Search(**given)
    return open_study(directory, space or pg.Dict(x=pg.floatv(0.0, 100.0)), search=search)


def finish(trial: RunningTrial, loss: float) -> RunningTrial:
    trial.report(1, {'loss': loss, 'size': loss**2})
    trial.complete()
    return trial


def ran(study: Study, *losses: float) -> Study:
    """The study, with so many more trials."""
    for loss in losses:
        finish(ask(study), loss)
    return study


def tried(study: Study) -> list[tuple[int, int | None, int]]:
    return [
        (trial.id, trial.lineage.replicate_of_here, trial.lineage.replicate)
        for trial in study.trials
    ]


def start_next(study: Study) -> RunningTrial:
    number = len(study.trials) + 1
    suggestion, lineage = study.suggester.next(number)
    parameters = to_parameters(study.space.spec, suggestion.decisions)
    record = TrialRecord(parameters, id=number, lineage=lineage)
    return study._add(claim(record, 'a', study.store.now()))


def confirmable(directory: Path | None = None, **fields: Any) -> Study:
    """A done study: trial 3 is the luckiest."""
    fields = {'budget': Budget(6)} | fields
    return ran(opened(directory, **fields), 5.0, 3.0, 2.0, 2.5, 6.0, 4.0)
