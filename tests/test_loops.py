"""Existing training loops, and the lines that make them tunable."""

import difflib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paxtune import load_study
from tests.documents import ROOT
from tests.servers.processes import environment

LOOPS = ('jax', 'optax', 'nnx')
FOLDER = ROOT / 'examples' / 'loops'
MAX_LINES, MAX_CHANGED = 60, 6


def lines_of(name: str) -> list[str]:
    return [line for line in (FOLDER / f'{name}.py').read_text().splitlines() if line]


def started(name: str, directory: Path) -> 'subprocess.Popen[str]':
    return subprocess.Popen(
        [sys.executable, FOLDER / f'{name}.py'],
        cwd=directory,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(name: str, directory: Path) -> str:
    with started(name, directory) as process:
        output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize('loop', LOOPS)
def test_a_loop_becomes_tunable_in_a_few_lines(loop: str) -> None:
    before, after = lines_of(f'{loop}_loop'), lines_of(f'{loop}_loop_tuned')
    assert max(len(before), len(after)) <= MAX_LINES
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in changes if tag != 'equal']
    assert 0 < sum(changed) <= MAX_CHANGED


def results(directory: Path) -> list[Any]:
    with load_study(directory) as study:
        assert study.is_done
        return [
            (each.id, each.decisions, each.status, [(m.step, m.metrics) for m in each.measurements])
            for each in study.trials
        ]


def killed_in_a_trial(loop: str, directory: Path, number: int) -> int:
    """Kills a tuned loop within a trial that has saved two epochs; returns the saved ones."""
    with started(f'{loop}_loop_tuned', directory) as process:
        deadline = time.monotonic() + 600
        trials, epoch = directory / 'runs' / loop / 'trials', 0
        while epoch < 2 and time.monotonic() < deadline and process.poll() is None:
            found = list(trials.glob(f'{number:04}-*/state.npz'))
            epoch = int(np.load(found[0])['epoch' if loop == 'jax' else 'arr_0']) if found else 0
        process.kill()
    return epoch


@pytest.mark.slow(reason='a loop runs alone, tuned, and tuned with a kill, in four processes')
@pytest.mark.parametrize('loop', LOOPS)
def test_a_tuned_loop_prunes_and_continues_after_a_kill(loop: str, tmp_path: Path) -> None:
    (whole := tmp_path / 'whole').mkdir()
    (parts := tmp_path / 'parts').mkdir()
    alone = run(f'{loop}_loop', whole).splitlines()
    assert [line.split(':')[0] for line in alone] == [f'epoch {i}' for i in range(1, 11)]
    assert run(f'{loop}_loop', whole) == ''  # It has saved its last epoch.
    # The first trials run to their ends, before there is a median.
    assert killed_in_a_trial(loop, parts, 3) >= 2
    run(f'{loop}_loop_tuned', parts)
    run(f'{loop}_loop_tuned', whole)
    expected = results(whole / 'runs' / loop)
    assert results(parts / 'runs' / loop) == expected
    assert {'completed', 'stopped'} <= {str(status) for _, _, status, _ in expected}
