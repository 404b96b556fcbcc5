"""The README's examples, commands, flags and figures are true."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from paxtune import search, train
from paxtune.storage.open_study import load_study
from tests.documents import ROOT, blocks, commands_of, pages_of, parsed
from tests.followed import pattern
from tests.front_door import picture
from trainer.experiment import Experiment
from trainer.symbolic import registry

(PATH,) = pages_of(__file__)
README = PATH.read_text()
FUNCTION, EXAMPLE = [block.text for block in blocks(README) if block.language == 'python']
COMMANDS = commands_of(README)
OTHERS = ('make', 'pip')


@pytest.fixture
def my_lm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the module of the README's experiment and returns its name."""
    (tmp_path / 'my_lm.py').write_text(EXAMPLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, 'my_lm', raising=False)
    return 'my_lm'


def test_a_visitor_sees_everything_soon() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    assert lines.index('```python') < 15
    assert len(README.partition('```python')[0].split()) < 80
    assert len(FUNCTION.split('\n\n\n')[1].splitlines()) + 5 <= 15


def test_example_file_ends_with_the_readme_example() -> None:
    source = (ROOT / 'search_spaces' / 'tunable_lm.py').read_text()
    assert source.endswith(EXAMPLE)
    body = EXAMPLE.split('def Tiny')[1]
    assert len(body.strip().splitlines()) <= 20


@pytest.mark.slow
@pytest.mark.sentinel
def test_example_runs(my_lm: str, tmp_path: Path) -> None:
    exp = f'--exp={my_lm}.Tiny'
    assert search.main([exp, f'--job_log_dir={tmp_path}/a', '--num_trials=1', '--smoke']) == 0
    with load_study(tmp_path / 'a') as study:
        assert study.best is not None
        made = [f'{path}={value}' for path, value in study.best.decisions.items()]
    flags = [exp, f'--job_log_dir={tmp_path}/b', '--smoke', '--decisions', *made]
    assert train.main(flags) == 0


def test_function_prints_what_is_shown(tmp_path: Path) -> None:
    (shown,) = [block.text for block in blocks(README) if block.language == 'text']
    (tmp_path / 'first.py').write_text(FUNCTION)
    done = subprocess.run(
        [sys.executable, 'first.py'],
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert pattern(shown).fullmatch(done.stdout), done.stdout
    assert float(done.stdout.split()[-1]) < 0.1


def test_make_targets_do_the_set_up() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    assert [words for words in COMMANDS if words[0] == 'make'] == [
        ['make', 'search'],
        ['make', 'test'],
    ]
    assert {*re.findall(r'^(\w+):', makefile, re.MULTILINE)} == {'search', 'test', 'docs'}


@pytest.mark.parametrize('words', [c for c in COMMANDS if c[0] not in OTHERS], ids=' '.join)
def test_commands_take_their_flags(
    words: list[str], my_lm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = parsed(words, monkeypatch)
    if getattr(flags, 'exp', None) is not None:
        registry.find(flags.exp, Experiment)


def test_flags_in_the_text_exist() -> None:
    named = set(re.findall(r'`(--\w+)', README))
    known = {flag for module in (search, train) for flag in flags_of(module)}
    assert named
    assert named <= known


def flags_of(module: Any) -> set[str]:
    """Collects the flags that the help of a command names."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        module.main(['--help'])
    return set(re.findall(r'--\w+', out.getvalue()))


@pytest.mark.parametrize(
    ('result', 'stated', 'measured'),
    [
        ('chaos', ['63 faults'], '63 faults, of which'),
        ('early_stopping', ['3.84 times less'], 'the same, 100 seeds | 3.84 (3.44 to 4.42)'),
        (
            'packing',
            ['10M', '10.5 times faster'],
            '10M 16 lanes packed 6.65 ms alone 69.80 ms 10.527',
        ),
        ('step_time', ['1.02 times', '350M', '1B'], '1.020 (350M) and 1.017 (1B)'),
        ('engines', ['0.18 s', '1.87 s'], 'workers 0.180 s per trial'),
        ('engines', ['0.18 s', '1.87 s'], 'ray_tune 1.868 s per trial'),
        (
            'search_tables',
            ['1.00 times', '25 trials'],
            'nothing known / TPE | 0.89 (0.80–0.98) | 1.00',
        ),
    ],
)
def test_figures_stand_in_the_results(result: str, stated: list[str], measured: str) -> None:
    (fact,) = [each for each in README.split('\n- ') if f'benchmarks/results/{result}.md' in each]
    for each in stated:
        assert each in ' '.join(fact.split())
    text = (ROOT / 'benchmarks' / 'results' / f'{result}.md').read_text()
    assert ' '.join(measured.split()) in ' '.join(text.split())


def test_the_picture_of_a_search_shows_a_command_of_the_readme_and_loads_nothing() -> None:
    drawn = picture.PICTURE.read_text()
    ElementTree.fromstring(drawn)
    assert not re.search(r'url\((?!#)|href', drawn)
    assert ' '.join(['paxtune', *picture.FLAGS]) in README
    shown = picture.shown(drawn)
    assert shown[0] == ' '.join(['$ paxtune', *picture.FLAGS])


@pytest.mark.slow(reason='a search runs in a terminal')
def test_the_picture_of_a_search_has_the_words_of_a_new_one(tmp_path: Path) -> None:
    raw = picture.recorded(tmp_path, *picture.SHORTER)
    assert not picture.gone(picture.PICTURE.read_text(), raw)
