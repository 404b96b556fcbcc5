"""Views of the study page, without a browser."""

import contextlib
import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest

from paxtune.page.actions import Actions
from paxtune.page.commands import StudyCommands
from paxtune.page.live import LiveStudy
from paxtune.reports.ask_tell import ask
from paxtune.storage.open_study import load_study, open_study
from paxtune.study.worker_logs import lines_about
from tests.factories.page_searches import (
    HOST,
    SCRIPT,
    SEARCH,
    SPACE,
    call,
    client,
    make_study,
    opened,
)  # fmt: skip
from trainer.symbolic.errors import UserError

VERSION = {'version.data': ''}


def test_overview_shows_states_and_the_best_trial(live: LiveStudy) -> None:
    page = client(live)
    text = call(page, 'overview-live.children', VERSION).text
    for expected in ('best loss', 'ended trials', 'trial 3'):
        assert expected in text
    assert 'Running trials' in call(page, 'overview-running.children', VERSION).text
    best_trial = call(page, 'overview-best.children', VERSION).text
    assert 'Best trial' in best_trial and '"0.333333"' in best_trial.replace('\\', '')
    assert f'"title":"{1 / 3!r}"' in best_trial.replace(' ', '')
    assert 'rate' in _texts(call(page, 'overview-tables.children', VERSION).json)
    best = live.study.best
    assert best is not None and best.id == 3


def test_overview_has_one_number_where_all_trials_ended_alike(tmp_path: Path) -> None:
    with open_study(tmp_path, SPACE, search=SEARCH) as study:
        for _ in range(2):
            trial = study.ask()
            assert trial is not None
            trial.report(1, {'loss': 1.0})
            study.tell(trial)
    with contextlib.closing(opened(tmp_path)) as live:
        texts = _texts(call(client(live), 'overview-live.children', VERSION).json)
    assert '2 of 100' in texts and 'completed trials' in texts
    assert not {'completed', 'in all', 'ended trials'} & {*texts}


def test_views_show_markup_of_a_study_as_text(live: LiveStudy) -> None:
    page = client(live)
    reply = call(page, 'overview-tables.children', VERSION)
    assert reply.mimetype == 'application/json'
    found = _texts(reply.json)
    assert any(f'{SCRIPT} failed' in text for text in found)
    for path in ('/trials', '/trial/4', '/nothing<script>'):
        answer = page.get(path, base_url=HOST)
        assert SCRIPT not in answer.text and 'nothing<' not in answer.text


def test_download_has_the_filtered_trials_with_all_columns(live: LiveStudy) -> None:
    request = {'sortModel': [{'colId': 'loss', 'sort': 'desc'}], 'filterModel': {}}
    states = {'trials.getRowsRequest': request, 'filter.value': 'state=completed loss<1'}
    two = ('csv.data', 'csv-problem.children')
    reply = call(client(live), two, {'download.n_clicks': 1}, states)
    found = reply.json['response']['csv']['data']
    assert found['filename'] == 'trials.csv'
    table = list(csv.DictReader(io.StringIO(found['content'])))
    assert [row['trial'] for row in table] == ['2', '3']
    assert table[0]['loss'] == '0.5' and float(table[0]['metrics.size']) == 2.0
    assert {'decisions.kind', 'note', 'seconds'} <= {*table[0]}
    states['filter.value'] = 'no_column=1'
    refused = call(client(live), two, {'download.n_clicks': 1}, states)
    assert 'there is no column no_column' in refused.text


def test_page_title_of_a_study_is_escaped(tmp_path: Path) -> None:
    make_study(tmp_path)
    with load_study(tmp_path, read_only=False) as study:
        study.store.update_study(lambda record: dataclasses.replace(record, exp=SCRIPT))
    with contextlib.closing(opened(tmp_path)) as live:
        answer = client(live).get('/', base_url=HOST)
    assert SCRIPT not in answer.text and '&lt;script&gt;alert(1)' in answer.text


def test_trial_shows_its_state_and_measurements(live: LiveStudy) -> None:
    reply = call(client(live), 'trial-live.children', VERSION, {'url.pathname': '/trial/4'})
    assert {'infeasible', f'{SCRIPT} failed', 'History'} <= set(_texts(reply.json))
    missing = call(client(live), 'trial-live.children', VERSION, {'url.pathname': '/trial/99'})
    assert 'has no trial 99' in missing.text


def test_comparison_shows_decisions_that_differ(live: LiveStudy) -> None:
    def compared(search: str) -> set[str]:
        inputs = {'url.search': search}
        return set(
            _texts(call(client(live), 'difference.children', inputs, {'compared.value': ''}).json)
        )

    assert {'rate', '1.0000', '0.5000', '0.3333'} <= compared('?trials=1,2,best')
    assert 'Select two trials or more.' in compared('?trials=3,best')
    assert any('has no trial 99' in each for each in compared('?trials=1,99'))
    assert any('expected numbers of trials' in each for each in compared('?trials=1,x'))


def test_actions_stop_a_trial_and_keep_a_note(tmp_path: Path) -> None:
    make_study(tmp_path)
    with contextlib.closing(opened(tmp_path)) as live:
        actions = Actions(live, StudyCommands([str(tmp_path)]))
        before = live.snapshot().version
        assert 'the request waits' in actions.stop(5)
        assert actions.note(2, SCRIPT) == 'The note is kept.'
        after = live.snapshot()
        assert after.record.stop_requests == (5,)
        assert after.record.notes == {2: SCRIPT} and after.version != before
        with pytest.raises(UserError, match='trial 1 is completed: it is not running'):
            actions.stop(1)


