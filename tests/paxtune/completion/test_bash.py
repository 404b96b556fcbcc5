"""Completion of `paxtune` in a real bash."""

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest

from paxtune.__main__ import COMMANDS
from tests.servers.terminal import completed, environment

MODULE = """
open('imported', 'w').close()
from paxtune import Tunable
from search_spaces.lm import StdlibTunable as Other

class Mine(Tunable): ...
class _Hidden(Tunable): ...
class Unrelated: ...
def made() -> Tunable: ...
def needs_a_value(size) -> Tunable: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a study, a module with experiments, and a `jax` that notes its import."""
    (tmp_path / 'runs' / 'one').mkdir(parents=True)
    (tmp_path / 'runs' / 'one' / 'study.db').touch()
    (tmp_path / 'mine.py').write_text(MODULE)
    (tmp_path / 'jax.py').write_text("open('imported', 'w').close()\n")
    return tmp_path


# Each starts a process; the first ones are enough to know soon.
@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ('line', 'words'),
    [
        ('paxtune search --algorithm=g', ['gp_bandit', 'grid']),
        ('paxtune search --exp=mine.', ['mine.Mine', 'mine.made']),
        ('paxtune studies trials ', ['bin/', 'runs/', 'runs/one']),
        ('paxtune se', ['search', 'serve']),
        ('paxtune ', [*COMMANDS, 'completion']),
        ('paxtune completion ', ['bash', 'zsh', 'fish']),
        ('paxtune studies re', ['retry', 'recover', 'report']),
        ('paxtune studies show ru', ['runs/']),
        ('paxtune studies show runs/', ['runs/one']),
        ('paxtune studies trials runs/one --state=com', ['completed']),
        ('paxtune studies trials --vizier_endpoint=h:1 --study=s --so', ['--sort']),
        ('paxtune search --exp lm.', ['lm.StdlibTunable', 'lm.C4Small', 'lm.C4Tunable']),
        ('paxtune search --sch', ['--scheduler']),
        ('paxtune search --scheduler m', ['median_stopping']),
        ('paxtune search --goal=', ['minimize', 'maximize']),
        ('paxtune train --study_dir=runs/', ['runs/one']),
        ('paxtune nonsense --', ['--help', '--version']),
    ],
)
def test_words_are_completed_and_nothing_is_imported(
    line: str, words: list[str], folder: Path
) -> None:
    assert sorted(completed(line, folder)) == sorted(words)
    assert not (folder / 'imported').exists()


@pytest.mark.slow
def test_zsh_gets_descriptions_of_flags_and_none_of_values(folder: Path) -> None:
    for line, answer in {
        'paxtune search --algorithm=g': ['--algorithm=gp_bandit:', '--algorithm=grid:'],
        'paxtune search --seed': ['--seed:random seed of the algorithm'],
    }.items():
        variables = {
            '_ARGCOMPLETE': '1',
            '_ARGCOMPLETE_IFS': '\n',
            '_ARGCOMPLETE_SHELL': 'zsh',
            '_ARGCOMPLETE_SUPPRESS_SPACE': '1',
            '_ARGCOMPLETE_STDOUT_FILENAME': str(folder / 'answer'),
            'COMP_LINE': line,
            'COMP_POINT': str(len(line)),
        }
        subprocess.run(['paxtune'], cwd=folder, env=environment(folder) | variables, check=True)
        assert sorted((folder / 'answer').read_text().splitlines()) == sorted(answer)


@pytest.mark.slow
def test_paths_and_values_of_set_are_those_of_the_experiment(tmp_path: Path) -> None:
    begin = 'paxtune search --exp=lm.StdlibTunable --set '
    assert 'task.' in completed(begin, tmp_path)
    assert completed(begin + 'task.model.sta', tmp_path)[0] == r'task.model.stack.layers\['
    assert completed(begin + 'task.model.stack.repeats=', tmp_path) == ['1', '2']
    assert completed(begin.replace('set', 'tune') + 'train.num_t', tmp_path) == [
        'train.num_train_steps='
    ]


@pytest.mark.slow
@pytest.mark.parametrize('exp', ['lm.Nothing', 'broken.Fit', 'nowhere'])
def test_an_unknown_experiment_completes_nothing_and_prints_nothing(
    exp: str, tmp_path: Path
) -> None:
    (tmp_path / 'broken.py').write_text('print("loud")\nraise RuntimeError("broken")\n')
    assert completed(f'paxtune search --exp={exp} --set t', tmp_path) == []


@pytest.mark.slow
def test_a_module_that_cannot_be_parsed_hides_no_other_name(folder: Path) -> None:
    (folder / 'bad.py').write_text('def (')
    assert completed('paxtune search --exp=mi', folder) == ['mine.Mine', 'mine.made']


@pytest.mark.slow
def test_the_tab_key_completes_a_line_that_is_typed(folder: Path) -> None:
    driver, terminal = pty.openpty()
    shell = subprocess.Popen(
        ['bash', '--norc', '--noprofile', '-i'],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env={**environment(folder), 'PS1': '$ ', 'TERM': 'dumb'},
        start_new_session=True,
    )
    os.close(terminal)
    try:
        os.write(driver, b'eval "$(paxtune completion bash)"; echo rea""dy\n')
        read_until(driver, b'ready\r')
        os.write(driver, b'paxtune search --exp=lm.Std\t')
        read_until(driver, b'--exp=lm.StdlibTunable ')
    finally:
        shell.kill()
        shell.wait()
        os.close(driver)


def read_until(driver: int, text: bytes, seconds: float = 60.0) -> None:
    """Reads from a terminal until a text comes; fails with what came in place of it."""
    seen, end = b'', time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([driver], [], [], 1.0)[0]:
            seen += os.read(driver, 4096)
