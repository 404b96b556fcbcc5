"""The checks of `benchmarks/chaos.py` hold for studies without faults, and find what is wrong."""

import logging
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from benchmarks.chaotic import checks
from benchmarks.chaotic.experiment import FATES, NUM_FATES, REASONS, Chaotic
from paxtune.algorithms import RandomSearch
from paxtune.config.budget import Budget
from paxtune.running.function_runner import FunctionRunner
from paxtune.running.json_logs import JsonLines
from paxtune.running.tuner import Tuner
from paxtune.search_space.space import Space
from paxtune.storage.open_study import open_study
from paxtune.study.study import Study
from paxtune.worker import LogCallback
from tests.factories.function_studies import OBJECTIVE, search

SPACE = pg.Dict(train_input=pg.Dict(fate=pg.oneof(list(range(NUM_FATES)))))


def objective(values: Any) -> float:
    number = values.train_input.fate
    if number in FATES:
        raise RuntimeError(REASONS[FATES[number]])
    return float(number)


def searched(log: Path, **fields: Any) -> Study:
    """A study of all fates, and a log as a worker writes it."""
    made = search(objective=OBJECTIVE, algorithm=RandomSearch(), **fields)
    study = open_study(None, SPACE, search=made)
    lines = JsonLines(log, {})
    logging.getLogger('paxtune').addHandler(lines)
    Tuner(study, FunctionRunner(objective), [LogCallback(lines.context)]).run()
    logging.getLogger('paxtune').removeHandler(lines)
    return study


def test_checks_hold_without_faults_and_find_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, 'paxtune')
    log = tmp_path / 'worker.jsonl'
    study = searched(log, budget=Budget(NUM_FATES))
    well = [trial.decisions for trial in study.trials if checks.fate(trial) is None]
    fields = {'budget': Budget(len(well)), 'initial_trials': well}
    undisturbed = searched(tmp_path / 'undisturbed.jsonl', **fields)
    found = checks.check(study, undisturbed, NUM_FATES, [log])
    assert [str(each) for each in found if each.wrong] == []
    assert min(each.count for each in found) == NUM_FATES - len(FATES)
    study.delete_trial(study.trials[-1].id)
    assert any(each.wrong for each in checks.check(study, undisturbed, NUM_FATES, [log]))


def test_the_experiment_can_be_searched() -> None:
    space = Space(Chaotic())
    assert {'train_input.fate', 'task.learner.learning_rate'} == {
        each.id.path for each in space.spec.elements
    }
