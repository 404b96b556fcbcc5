"""`--json` of every command on studies: one JSON document on standard output."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paxtune.storage.open_study import open_study
from paxtune.studies.__main__ import main
from paxtune.studies.base import COMMANDS
from tests.factories.studies import ask, finish
from tests.factories.toys import toy
from tests.servers.processes import command

EXP = '--exp=tests.factories.toys.toy'

Shown = Callable[..., str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A study with two completed trials."""
    with open_study(tmp_path / 'study', toy()) as study:
        for _ in range(2):
            finish(ask(study))
    return tmp_path / 'study'


def result(shown: Shown, *argv: object) -> Any:
    return json.loads(shown(*argv, '--json'))


VIEWS = [each.name for each in COMMANDS if each.is_view]
MORE: dict[str, list[Any]] = {'diff': [1, 2], 'pareto': ['--x=accuracy']}


@pytest.mark.parametrize('name', VIEWS)
def test_json_of_a_view_is_its_json_format(name: str, directory: Path, shown: Shown) -> None:
    argv = [name, directory, *MORE.get(name, [])]
    assert result(shown, *argv) == json.loads(shown(*argv, '--format=json'))


def export(directory: Path, shown: Shown) -> None:
    assert result(shown, 'export', directory) == json.loads(shown('export', directory))
    file = directory.parent / 'study.json'
    assert result(shown, 'export', directory, f'--out={file}') == {'file': str(file)}
    assert len(json.loads(file.read_text())['trials']) == 2


def curves(directory: Path, shown: Shown) -> None:
    assert result(shown, 'curves', directory) == json.loads(shown('curves', directory))


def report_(directory: Path, shown: Shown) -> None:
    assert result(shown, 'report', directory)['best'][0]['trial'] in (1, 2)
    file = directory.parent / 'report.md'
    assert result(shown, 'report', directory, f'--out={file}')['bytes'] == file.stat().st_size


def portfolio(directory: Path, shown: Shown) -> None:
    made = result(shown, 'portfolio', directory)
    assert (made['studies'], len(made['portfolio'])) == ([str(directory)], 1)
    file = directory.parent / 'known.json'
    assert result(shown, 'portfolio', directory, f'--out={file}') == {'file': str(file)}
    assert json.loads(file.read_text()) == made


def import_(directory: Path, shown: Shown) -> None:
    file = directory.parent / 'study.json'
    shown('export', directory, f'--out={file}')
    assert result(shown, 'import', directory, file) == {'added': 2, 'trials': 2}
    assert result(shown, 'import', directory, file) == {'added': 0, 'trials': 2}


def add(directory: Path, shown: Shown) -> None:
    added = result(shown, 'add', directory, 'rate=0.0125', '--draw')
    assert added['trial'] == 3
    assert added['decisions']['rate'] == 0.0125


def retry(directory: Path, shown: Shown) -> None:
    assert result(shown, 'retry', directory, 2)['trial'] == 3


def confirm(directory: Path, shown: Shown) -> None:
    added = result(shown, 'confirm', directory, '--top=1', '--replicates=2')
    best = result(shown, 'best', directory)['trials'][0]['trial']
    assert added == [{'trial': 3, 'replicate': 2, 'replicate_of': best}]
    assert result(shown, 'confirm', directory, '--top=1', '--replicates=1') == []


def ask_(directory: Path, shown: Shown) -> None:
    assert [each['trial'] for each in result(shown, 'ask', directory, '--count=2')] == [3, 4]


def tell(directory: Path, shown: Shown) -> None:
    shown('ask', directory)
    told = result(shown, 'tell', directory, 3, 'loss=0.5', 'accuracy=1')
    assert told == {'trial': 3, 'state': 'completed', 'rewards': {'loss': 0.5}}


def stop(directory: Path, shown: Shown) -> None:
    paused = {'request': 'pause', 'trials': [], 'running': False}
    assert result(shown, 'stop', directory) == paused


def delete(directory: Path, shown: Shown) -> None:
    assert result(shown, 'delete', directory, 2, '--yes') == {'deleted': [2]}
    assert result(shown, 'delete', directory, '--yes') == {'deleted': str(directory)}
    assert not directory.exists()


def recover(directory: Path, shown: Shown) -> None:
    (directory / 'study.db').write_bytes(b'')
    assert result(shown, 'recover', directory) == {'trials': [], 'problems': []}


OTHERS = {
    'export': export,
    'curves': curves,
    'report': report_,
    'portfolio': portfolio,
    'import': import_,
    'add': add,
    'retry': retry,
    'confirm': confirm,
    'ask': ask_,
    'tell': tell,
    'stop': stop,
    'delete': delete,
    'recover': recover,
}


@pytest.mark.parametrize('name', OTHERS)
def test_json_of_a_change_is_its_result(name: str, directory: Path, shown: Shown) -> None:
    OTHERS[name](directory, shown)


def test_every_command_has_its_case_above() -> None:
    # Weights need a trained model: tests/search_spaces/test_finetune.py.
    assert {each.name for each in COMMANDS} == {*VIEWS, *OTHERS, 'page', 'weights', 'lm_eval'}


def test_json_and_another_format_are_refused_together(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(['trials', str(directory), '--json', '--format=csv'])
    assert stopped.value.code == 2
    assert 'not allowed with argument --json' in capsys.readouterr().err


def test_an_error_leaves_standard_output_empty(directory: Path) -> None:
    shutil.rmtree(directory)
    done = command('paxtune.studies', 'add', str(directory), 'rate=1', EXP, '--json')
    assert (done.returncode, done.stdout) == (2, '')
    assert done.stderr.startswith('error: There is no study in')
