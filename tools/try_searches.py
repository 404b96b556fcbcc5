"""Searches a function, and two trials of an experiment: what an installation has to do at least.

    python tools/try_searches.py
    python tools/try_searches.py --wheel=dist/paxtune-0.3.0-py3-none-any.whl python3.11 python3.12

The first one searches with the paxtune of this Python. The second one installs a wheel, as a user
does, into an empty environment for each Python, prints what that takes, and searches there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_MEGABYTES = 900
MAX_PACKAGES = 60

EXPERIMENT = 'lm.StdlibTunable'


def main() -> None:
    """Fails where an installation or a search does."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('pythons', nargs='*', metavar='PYTHON')
    flags.add_argument('--wheel', type=Path)
    args = flags.parse_args()
    if args.wheel is None:
        search()
    for python in args.pythons:
        with tempfile.TemporaryDirectory() as directory:
            install(python, args.wheel, Path(directory))


def install(python: str, wheel: Path, directory: Path) -> None:
    """Installs a wheel into an empty environment, compares its size with the limits, and searches.

    Args:
        python: makes the environment.
        directory: of the environment.
    """
    venv = directory / 'venv'
    inside = venv / 'bin' / 'python'
    subprocess.run([python, '-m', 'venv', venv], check=True)
    empty, start = size_of(venv), time.monotonic()
    subprocess.run([inside, '-m', 'pip', 'install', '-q', wheel.resolve()], check=True)
    seconds = time.monotonic() - start
    packages, size = (after - before for after, before in zip(size_of(venv), empty, strict=True))
    print(f'installed in {seconds:.0f} s: {packages} packages, {size / 1e6:.0f} MB', flush=True)
    assert packages <= MAX_PACKAGES
    assert size / 1e6 <= MAX_MEGABYTES
    # Only the copy has no packages of ours beside it.
    script = shutil.copy(__file__, directory)
    environment = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    subprocess.run([inside, script], cwd=directory, env=environment, check=True)


def size_of(environment: Path) -> tuple[int, int]:
    """The number of packages in an environment, and the bytes of all its files."""
    files = [path for path in environment.rglob('*') if not path.is_symlink() and path.is_file()]
    packages = {path.parent for path in files if path.match('*.dist-info/METADATA')}
    return len(packages), sum(path.stat().st_size for path in files)


def search() -> None:
    """Searches a function and an experiment; prints the seconds from the start of each."""
    start = time.monotonic()
    import pyglove as pg

    import paxtune

    study = paxtune.tune(
        lambda x: (x - 0.3) ** 2,
        space={'x': pg.floatv(0.0, 1.0)},
        objective='minimize',
        num_trials=8,
    )
    assert study.best.reward < 0.1, study.best
    function, start = time.monotonic() - start, time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, '-m', 'paxtune', 'search', f'--exp={EXPERIMENT}', '--smoke']
        subprocess.run([*command, '--num_trials=2', f'--job_log_dir={directory}'], check=True)
        with paxtune.load_study(directory) as study:
            assert [trial.state for trial in study.trials] == ['COMPLETED'] * 2, study.trials
    print(
        f'Python {sys.version.split()[0]}: a function in {function:.0f} s, '
        f'two trials of {EXPERIMENT} in {time.monotonic() - start:.0f} s'
    )


if __name__ == '__main__':
    main()
