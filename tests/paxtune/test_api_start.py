"""The start of `paxtune.tune`: what it imports, and what it shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paxtune.api import tune
from tests.factories.function_studies import PARALLEL
from tests.servers.processes import ROOT, environment

FUNCTION = """
import sys
import pyglove as pg
import paxtune

study = paxtune.tune(
    lambda x: x,
    space={'x': pg.floatv(0.0, 1.0)},
    objective='minimize',
    num_trials=7,
    job_log_dir=sys.argv[1],
)
print(*sorted({'jax', 'orbax', 'trainer.experiment'} & {*sys.modules}))
import jax

print(jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)
"""


HELP = """
import runpy
import sys

try:
    runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)
finally:
    print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)
"""
HEAVY = {
    'boto3', 'flax', 'google', 'grpc', 'jax', 'jaxlib', 'msgspec', 'numpy', 'optax', 'orbax',
    'pandas', 'psutil', 'pyglove', 'rich', 'scipy', 'sqlalchemy', 'tensorboardX', 'vizier',
}  # fmt: skip


def loaded(code: str, *arguments: str) -> set[str]:
    """Runs code that prints its modules to standard error."""
    done = subprocess.run(
        [sys.executable, '-c', code, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return {*done.stderr.split()}


@pytest.mark.parametrize('module', ['paxtune.search', 'paxtune.studies'])
def test_help_imports_no_large_library(module: str) -> None:
    found = loaded(HELP, module, '--help')
    assert 'argparse' in found and not HEAVY & found


def test_event_files_import_no_client_of_object_stores() -> None:
    code = 'import sys\nimport trainer.runtime.event_file\nprint(*sys.modules, file=sys.stderr)'
    found = loaded(code)
    assert 'tensorboardX' in found
    assert not {'boto3', 'google.cloud.storage'} & found


def test_a_study_of_a_function_needs_no_jax_and_its_programs_are_cached(
    tmp_path: Path,
) -> None:
    given = {name: text for name, text in environment().items() if not name.startswith('JAX_')}
    done = subprocess.run(
        [sys.executable, '-c', FUNCTION, str(tmp_path / 'study')],
        cwd=ROOT,
        env=given | {'XDG_CACHE_HOME': str(tmp_path / 'cache')},
        capture_output=True,
        text=True,
        check=True,
    )
    cache = tmp_path / 'cache' / 'paxtune' / 'xla'
    assert done.stdout.splitlines() == ['', f'{cache} 0.0'], done.stderr


def test_progress_is_shown_on_a_terminal_unless_callbacks_are_given(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tune(lambda x: x, **PARALLEL).close()
    assert capsys.readouterr().out == ''
    monkeypatch.delenv('CI', raising=False)  # Lines are printed there.
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    tune(lambda x: x, callbacks=[], **PARALLEL).close()
    assert capsys.readouterr().out == ''
    tune(lambda x: x, **PARALLEL).close()
    assert '4 of 4 trials' in capsys.readouterr().out


def test_progress_is_not_shown_where_a_library_imports_the_kernel_of_notebooks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, 'ipykernel', os)
    tune(lambda x: x, **PARALLEL).close()
    assert capsys.readouterr().out == ''


def test_engines_of_workers_import_no_jax() -> None:
    code = 'import sys\nimport paxtune.engines.workers\nprint(*sys.modules, file=sys.stderr)'
    assert not {'jax', 'flax', 'orbax'} & loaded(code)
