"""Inputs of SECURITY.md's threat model, tried with little memory and time."""

import base64
import json
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyglove as pg
import pytest

from paxtune.config.budget import Budget
from paxtune.storage.open_study import open_study
from paxtune.storage.study_file import DATABASE
from tests.factories import function_studies as functions
from tests.factories.studies import ask

MEGABYTES = 3000
"""Address space of a command; about 1 GB of it are libraries and their threads."""

SECONDS = 60
"""Seconds of processor time of a command."""

LARGE = 40 * 2**20
_SCRIPT = """
import resource, runpy, sys
megabytes, seconds, module, *argv = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(megabytes) << 20,) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds),) * 2)
sys.argv = [module, *argv]
runpy.run_module(module, run_name='__main__')
"""


def command(module: str, *argv: object, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with limits of memory and of time."""
    environment = os.environ | {'OPENBLAS_NUM_THREADS': '1', 'JAX_PLATFORMS': 'cpu'}
    limits = str(MEGABYTES), str(SECONDS)
    return subprocess.run(
        [sys.executable, '-c', _SCRIPT, *limits, module, *map(str, argv)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment | {'PYTHONPATH': str(Path(__file__).parents[2])},
    )


def _study(directory: Path) -> Path:
    space = pg.Dict(x=pg.floatv(0.0, 1.0))
    how = functions.search(budget=Budget(3))
    with open_study(directory / 'study', space, search=how) as study:
        trial = ask(study)
        (directory / 'study' / 'trials' / '0001-x').mkdir(parents=True)
        trial.report(1, {'loss': 1.0})
        trial.complete()
    return directory / 'study'


def _packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def a_record_of_many_measurements(study: Path) -> list[object]:
    (study / DATABASE).unlink()
    for number in range(1, 6):
        folder = study / 'trials' / f'{number:04d}-x'
        folder.mkdir(exist_ok=True)
        content = _packed(b'\x2a\x02\x10\x01' * (LARGE // 4))
        (folder / 'trial.json').write_text(json.dumps({'record': content}))
    return ['paxtune.studies', 'recover', study]


def a_record_within_the_bound_of_one_trial(study: Path) -> list[object]:
    (study / DATABASE).unlink()
    for number in range(1, 30):
        folder = study / 'trials' / f'{number:04d}-x'
        folder.mkdir(exist_ok=True)
        content = _packed(b'\x2a\x02\x10\x01' * (2**21 - 1))
        (folder / 'trial.json').write_text(json.dumps({'record': content}))
    return ['paxtune.studies', 'recover', study]


def a_deep_trial_json(study: Path) -> list[object]:
    (study / DATABASE).unlink()
    (study / 'trials' / '0001-x' / 'trial.json').write_text('[' * LARGE)
    return ['paxtune.studies', 'recover', study]


def a_definition_of_empty_lists(study: Path) -> list[object]:
    (study / DATABASE).unlink()
    (study / 'study.json').write_text('[' + '[],' * (LARGE // 3) + '0]')
    return ['paxtune.studies', 'recover', study]


def an_export_of_empty_lists(study: Path) -> list[object]:
    (study / 'export.json').write_text('{"trials": [' + '[],' * (LARGE // 3) + '0]}')
    return ['paxtune.studies', 'import', study, study / 'export.json']


def an_export_of_one_large_trial(study: Path) -> list[object]:
    trial = '{"trial": 1, "measurements": [' + '{},' * (LARGE // 3) + '0]}'
    (study / 'export.json').write_text(f'{{"trials": [{trial}]}}')
    return ['paxtune.studies', 'import', study, study / 'export.json']


def an_endless_export(study: Path) -> list[object]:
    return ['paxtune.studies', 'import', study, '/dev/zero']


def curves_of_empty_lists(study: Path) -> list[object]:
    head = '{"format": "paxtune curves 1", "goal": "minimize", "metric": "loss", "trials": ['
    (study / 'curves.json').write_text(head + '[],' * (LARGE // 3) + '0]}')
    return ['paxtune.simulate', f'--table={study / "curves.json"}']


def curves_that_fit_no_memory(study: Path) -> list[object]:
    with zipfile.ZipFile(study / 'curves.npz', 'w') as archive:
        for name in ('hp_names', 'hp', 'loss'):
            with archive.open(f'{name}.npy', 'w') as file:
                header = {'descr': '<f8', 'fortran_order': False, 'shape': (2**40,)}
                np.lib.format.write_array_header_1_0(file, header)
    flags = f'--table={study / "curves.npz"}', '--metric=loss', '--goal=minimize'
    return ['paxtune.simulate', *flags]


def a_large_note(study: Path) -> list[object]:
    (study / 'study.db').write_bytes(bytes(LARGE))
    return ['paxtune.studies', 'show', study]


def a_database_of_zeros_to_recover(study: Path) -> list[object]:
    (study / 'study.db').write_bytes(bytes(LARGE))
    return ['paxtune.studies', 'recover', study]


INPUTS: list[Callable[[Path], list[object]]] = [
    a_record_of_many_measurements,
    a_record_within_the_bound_of_one_trial,
    a_deep_trial_json,
    a_definition_of_empty_lists,
    an_export_of_empty_lists,
    an_export_of_one_large_trial,
    an_endless_export,
    curves_of_empty_lists,
    curves_that_fit_no_memory,
    a_large_note,
    a_database_of_zeros_to_recover,
]


@pytest.mark.slow(reason='a command for each input, some of which it reads for seconds')
@pytest.mark.parametrize('make', INPUTS, ids=lambda make: make.__name__)
def test_a_hostile_input_takes_little_memory_and_time(
    tmp_path: Path, make: Callable[[Path], list[object]]
) -> None:
    module, *argv = make(_study(tmp_path))
    ended = command(str(module), *argv, directory=tmp_path)
    told = ended.stdout + ended.stderr
    assert 'Traceback' not in told, told[-2000:]
    assert ended.returncode in (0, 2), (ended.returncode, told[-2000:])
    assert 0 < len(told) < 20_000
    assert 'usage:' not in told, told[-2000:]
    assert 'left out' in told or 'error: ' in told or 'Recovered' in told, told[-2000:]


SET_VALUES = [
    '9**9**9',
    '2**100000',
    '[0]*10**9',
    '"a"*10**9',
    '[' * 100_000,
    '{"a":' * 50_000,
    '1' * 200_000,
    '(' * 5000 + ')' * 5000,
]


@pytest.mark.slow(reason='a command for each value')
@pytest.mark.parametrize('value', SET_VALUES, ids=lambda value: value[:10])
def test_a_hostile_value_of_a_flag_takes_little_memory_and_time(tmp_path: Path, value: str) -> None:
    flags = '--exp=lm.StdlibTunable', f'--set=task.learner.learning_rate={value[:100_000]}'
    ended = command('paxtune.space', *flags, directory=tmp_path)
    assert 'Traceback' not in ended.stderr, ended.stderr[-2000:]
    assert ended.returncode == 2, (ended.returncode, ended.stderr[-2000:])
    assert 'error: --set' in ended.stderr and 'learning_rate' in ended.stderr, ended.stderr[:500]
