"""The command `paxtune`."""

import subprocess
from pathlib import Path

import pytest

import paxtune
from paxtune import completion
from paxtune.__main__ import COMMANDS, main
from tests.servers.processes import ROOT, command
from tests.servers.terminal import environment
from trainer.symbolic.errors import UserError


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ['paxtune', *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        check=False,
    )


def test_help_lists_every_command_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(['--help'])
    assert stopped.value.code == 0
    listed = capsys.readouterr().out.partition('\ncommands:\n')[2]
    names = [line.split()[0] for line in listed.splitlines()]
    assert names == [*COMMANDS, 'completion']
    modules = {path.stem for path in (ROOT / 'paxtune').glob('*.py') if _is_command(path)}
    packages = {path.parent.name for path in (ROOT / 'paxtune').glob('*/__main__.py')}
    # A search starts its workers itself.
    assert (modules | packages) - {'__main__', 'worker'} == {*COMMANDS}


def _is_command(path: Path) -> bool:
    return "if __name__ == '__main__':" in path.read_text()


def test_a_command_that_is_not_there_is_refused_with_near_names() -> None:
    with pytest.raises(UserError, match=r"no command 'serach'. Did you mean search"):
        main(['serach', '--exp=x'])
    with pytest.raises(UserError, match=r"no command 'x'. There are search, train"):
        main(['x'])


def test_a_command_gets_its_flags_and_names_itself(tmp_path: Path) -> None:
    done = run(tmp_path, 'studies', 'trials', '--help')
    assert done.returncode == 0
    assert done.stdout.startswith('usage: paxtune studies trials [-h]')
    done = command('paxtune', 'space', '--help')
    assert done.stdout.startswith('usage: paxtune space [-h]')


@pytest.mark.parametrize('name', ['paxtune.space', 'paxtune.simulate'])
def test_a_command_of_a_module_names_the_module(name: str) -> None:
    done = command(name, '--help')
    assert done.stdout.startswith(f'usage: python -m {name} [-h]')


def test_the_command_runs_as_a_module() -> None:
    done = command('paxtune', '--version')
    assert (done.returncode, done.stdout) == (0, f'paxtune {paxtune.__version__}\n')


def test_the_console_command_finds_experiments_beside_it(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text('raise ValueError("imported")\n')
    done = run(tmp_path, 'space', '--exp=mine.Fit')
    assert done.returncode != 0
    assert 'ValueError: imported' in done.stderr


@pytest.mark.parametrize('shell', completion.SHELLS)
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    assert 'paxtune' in completion.script([shell])


@pytest.mark.parametrize('words', [[], ['tcsh'], ['bash', 'zsh']])
def test_completion_refuses_other_shells(words: list[str]) -> None:
    with pytest.raises(
        UserError, match='completion SHELL: expected bash, zsh or fish as the shell'
    ):
        main(['completion', *words])
