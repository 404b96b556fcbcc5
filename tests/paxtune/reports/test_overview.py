"""The overview of a study, which is read without its classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune import Budget
from paxtune.reports.overview import Overview
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, run
from tests.factories.toys import OBJECTIVES, search, toy


def _add_hours(study: Study) -> None:
    finish(trial := ask(study))
    trial.set_time(3600.0, 2)


@pytest.mark.parametrize(
    ('fields', 'act', 'is_done'),
    [
        ({}, run, True),
        ({'budget': Budget(2)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(1)}, ask, False),
        ({'budget': Budget(5, target_reward=0.5)}, lambda study: finish(ask(study)), True),
        ({'budget': Budget(5, target_reward=1e-9)}, lambda study: finish(ask(study)), False),
        ({'budget': Budget(5, hours=1.0)}, _add_hours, True),
        ({'budget': Budget(5, hours=1.5)}, _add_hours, False),
        ({'budget': Budget(5, device_hours=1.5)}, _add_hours, True),
        ({'budget': Budget(20), 'objective': OBJECTIVES}, run, True),
        ({'objective': None}, run, True),
    ],
)
@pytest.mark.parametrize('is_finite', [False, True])
@pytest.mark.fast(8)
def test_the_overview_says_what_the_study_says(
    tmp_path: Path,
    fields: dict[str, Any],
    act: Callable[[Study], Any],
    is_done: bool,
    is_finite: bool,
) -> None:
    space = {'rate': pg.oneof([0.1, 0.2]), 'layer': None, 'widths': pg.oneof([1, 2])}
    value = toy(search=search(**fields), **(space if is_finite else {}))
    with open_study(tmp_path, value) as study:
        act(study)
        found = Overview.read(DirectoryLocation(str(tmp_path)))
        assert found.is_done == study.is_done == is_done
        assert found.num_trials == study.num_trials
        assert sum(found.counts.values()) == len(study.trials)
        if len(study.rewards) == 1:
            assert found.best == (study.best.reward if study.best else None)
        if len(study.rewards) > 1:
            assert found.front == len(study.pareto_front)
