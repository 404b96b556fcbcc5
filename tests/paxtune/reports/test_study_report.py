"""The content of reports on studies."""

from pathlib import Path
from typing import Any

import pyglove as pg
import pytest

import paxtune
from paxtune.algorithms import Algorithm
from paxtune.api import tune
from paxtune.config.budget import Budget
from paxtune.reports import study_report
from paxtune.reports.next_trial import next_trials
from paxtune.reports.study_report import Section
from paxtune.running.workloads import workload_of
from paxtune.search_space.constraints import Requires
from paxtune.service.study_location import DirectoryLocation
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, mixed, rename_module
from tests.factories.toys import OBJECTIVES, search, toy


def report(study: Study, train: str = '') -> dict[str, Section]:
    return {each.key: each for each in study_report.sections(study, 'here', train)}


def rows_of(section: Section, index: int) -> list[dict[str, Any]]:
    return [dict(row) for row in section.tables[index].rows]


def test_a_report_counts_states_and_faults(tmp_path: Path) -> None:
    mixed(tmp_path / 'study')
    with load_study(tmp_path / 'study') as study:
        found = report(study)['progress'].data
    assert found['states'] == {
        'completed': 3, 'stopped': 1, 'infeasible': 2, 'active': 1, 'requested': 1
    }  # fmt: skip
    assert found['faults']['failed with an error'] == 1
    assert found['infeasible'] == [{'count': 2, 'reason': 'the training loss is nan at step 7'}]
    assert found['done'] is None


def test_a_report_shows_the_space_and_its_constraints() -> None:
    made = search(
        constraints=[Requires('rate < 0.05', 'too fast')],
        limits=[paxtune.Limit('num_params', at_most=2e6)],
        seed=7,
    )
    with open_study(None, toy(search=made)) as study:
        found = report(study)
    searched = found['searched'].data
    assert [row['path'] for row in searched['decisions']] == [
        'rate', 'layer', 'layer.heads', 'widths'
    ]  # fmt: skip
    assert searched['constraints'] == ["Requires(condition='rate < 0.05', reason='too fast')"]
    assert searched['limits'] == ['num_params ≤ 2e+06']
    how = found['how'].data
    assert (how['seed'], how['algorithm']) == (7, 'RandomSearch')
    assert how['objective'] == ['loss (minimize)']


def test_a_report_has_the_uncertainty_over_replicates() -> None:
    with open_study(None, toy(search=search(replicates=2, budget=Budget(4)))) as study:
        for loss in (1.0, 3.0, 5.0, 5.5):
            study.tell(ask(study), {'loss': loss, 'accuracy': 0.0})
        found = report(study)['best']
    best = found.data[0]
    assert best['loss'] == pytest.approx(2.0)
    assert best['± loss'] == pytest.approx(1.0)
    assert best['replicates'] == 2
    assert 2.0 < best['expected loss'] < found.data[1]['expected loss']
    assert 'standard error' in found.remarks[0]


def test_a_report_without_replicates_says_that_the_noise_is_unknown() -> None:
    with open_study(None, toy()) as study:
        finish(ask(study))
        found = report(study)['best']
    assert '± loss' not in found.data[0]
    assert 'noise of the rewards is unknown' in found.remarks[0]


def test_a_report_of_several_rewards_has_the_front_and_each_importance() -> None:
    with open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(6)))) as study:
        for loss, accuracy in ((1.0, 0.5), (0.5, 0.4), (2.0, 0.3), (0.4, 0.1)):
            study.tell(ask(study), {'loss': loss, 'accuracy': accuracy})
        found = report(study)
    assert [row['trial'] for row in found['best'].data] == [1, 2, 4]
    assert {'fANOVA of loss', 'impurity of accuracy'} <= {*found['importance'].data[0]}


def test_a_report_names_best_values_at_an_edge() -> None:
    with open_study(None, pg.Dict(x=pg.floatv(0.0, 1.0)), search=search()) as study:
        for x in (1.0, 0.5):
            study.add({'x': x})
            study.tell(ask(study), {'loss': 1.0 - x})
        found = report(study)['edges'].data
    assert found == [{'decision': 'x', 'low': 0.0, 'high': 1.0, 'trials': [1]}]


@pytest.mark.parametrize('algorithm', [paxtune.RandomSearch(), paxtune.GPBandit()])
def test_the_next_suggestion_is_the_one_that_the_search_makes(
    tmp_path: Path, algorithm: Algorithm
) -> None:
    made = search(algorithm=algorithm)
    with open_study(tmp_path / 'study', toy(search=made)) as study:
        for _ in range(2):
            finish(ask(study))
    with load_study(tmp_path / 'study') as view:
        before = [trial.record for trial in view.trials]
        rows, remark = next_trials(view)
        assert [trial.record for trial in view.trials] == before
    assert remark == ''
    with open_study(tmp_path / 'study', toy(search=made)) as study:
        trial = ask(study)
    assert rows[-1]['trial'] == trial.id
    assert rows[-1]['decisions'] == trial.decisions
    assert rows[-1]['origin'] == type(algorithm).__name__


def test_waiting_trials_come_before_the_next_suggestion() -> None:
    with open_study(None, toy()) as study:
        study.add({'rate': 0.05})
        rows, _ = next_trials(study)
    assert [(row['trial'], row['origin']) for row in rows] == [(1, 'added'), (2, 'RandomSearch')]


def test_a_done_study_has_no_next_suggestion() -> None:
    with open_study(None, toy(search=search(budget=Budget(1)))) as study:
        finish(ask(study))
        assert next_trials(study) == ([], 'The study is done: it has its only trial.')


def test_missing_classes_leave_the_next_suggestion_out(tmp_path: Path) -> None:
    with open_study(tmp_path / 'study', toy()) as study:
        finish(ask(study))
        rename_module(study, 'tests.factories.toys', 'gone.away')
    with DirectoryLocation(str(tmp_path / 'study')).open() as study:
        rows, remark = next_trials(study)
        assert report(study)['best'].data[0]['trial'] == 1
    assert rows == []
    assert 'import gone.away first' in remark


def test_a_report_has_the_commands_quoted(tmp_path: Path) -> None:
    space = pg.Dict(x=pg.floatv(0.0, 1.0))
    argv = ['paxtune.search', '--job_log_dir', 'x', '--set', 'name=a b; rm', '--job_log_dir=y']
    what = workload_of(lambda x: x, space, command=tuple(argv))
    directory = tmp_path / 'a study'
    with tune(what, objective='minimize', num_trials=1, job_log_dir=directory) as study:
        found = report(study, 'train it')
    repeat = found['commands'].data['repeat']
    assert repeat.startswith("python -m paxtune.search --set 'name=a b; rm' ")
    assert repeat.endswith(f"'--job_log_dir={tmp_path}/a study-repeated'")
    assert found['commands'].commands[-1] == 'train it'
    assert found['versions'].data['versions']['jax']


def test_a_report_of_an_empty_study_is_complete() -> None:
    with open_study(None, toy(search=search(objective=None))) as study:
        found = report(study)
    assert found['best'].remarks == ['No trial was completed yet.']
    assert found['how'].data['objective'] == []


def test_a_report_of_a_search_without_rewards_says_that_none_is_better() -> None:
    space = pg.Dict(x=pg.floatv(0.0, 1.0))
    with open_study(None, space, search=paxtune.Search(None, budget=Budget(1))) as study:
        trial = ask(study)
        trial.report(1, {'loss': 1.0})
        trial.complete()
        remarks = report(study)['best'].remarks
    assert remarks == ['The search has no objective: no trial is better than another.']
