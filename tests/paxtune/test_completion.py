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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a study, and a module that notes its import."""
    (tmp_path / 'runs' / 'one').mkdir(parents=True)
    (tmp_path / 'runs' / 'one' / 'study.db').touch()
    (tmp_path / 'mine.py').write_text("open('imported', 'w').close()\n")
    return tmp_path


@pytest.mark.parametrize(
    ('line', 'words'),
    [
        ('paxtune search --algorithm=g', ['gp_bandit', 'grid']),
        ('paxtune search --exp=mine.', []),
        ('paxtune studies trials ', ['bin/', 'runs/', 'runs/one']),
        ('paxtune se', ['search', 'serve']),
        ('paxtune ', [*COMMANDS, 'completion']),
        ('paxtune completion ', ['bash', 'zsh', 'fish']),
        ('paxtune studies re', ['retry', 'recover', 'report']),
        ('paxtune studies show ru', ['runs/']),
        ('paxtune studies show runs/', ['runs/one']),
        ('paxtune studies trials runs/one --state=com', ['completed']),
        ('paxtune studies trials --vizier_endpoint=h:1 --study=s --so', ['--sort']),
        (
            'paxtune search --exp lm.',
            [
                'lm.StdlibTunable',
                'lm.StdlibFuture',
                'lm.C4Small',
                'lm.C4Tunable',
                'lm.FinetuneTunable',
            ],
        ),
        ('paxtune search --sch', ['--scheduler']),
        ('paxtune search --scheduler m', ['median_stopping']),
        ('paxtune search --goal=', ['minimize', 'maximize']),
        ('paxtune train --study_dir=runs/', ['runs/one']),
        ('paxtune nonsense --', ['--help', '--version']),
    ],
)
def test_words_are_completed_and_no_module_of_the_user_is_imported(
    line: str, words: list[str], folder: Path
) -> None:
    assert sorted(completed(line, folder)) == sorted(words)
    assert not (folder / 'imported').exists()


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
        os.write(driver, b'paxtune search --exp=lm.StdlibT\t')
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
