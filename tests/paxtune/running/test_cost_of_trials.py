"""The work that a trial of a function takes does not grow with its study."""

import datetime
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyglove as pg
import pytest

from paxtune.algorithms import QuasiRandom, RandomSearch
from paxtune.algorithms.encoding.sampling import draw
from paxtune.config.budget import Budget
from paxtune.config.faults import Faults
from paxtune.config.search import Search
from paxtune.objectives.measurement import Measurement
from paxtune.objectives.rewards import MetricReward
from paxtune.running.callbacks import Callback
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.tuner import Tuner
from paxtune.schedulers import Asha, MedianStopping
from paxtune.search_space.parameters import to_parameters
from paxtune.storage.open_study import open_study
from paxtune.study.record import RunTime, Status, TrialRecord
from paxtune.study.study import Study
from paxtune.study.trial import Trial

OBJECTIVE = MetricReward('minimize', 'objective')
RANGES = pg.Dict(x=pg.floatv(0.0, 1.0), y=pg.floatv(0.0, 1.0))
CHOICES = pg.Dict(x=pg.oneof([*range(500)]), y=pg.oneof([*range(500)]))
STEPS = (1, 2, 3)


class Calls(Callback):
    """Counts the calls of Python functions from the end of one trial to the next."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._count = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        self._count += event == 'call'

    def on_trial_end(self, study: Study, trial: Trial) -> None:
        self.counts.append(self._count)
        self._count = 0


def ended(study: Study, count: int) -> Iterator[TrialRecord]:
    rng = random.Random(0)
    for _ in range(count):
        measured = tuple(Measurement(step, {'objective': 1.0}, (rng.random(),)) for step in STEPS)
        yield TrialRecord(
            to_parameters(study.space.spec, draw(study.space.spec, rng)),
            status=Status.COMPLETED,
            ended=datetime.datetime.now(datetime.UTC),
            measurements=measured,
            final=measured[-1],
            run_time=RunTime(1.0),
        )


def calls_of_a_trial(count: int, space: Any, directory: Path | None, **fields: Any) -> int:
    """The calls that one more trial takes, in a study with some ended ones."""
    fields = {'algorithm': RandomSearch()} | fields
    fields['budget'] = Budget(count + 3, **fields.get('budget', {}))
    with open_study(directory, space, search=Search(OBJECTIVE, **fields)) as study:
        study.store.add_trials(list(ended(study, count)))
        calls = Calls()
        tuner = Tuner(study, FunctionRunner(lambda x, y: iter([x + y] * len(STEPS))), [calls])
        sys.setprofile(calls)
        try:
            tuner.run()
        finally:
            sys.setprofile(None)
        return min(calls.counts[1:])


@pytest.mark.parametrize(
    ('space', 'fields'),
    [
        (RANGES, {}),
        (CHOICES, {}),
        (RANGES, {'algorithm': QuasiRandom()}),
        (RANGES, {'scheduler': Asha(min_resource=1, max_resource=9)}),
        (RANGES, {'scheduler': MedianStopping()}),
        (RANGES, {'budget': {'hours': 100.0, 'target_reward': -1.0}}),
        (RANGES, {'faults': Faults(max_failures=3, max_consecutive_failures=3)}),
    ],
    ids=['ranges', 'choices', 'quasi-random', 'asha', 'median', 'hours', 'failures'],
)
def test_the_work_of_a_trial_does_not_grow_with_its_study(
    space: Any, fields: dict[str, Any]
) -> None:
    few, many = (calls_of_a_trial(count, space, None, **fields) for count in (100, 1000))
    assert many < 1.2 * few


def test_the_work_of_a_trial_in_a_directory_does_not_grow(tmp_path: Path) -> None:
    few, many = (calls_of_a_trial(n, RANGES, tmp_path / str(n)) for n in (100, 1000))
    assert many < 1.2 * few
