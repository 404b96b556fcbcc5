"""The columns of trials, and a study as a data frame."""

from pathlib import Path

import pytest

from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.study.columns import columns_of, named, ordered, row_of
from paxtune.study.study import Study
from tests.factories.studies import ask, finish, study_of_all_kinds
from tests.factories.toys import OBJECTIVES, search, toy
from trainer.symbolic.errors import UserError


def test_a_study_as_a_data_frame(tmp_path: Path) -> None:
    with study_of_all_kinds(tmp_path) as study:
        frame = study.to_pandas()
        assert list(frame.index) == [1, 2, 3, 4]
        assert list(frame.state) == ['completed', 'stopped', 'infeasible', 'active']
        assert list(frame.stopped) == [False, True, False, False]
        assert frame.loc[1, 'loss'] == study.trials[0].reward
        assert frame.loc[1, 'metrics.accuracy'] == study.trials[0].metrics['accuracy']
        assert frame.loc[2, 'decisions.rate'] == study.trials[1].decisions['rate']
        assert frame['loss'].isna().tolist() == [False, False, True, True]
    with open_study(None, toy()) as empty:
        assert len(empty.to_pandas()) == 0


def several() -> Study:
    study = open_study(None, toy(search=search(objective=OBJECTIVES, budget=Budget(9))))
    finish(ask(study))
    ask(study).set_attribute('rate', 3)
    return study


def test_columns_have_keys_and_headers_that_differ() -> None:
    with several() as study:
        columns = columns_of(study.trials, study.space, study.rewards)
    headers = {each.key: each.header for each in columns}
    assert len({*headers.values()}) == len(columns)
    assert headers['decisions.rate'] == 'rate' and headers['decisions.layer.heads'] == 'heads'
    assert headers['metrics.loss'] == 'metrics.loss'  # The reward is called so.
    assert headers['attributes.rate'] == 'attributes.rate'
    assert [each.is_maximized for each in columns if each.group == 'rewards'] == [False, True]


def test_a_row_has_no_entry_for_what_a_trial_lacks() -> None:
    with several() as study:
        columns = columns_of(study.trials, study.space, study.rewards)
        ended, running = (row_of(trial, columns) for trial in study.trials)
    assert 'attributes.rate' not in ended and running['attributes.rate'] == 3
    assert 'metrics.loss' not in running and (running['loss'], running['reason']) == (None, None)


def test_a_column_is_found_by_key_header_or_name() -> None:
    with several() as study:
        columns = columns_of(study.trials, study.space, study.rewards)
    for name, key in (
        ('decisions.layer.heads', 'decisions.layer.heads'),
        ('heads', 'decisions.layer.heads'),
        ('layer.heads', 'decisions.layer.heads'),
        ('loss', 'loss'),
        ('state', 'state'),
    ):
        assert named(columns, name).key == key
    with pytest.raises(UserError, match=r'no column stat\. Did you mean state'):
        named(columns, 'stat')


def test_order_puts_what_has_no_value_last_in_both_directions() -> None:
    values = [2.0, None, 1.0, 'text', '10']
    assert ordered(values, lambda each: each) == [1.0, 2.0, '10', 'text', None]
    assert ordered(values, lambda each: each, descending=True) == ['text', '10', 2.0, 1.0, None]


def test_a_decision_is_found_by_path_or_short_name() -> None:
    space = toy(search=search())
    with open_study(None, space) as study:
        assert study.space.named('layer.heads') == study.space.named('heads') == 'layer.heads'
        with pytest.raises(UserError, match='zzz: there is no such decision'):
            study.space.named('zzz')
