"""Trials that come from an export."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paxtune.config.budget import Budget
from paxtune.objectives.rewards import MetricReward
from paxtune.storage.database import Database
from paxtune.storage.local_store import LocalStore
from paxtune.storage.open_study import open_study
from paxtune.study import export, trial_import
from paxtune.study.study import Study
from tests.factories.clocked_service import Service
from tests.factories.studies import (
    ask,
    study_of_all_kinds,
)
from tests.factories.toys import search, toy
from trainer.symbolic.errors import UserError


def test_an_export_can_be_imported(tmp_path: Path) -> None:
    with (
        study_of_all_kinds(tmp_path / 'from') as source,
        open_study(tmp_path / 'to', toy()) as target,
    ):
        data = json.loads(json.dumps([export.content(trial) for trial in source.trials]))
        assert trial_import.import_trials(target, data, 'a file') == 3
        assert trial_import.import_trials(target, data, 'a file') == 0
        for old, new in zip(source.trials[:3], target.trials, strict=True):
            assert (old.state, old.decisions, old.rewards) == (
                new.state,
                new.decisions,
                new.rewards,
            )
            assert (old.stop_reason, old.reason) == (new.stop_reason, new.reason)
            assert old.measurements == new.measurements
            assert new.lineage.origin == f'a file#{old.id}'
        assert ask(target).id == 4


class OvertakenStore(LocalStore):
    """A store to which another adds trials just before this one does."""

    def __init__(self, path: Path, meanwhile: Callable[[], object]) -> None:
        super().__init__(Database(path))
        self._meanwhile = [meanwhile]

    def add_trials(self, *trials: Any, **how: Any) -> Any:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().add_trials(*trials, **how)


@pytest.mark.parametrize('kind', ['import', 'fork'])
@pytest.mark.parametrize('where', ['study', 'service'])
def test_two_at_once_add_each_trial_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    counts: list[int] = []
    with contextlib.ExitStack() as opened:
        source = opened.enter_context(study_of_all_kinds(tmp_path / 'from'))
        data = [export.content(trial) for trial in source.trials]
        service = opened.enter_context(contextlib.closing(Service(tmp_path / 'studies.db')))

        def add(to: Study) -> None:
            if kind == 'fork':
                counts.append(trial_import.fork(source, to))
            else:
                counts.append(trial_import.import_trials(to, data, 'a file', at_once=2))

        if where == 'service':
            first, other = service.study('a'), service.study('b')
            service.before['add'] = lambda: add(other)
        else:
            store = OvertakenStore(tmp_path / 'to.db', lambda: add(other))
            first = opened.enter_context(open_study('here', toy(), store=store))
            same = LocalStore(Database(tmp_path / 'to.db'))
            other = opened.enter_context(open_study('there', toy(), store=same))
        add(first)
        assert counts == [3, 0]
        assert len({trial.lineage.origin for trial in first.trials}) == len(first.trials) == 3


def test_attempts_and_history_are_exported_and_need_not_be_there(tmp_path: Path) -> None:
    with study_of_all_kinds(tmp_path) as source, open_study(None, toy()) as target:
        data = [export.content(trial) for trial in source.trials]
        events = [[event['event'] for event in each['history']] for each in data]
        assert events == [['claimed', 'ended']] * 3 + [['claimed']]
        assert {each['attempt'] for each in data} == {1}
        # What happened elsewhere is not this study's, and who exported it may not have known.
        older = [
            {k: v for k, v in each.items() if k not in ('attempt', 'history')} for each in data
        ]
        assert trial_import.import_trials(target, data[:1] + older[1:], 'a file') == 3
        assert [trial.history for trial in target.trials] == [[]] * 3


def test_the_hours_of_imported_trials_are_not_this_studys(tmp_path: Path) -> None:
    with (
        study_of_all_kinds(tmp_path) as source,
        open_study(None, toy(search=search(budget=Budget(5, hours=1)))) as target,
    ):
        data = [export.content(trial) | {'seconds': 7200.0} for trial in source.trials]
        trial_import.import_trials(target, data, 'a file')
        assert target.trials[0].seconds == 7200
        assert not target.is_done
        for seconds in (float('nan'), -1.0):
            broken = [data[0] | {'seconds': seconds, 'trial': 99}]
            with pytest.raises(UserError, match='not a trial'):
                trial_import.import_trials(target, broken, 'a file')


def _deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(2000):
        found = [found]
    return found


@pytest.mark.parametrize(
    'change',
    [
        {'trial': 'x' * 10_000},
        {'trial': None},
        {'state': 'infeasible', 'reason': '\ud800'},
        {'state': 'infeasible', 'reason': {'_type': 'os.system'}},
        {'state': 'stopped', 'reason': '\ud800'},
        {'metrics': {'loss': 1.0, '\ud800': 1.0}},
        {'metrics': {'loss': 10**400}},
        {'decisions': {'layer': _deep()}},
    ],
)
def test_an_invalid_export_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with study_of_all_kinds(tmp_path) as source, open_study(None, toy()) as target:
        trial = json.loads(json.dumps(export.content(source.trials[0])))
        changed = trial | change | {'decisions': trial['decisions'] | change.get('decisions', {})}
        with pytest.raises(UserError, match='not a trial') as raised:
            trial_import.import_trials(
                target, [trial, changed | {'trial': change.get('trial', 9)}], 'x'
            )
        assert len(str(raised.value)) < 5000
        assert not target.trials


def test_a_file_may_have_a_name_that_is_no_text(tmp_path: Path) -> None:
    with study_of_all_kinds(tmp_path) as source, open_study(None, toy()) as target:
        data = [export.content(source.trials[0])]
        assert trial_import.import_trials(target, data, '/data/\udcff') == 1
        assert trial_import.import_trials(target, data, '/data/\udcff') == 0
        assert target.trials[0].lineage.origin == r'/data/\udcff#1'


@pytest.mark.parametrize(
    'text', ['{"trials": [], "data": [1]}', '{"trials": {}}', '[]', '9' * 5000]
)
def test_a_file_that_holds_no_study_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / 'export.json'
    path.write_text(text)
    with pytest.raises(UserError, match=r'export\.json: '):
        export.read(str(path))


def test_rewards_of_imported_trials_are_made_anew(tmp_path: Path) -> None:
    accuracy = search(objective=MetricReward('maximize', 'accuracy'))
    with (
        study_of_all_kinds(tmp_path / 'from') as source,
        open_study(None, toy(search=accuracy)) as target,
    ):
        data = [export.content(trial) for trial in source.trials]
        assert trial_import.import_trials(target, data, 'a file') == 3
        assert target.trials[0].reward == source.trials[0].metrics['accuracy']
