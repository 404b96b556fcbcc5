"""Attributes of trials."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyglove as pg
import pytest

import paxtune
from paxtune.reports.study_tables import facts_of, trials_of
from paxtune.reports.tables import to_text
from paxtune.running.callbacks import Callback
from paxtune.service.schema import RequestRejectedError
from paxtune.storage.codec import encode_trial, parse_trial
from paxtune.storage.open_study import load_study, open_study
from paxtune.study import export, trial_import
from paxtune.study.study import Study
from paxtune.study.transitions import IllegalTransition
from tests.factories.clocked_service import Service
from tests.factories.function_studies import OBJECTIVE, SPACE, search
from tests.factories.studies import ask, finish
from trainer.symbolic.errors import UserError

VALUES: dict[str, Any] = {
    'data': 'v2',
    'rows': 2**62,
    'share': 0.25,
    'is_clean': True,
    'whole': 3.0,
}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(Service(tmp_path / 'studies.db')) as made:
        yield made


class Marks(Callback):
    """Sets an attribute at each measurement."""

    def on_measurement(self, study: Any, trial: Any, measurement: Any) -> None:
        study.open_trial(trial.id).set_attribute('measured', measurement.step)


def train(x: float, trial: Any) -> float:
    for name, value in VALUES.items():
        trial.set_attribute(name, value)
    return x


def trained(directory: Path | None = None) -> Study:
    return paxtune.tune(
        train,
        space={'x': pg.floatv(0.0, 1.0)},
        objective='minimize',
        num_trials=2,
        callbacks=[Marks()],
        job_log_dir=directory,
    )


def test_a_function_and_a_callback_set_attributes(tmp_path: Path) -> None:
    trained(tmp_path).close()
    with load_study(tmp_path) as study:
        for trial in study.trials:
            assert trial.attributes == VALUES | {'measured': 1}
            assert {type(own) for own in trial.attributes.values()} == {str, int, float, bool}


def test_tables_have_a_column_for_each_attribute() -> None:
    study = trained()
    page = trials_of(study)
    assert page.data[0]['attributes.data'] == 'v2'
    assert {'attributes.data', 'attributes.rows', 'attributes.is_clean'} <= set(page.columns)
    chosen = trials_of(study, sort='share', only='trial,attributes')
    assert list(chosen.tables[0].columns) == [
        'trial', 'data', 'is_clean', 'measured', 'rows', 'share', 'whole'
    ]  # fmt: skip
    frame = study.to_pandas()
    assert frame['attributes.share'].tolist() == [0.25, 0.25]
    assert 'attributes.data' in to_text(facts_of(study, study.trials[0]).tables[0])
    assert 'attributes.data' in study.trials[0]._repr_html_()


def test_attributes_that_differ_stand_in_the_table_of_trials() -> None:
    study = open_study(None, SPACE, search=search())
    for data in ('small', 'large', 'large'):
        trial = ask(study)
        trial.set_attribute('data', data)
        study.tell(trial, {'loss': 1.0})
    assert 'small' in to_text(trials_of(study).tables[0])


def test_optuna_has_them_as_user_attributes() -> None:
    study = trained()
    known = study.to_optuna().trials[0].user_attrs
    assert {name: known[name] for name in VALUES} == VALUES


def test_an_attribute_hides_nothing_from_optuna() -> None:
    study = open_study(None, SPACE, search=search())
    trial = ask(study)
    trial.set_attribute('seconds', 'many')
    known = study.to_optuna().trials[0].user_attrs
    assert known['attributes.seconds'] == 'many' and known['seconds'] == trial.view.seconds


def test_attributes_are_exported_and_imported() -> None:
    data = json.loads(json.dumps([export.content(each) for each in trained().trials]))
    made = search(objective=OBJECTIVE)
    target = open_study(None, pg.Dict(x=pg.floatv(0.0, 1.0)), search=made)
    assert trial_import.import_trials(target, data, 'a file') == 2
    assert target.trials[0].attributes == VALUES | {'measured': 1}
    data[0].pop('attributes')  # As an older version exports it.
    assert trial_import.import_trials(target, data, 'another') == 2
    for damage in ({'x': 'y' * 1001}, {'x': [1]}, {str(i): i for i in range(65)}, ['x']):
        data[0]['attributes'] = damage
        with pytest.raises(UserError, match='not a trial'):
            trial_import.import_trials(target, data, 'a third')


@pytest.mark.parametrize(
    ('name', 'value', 'reason'),
    [
        ('', 1, 'printable name'),
        ('a\nb', 1, 'printable name'),
        ('x' * 101, 1, 'at most 100'),
        ('x', float('nan'), 'must be finite'),
        ('x', float('-inf'), 'must be finite'),
        ('x', 2**63, '64 bits'),
        ('x', 'y' * 1001, '1,001 characters'),
        ('x', '\ud800', 'no text'),
        ('x', [1], 'not a list'),
        ('x', None, 'not a NoneType'),
    ],
)
def test_other_values_are_refused(name: str, value: Any, reason: str) -> None:
    trial = ask(open_study(None, SPACE, search=search()))
    with pytest.raises(ValueError, match=reason):
        trial.set_attribute(name, value)
    assert trial.view.attributes == {}


@pytest.mark.parametrize('value', [np.float32(0.5), np.int64(3), np.bool_(True), np.array(2.5)])
def test_scalars_of_numpy_become_plain(value: Any) -> None:
    trial = ask(open_study(None, SPACE, search=search()))
    trial.set_attribute('x', value)
    assert trial.view.attributes['x'] == value.item()
    assert type(trial.view.attributes['x']) is type(value.item())


def test_a_trial_has_at_most_64_attributes_and_none_after_its_end() -> None:
    study = open_study(None, SPACE, search=search())
    trial = ask(study)
    for number in range(64):
        trial.set_attribute(f'x{number}', number)
    trial.set_attribute('x0', 'again')
    with pytest.raises(ValueError, match='one too many'):
        trial.set_attribute('another', 1)
    assert len(study.trials[0].attributes) == 64
    study.tell(trial, {'loss': 1.0})
    with pytest.raises(IllegalTransition, match='COMPLETED'):
        trial.set_attribute('x0', 1)
    assert study.trials[0].attributes['x0'] == 'again'


def test_attributes_survive_a_lost_attempt_of_a_service(service: Service) -> None:
    first = ask(service.study('a'))
    first.set_attribute('host', 'one')
    first.release('after step 3')
    second = ask(service.study('b'))
    assert second.view.attributes == {'host': 'one'}
    second.set_attribute('host', 'two')
    finish(second)
    assert service.study('c').trials[0].attributes == {'host': 'two'}


@pytest.mark.parametrize(
    'hostile', [{'x': 'y' * 1001}, {'x' * 101: 1}, {'': 1}, {str(i): i for i in range(65)}]
)
def test_a_service_refuses_attributes_beyond_the_bounds(
    service: Service, hostile: dict[str, Any]
) -> None:
    ask(service.study('a'))
    stored = service.coordinator.changes('', 0).trials[0]
    proto = encode_trial(dataclasses.replace(parse_trial(stored), attributes=hostile))
    with pytest.raises(RequestRejectedError) as refusal:
        service.coordinator.update(1, '', proto.SerializeToString(), 'a', 1, 'r1')
    assert refusal.value.code == 'invalid'
