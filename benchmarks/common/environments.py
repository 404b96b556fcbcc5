"""Environments of their own for what paxtune is measured beside."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python_of(name: str, timeout: float = 900.0) -> Path:
    """The interpreter of an environment, which is made where it is missing or out of date.

    Args:
        name: of benchmarks/requirements/<name>.txt; the environment is .venv-<name>.
        timeout: how many seconds the installation may take.
    """
    requirements, folder = (
        ROOT / 'benchmarks' / 'requirements' / f'{name}.txt',
        ROOT / f'.venv-{name}',
    )
    python, stamp = folder / 'bin' / 'python', folder / 'installed'
    wanted = f'{ROOT}\n{sys.version}\n{requirements.read_text()}'
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        pip = [str(python), '-m', 'pip', 'install', '-q', '--disable-pip-version-check']
        command = [*pip, '-r', str(requirements)]
        subprocess.run(command, check=True, timeout=timeout, stdout=sys.stderr)
        # Written last, so that an install that was interrupted begins again.
        stamp.write_text(wanted)
    return python