@pytest.mark.parametrize('line', ['--exp=os.path', '-x=1', 'rate', ' =1', ''])
def test_actions_pass_no_flag_to_a_command(live: LiveStudy, line: str) -> None:
    with pytest.raises(UserError, match='PATH=VALUE'):
        Actions(live, StudyCommands(['nowhere'])).add(line)


@pytest.mark.slow
def test_actions_add_and_repeat_trials_unless_a_search_works_there(tmp_path: Path) -> None:
    make_study(tmp_path)
    with contextlib.closing(opened(tmp_path)) as live:
        actions = Actions(live, StudyCommands([str(tmp_path)]))
        assert 'Trial 6 will run' in actions.retry(1)
        assert 'rate = 0.01' in actions.add('rate=0.01\nkind=plain\n')
        assert [each.lineage.origin for each in live.snapshot().trials[5:]] == ['retry', 'added']
        with (
            load_study(tmp_path, read_only=False),
            pytest.raises(UserError, match='is working there'),
        ):
            actions.retry(1)


@pytest.mark.slow
def test_actions_report_a_result_by_hand_and_delete_trials(tmp_path: Path) -> None:
    make_study(tmp_path)
    with open_study(tmp_path, SPACE, search=SEARCH) as study:
        asked = [each['trial'] for each in ask(study, 3)]
    with contextlib.closing(opened(tmp_path)) as live:
        page, actions = client(live), Actions(live, StudyCommands([str(tmp_path)]))

        def has_form(trial: int) -> bool:
            states = {'url.pathname': f'/trial/{trial}'}
            reply = call(page, 'result-form.style', VERSION, states)
            return reply.json['response']['result-form']['style'] == {}

        assert asked == [5, 6, 7] and not has_form(1) and has_form(6)
        assert actions.tell(6, 'loss=0.25\nsize=3') == 'Trial 6 is completed. loss = 0.25'
        assert actions.tell_infeasible(7, SCRIPT) == 'Trial 7 is infeasible.'
        assert not has_form(6)
        trials = live.snapshot().trials
        assert (trials[5].metrics['size'], trials[6].record.reason) == (3.0, SCRIPT)
        with pytest.raises(UserError, match='trial 1 '):
            actions.tell(1, '0.5')
        directory = tmp_path / 'trials' / '1'
        assert 'Deleted: trial 1' in actions.delete(1)
        assert [each.id for each in live.snapshot().trials] == [2, 3, 4, 5, 6, 7]
        assert not directory.exists()
        with (
            load_study(tmp_path, read_only=False),
            pytest.raises(UserError, match='is working there'),
        ):
            actions.delete(2)


@pytest.mark.parametrize('lines', ['--infeasible=x', '-x=1', 'loss', '', '=1'])
def test_actions_report_only_metrics(live: LiveStudy, lines: str) -> None:
    actions = Actions(live, StudyCommands(['nowhere']))
    with pytest.raises(UserError, match='METRIC=VALUE'):
        actions.tell(5, lines)
    with pytest.raises(UserError, match='the reason'):
        actions.tell_infeasible(5, ' ')


def test_notes_on_a_study_and_its_trials_are_markdown_without_html(tmp_path: Path) -> None:
    make_study(tmp_path)
    with contextlib.closing(opened(tmp_path)) as live:
        page, actions = client(live), Actions(live, StudyCommands([str(tmp_path)]))
        assert actions.note(None, f'# Why\n{SCRIPT}') == 'The note is kept.'
        assert actions.note(2, '*seen*') == 'The note is kept.'
        for path, expected in (('/', f'# Why\n{SCRIPT}'), ('/trial/2', '*seen*')):
            reply = call(page, 'note-shown.children', VERSION, {'url.pathname': path})
            made = reply.json['response']['note-shown']['children']
            assert made['type'] == 'Markdown' and made['props']['children'] == expected
            assert not made['props'].get('dangerously_allow_html')
        before = live.snapshot().version
        assert actions.note(None, ' ') == 'The note is removed.'
        assert live.snapshot().record.note == '' and live.snapshot().version != before


def test_log_of_a_trial_has_the_lines_of_all_its_workers(tmp_path: Path) -> None:
    logs = tmp_path / 'logs'
    logs.mkdir()
    lines = [
        {'time': '2', 'trial': 1, 'message': SCRIPT, 'step': 3},
        {'time': '1', 'trial': 2, 'message': 'of another'},
    ]
    text = '\n'.join(map(json.dumps, lines))
    (logs / 'a-1.jsonl').write_text(f'{text}\n{{"cut off')
    (logs / 'a-2.jsonl').write_text(json.dumps({'time': '1', 'trial': 1, 'error': 'E\nF'}))
    first, *rest = lines_about(tmp_path, 1)
    assert first.startswith('1 ') and rest[:2] == ['E', 'F']
    assert SCRIPT in rest[2] and rest[2].endswith('step=3')
    assert lines_about(None, 1) == []


def _texts(data: object) -> list[str]:
    """All texts in JSON."""
    if isinstance(data, str):
        return [data]
    if isinstance(data, dict | list):
        children = data.values() if isinstance(data, dict) else data
        return [text for child in children for text in _texts(child)]
    return []
