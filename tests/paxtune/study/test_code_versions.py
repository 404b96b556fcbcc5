"""Versions of the users' code in a study: one line says where a later process has other code."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

from paxtune.analysis.checks import checks
from paxtune.api import tune
from paxtune.storage.open_study import load_study, open_study
from paxtune.study import code_versions
from paxtune.study.record import CodeVersion
from paxtune.study.redefinition import fingerprint, is_redefinition
from paxtune.study.study import Study
from tests.factories.toys import Toy, toy

NAME = 'tests.paxtune.study.test_code_versions'


def epochs(count: int) -> Callable[..., Any]:
    def objective(x: float) -> float:
        return x * count

    return objective


def searched(directory: Path | None, count: int, num_trials: int, **more: Any) -> Study:
    return tune(
        epochs(count),
        space=None if 'study' in more else {'x': pg.floatv(0.0, 1.0)},
        num_trials=num_trials,
        objective='minimize',
        job_log_dir=directory,
        **more,
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [each.getMessage() for each in caplog.records if 'the code of' in each.getMessage()]
    caplog.clear()
    return lines


def test_a_changed_function_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for count, num_trials, is_changed in ((8, 2, 0), (8, 3, 0), (4, 4, 1), (4, 5, 0), (8, 6, 1)):
        searched(tmp_path, count, num_trials).close()
        lines = warnings(caplog)
        assert len(lines) == is_changed
        last = f'trials up to {num_trials - 1} of this study'
        assert all(
            f'{NAME}.epochs.<locals>.objective has changed since {last}' in each for each in lines
        )
    with load_study(tmp_path) as study:
        record = study.record
        warned = [each.name for each in checks(study) if each.kind == 'code']
    assert [each.since for each in record.code] == [1, 4, 6]
    name = f'{NAME}.epochs.<locals>.objective'
    assert code_versions.changes(record) == [(4, [name]), (6, [name])]
    assert warned == [name, name]
    assert code_versions.of_trial(record, 3) == record.code[0]
    assert code_versions.of_trial(record, 5) == record.code[1]


def test_a_study_in_memory_knows_its_code(caplog: pytest.LogCaptureFixture) -> None:
    study = searched(None, 8, 1)
    searched(None, 4, 2, study=study)
    assert len(warnings(caplog)) == 1


def power_of(power: int) -> Any:
    class Power:
        def __call__(self, x: float) -> float:
            return x**power

    return Power()


def test_a_changed_class_is_named() -> None:
    before, now = (code_versions.current(toy(layer=pg.Dict(of=power_of(n)))) for n in (2, 3))
    assert code_versions.changed(before, now) == [f'{NAME}.power_of.<locals>.Power']
    assert code_versions.changed(before, before) == []


def test_code_that_no_trial_ran_with_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_study(tmp_path, toy()) as study:
        old = CodeVersion(study.record.code[0].python, {'toys.Toy': 'other'})
        study.store.update_study(lambda record: dataclasses.replace(record, code=(old,)))
    with open_study(tmp_path, toy()) as study:
        assert study.record.code == (code_versions.current(study.value, study.search),)
    assert not warnings(caplog)


def test_another_python_or_an_older_study_is_not_compared() -> None:
    now = code_versions.current(toy())
    assert code_versions.changed(None, now) == []
    assert code_versions.changed(dataclasses.replace(now, python='other', hashes={}), now) == []
    assert f'{Toy.__module__}.Toy' in now.hashes


def test_the_code_is_no_part_of_the_definition(tmp_path: Path) -> None:
    with open_study(tmp_path, toy()) as study:
        stored = study.record
    other = dataclasses.replace(stored, code=())
    assert is_redefinition(stored, other)
    assert fingerprint(stored) == fingerprint(other)
