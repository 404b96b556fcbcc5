"""`benchmarks/gpu.sh`: its rehearsal on a CPU, and steps that fail, hang or lack their packages."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.servers.processes import ROOT, environment

STEPS = {
    'a': [
        f'{name}_{size}' for size in ('124M', '1B', '350M') for name in ('step_time', 'precision')
    ],
    'b': ['packing', 'adapters', 'search', 'executions'],
}

AFTER_PACKING = STEPS['b'][1:]

STAND_IN = """#!/bin/sh
echo "ran $*"
case "$*" in
    *packing.py*--only*) {} ;;
esac
"""
"""A Python that prints its arguments, and does something else in place of `packing.py`."""


def gpu(*arguments: str, **variables: str) -> 'subprocess.CompletedProcess[str]':
    return subprocess.run(
        [str(ROOT / 'benchmarks' / 'gpu.sh'), *arguments],
        env=environment(optimizes=False) | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def part_b(directory: Path, in_packing: str, part_seconds: int) -> list[str]:
    """Runs part b with a stand-in for Python, and returns the lines of its steps."""
    python = directory / 'python'
    python.write_text(STAND_IN.format(in_packing))
    python.chmod(0o755)
    done = gpu('b', PYTHON=str(python), OUT=str(directory), PART_SECONDS=str(part_seconds))
    assert done.returncode == 1
    for name in AFTER_PACKING:
        assert (directory / f'{name}.txt').read_text().startswith('ran ')
    return (directory / 'b.txt').read_text().splitlines()[-4:]


@pytest.mark.slow(reason='a part has up to three measurements')
@pytest.mark.parametrize('part', STEPS)
def test_rehearsal_of_gpu_measurements(part: str, tmp_path: Path) -> None:
    variables = {'PYTHON': sys.executable, 'OUT': str(tmp_path), 'PART_SECONDS': '3600'}
    done = gpu('--rehearse', part, **variables)
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
    lines = (tmp_path / f'{part}.txt').read_text().splitlines()
    ended = [line.partition(': done (')[0] for line in lines if ': done (' in line]
    assert ended == (STEPS['b'] if part == 'b' else ['step_time', 'precision'])
    for name in {*ended} - {'search'}:
        result = (tmp_path / f'{name}.txt').read_text().splitlines()[-1]
        assert json.loads(result.removeprefix('RESULT '))
    if part == 'b':
        assert 'it has all of its 2 trials' in (tmp_path / 'search.txt').read_text()


def test_gpu_step_that_fails_leaves_a_line_and_the_next_one_runs(tmp_path: Path) -> None:
    failed, *others = part_b(tmp_path, in_packing='exit 3', part_seconds=100)
    assert failed.startswith('packing: failed with status 3 (')
    assert [line.partition(' (')[0] for line in others] == [f'{n}: done' for n in AFTER_PACKING]


@pytest.mark.slow
def test_gpu_step_without_time_leaves_a_line_and_the_next_one_runs(tmp_path: Path) -> None:
    stopped, *others = part_b(tmp_path, in_packing='sleep 100', part_seconds=8)
    assert stopped.startswith('packing: stopped: the limit of 2 s is over (')
    assert [line.partition(' (')[0] for line in others] == [f'{n}: done' for n in AFTER_PACKING]
    assert (tmp_path / 'packing.txt').read_text().startswith('ran ')


def test_gpu_steps_are_those_of_both_parts(tmp_path: Path) -> None:
    for part, names in STEPS.items():
        gpu(part, PYTHON='true', OUT=str(tmp_path))
        lines = (tmp_path / f'{part}.txt').read_text().splitlines()
        assert [line.partition(':')[0] for line in lines if ': done (' in line] == names


@pytest.mark.slow
def test_gpu_wheels_are_installed_beside_the_packages_of_the_machine(tmp_path: Path) -> None:
    info = 'greeting-1.0.dist-info'
    with zipfile.ZipFile(tmp_path / 'greeting-1.0-py3-none-any.whl', 'w') as wheel:
        wheel.writestr('greeting.py', 'words = "hello"')
        wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n')
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/RECORD', '')
    code = 'import greeting, jax; print(greeting.words, jax.__file__)'
    done = gpu('python', '-c', code, PYTHON=sys.executable, WHEELS=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, '')
    words, _, jax_file = done.stdout.strip().partition(' ')
    assert words == 'hello'
    assert Path(jax_file).is_relative_to(sys.prefix)
    assert gpu('python', '-c', code, PYTHON=sys.executable).returncode == 1


def test_gpu_wheels_of_jax_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'jaxlib-0.11.2-cp312-cp312-linux_x86_64.whl').touch()
    done = gpu('python', '-c', '', PYTHON=sys.executable, WHEELS=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith("has a wheel of jaxlib, which would hide the machine's\n")


def test_gpu_usage_names_the_calls_of_a_lent_machine() -> None:
    done = gpu('c')
    assert done.returncode == 2
    for part in STEPS:
        assert f"benchmarks/gpu.sh {part}', carry=['.wheels'], timeout_s=420)" in done.stderr
