"""Removes one protection after another, and checks that each loss is noticed.

    python -m tests.mutations [--jobs=2] [--only=TEXT]
    python -m tests.mutations --parity [--tenth=COMMIT]

Each mutation is a patch in `tests/mutations/*.toml`. It is applied to a copy of the packages, where
its test, or the simulation of faults, has to fail. `--parity` takes those of the features that the
tables on parity with Pax require: each breaks a row, and a test that the row names has to fail.
Prints a table, and `RESULT {json}`. Exit
codes: 0 each mutation is caught; 1 one survives, a patch no longer applies, or a check fails
without any patch.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutations.catalog import PACKAGES, ROOT, Mutation, StaleError, read, tenth

_SECONDS = 240.0  # A check that takes longer is stopped, and has noticed nothing.
_FAULTS = 10_000
_CAUGHT = 'caught'
_PYTEST = ('pytest', '-q', '-p', 'no:cacheprovider', '-m', 'slow or not slow')


class Checked(NamedTuple):
    """The outcome of a mutation: 'caught', or the reason why it was not."""

    mutation: Mutation
    outcome: str
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    flags = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    flags.add_argument('--jobs', type=int, default=2, help='the number of checks at a time')
    flags.add_argument('--only', default='', help='mutations with this text in their names')
    flags.add_argument('--patches', type=Path, default=Path(__file__).parent, help='their folder')
    flags.add_argument('--parity', action='store_true', help='those of the tables on parity')
    flags.add_argument('--tenth', metavar='COMMIT', type=_hash, help='a tenth, by its hash')
    args = flags.parse_args(argv)
    began = time.perf_counter()
    named = [each for each in read(_folder(args)) if args.only in each.name]
    part = named if args.tenth is None else tenth(named, args.tenth)
    chosen = sorted(part, key=lambda each: not each.simulation)  # Simulations take longest.
    with _copies(args.jobs) as copies, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        if problem := _unpatched(copies, chosen, args.jobs):
            print(problem)
            return 1
        found = []
        try:
            for each in pool.map(lambda mutation: _checked(copies, mutation), chosen):
                found.append(each)
                print(_row(each), flush=True)
        except BaseException:  # Ctrl-C leaves the other mutations out.
            pool.shutdown(cancel_futures=True)
            raise
    missed = [each.mutation.name for each in found if each.outcome != _CAUGHT]
    result = {
        'mutations': len(found),
        'caught': len(found) - len(missed),
        'missed': missed,
        'seconds': round(time.perf_counter() - began, 1),
    }
    print(f'RESULT {json.dumps(result)}')
    return 1 if missed or not found else 0


def _hash(text: str) -> str:
    int(text, 16)  # A ValueError is an error of the flag.
    return text


def _folder(args: argparse.Namespace) -> Path:
    return args.patches / 'parity' if args.parity else args.patches


@contextlib.contextmanager
def _copies(count: int) -> Iterator['queue.Queue[Path]']:
    """Copies the packages and the tests, so that the work tree stays as it is."""
    free: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix='mutations-') as directory:
        for number in range(count):
            copy = Path(directory) / str(number)
            for name in (*PACKAGES, 'tests', 'tools', 'docs', 'examples', 'benchmarks'):
                # With the modules that Python has compiled, which have the times of their sources.
                shutil.copytree(ROOT / name, copy / name)
            for file in ROOT.iterdir():
                if file.is_file():
                    shutil.copy(file, copy)
            free.put(copy)
        yield free


def _unpatched(copies: 'queue.Queue[Path]', chosen: Sequence[Mutation], jobs: int) -> str:
    """Says which tests fail without any mutation; '' if none does."""
    tests = sorted({each.test for each in chosen if each.test})
    if not tests:
        return ''
    copy = copies.get()
    command = [*_PYTEST, f'-n{jobs}', '--dist=loadfile', *tests]
    code, output = _run(copy, command, _SECONDS * len(tests))
    copies.put(copy)
    return '' if code == 0 else f'{output}\nThe tests fail without any mutation.'


def _checked(copies: 'queue.Queue[Path]', mutation: Mutation) -> Checked:
    copy, began = copies.get(), time.perf_counter()
    path = copy / mutation.file
    try:
        path.write_text(mutation.applied((ROOT / mutation.file).read_text()))
        outcome = _outcome(copy, mutation)
    except (OSError, StaleError) as error:
        outcome = f'no longer applies: {error}'
    finally:
        if path.exists():
            shutil.copy2(ROOT / mutation.file, path)
        copies.put(copy)
    return Checked(mutation, outcome, time.perf_counter() - began)


def _outcome(copy: Path, mutation: Mutation) -> str:
    if mutation.test:
        command = [*_PYTEST, '-x', '-n0', mutation.test]
    else:
        command = ['tests.simulation', f'--faults={_FAULTS}', '--until_violation']
        command += shlex.split(mutation.simulation)
    code, output = _run(copy, command)
    # Python ends with 1 after an error, too.
    if code == 1 and (mutation.test or 'RESULT ' in output):
        return _CAUGHT
    if code is None:
        return f'takes more than {_SECONDS:g} s'
    last = output.strip().rpartition('\n')[2]
    return 'SURVIVES' if code == 0 else f'the check ends with {code}: {last}'


def _run(copy: Path, command: Sequence[str], seconds: float = _SECONDS) -> tuple[int | None, str]:
    """Runs a module in a copy. Returns its exit code, None after too long, and its output."""
    environment = os.environ | {'PYTHONPATH': str(copy), 'PYTHONDONTWRITEBYTECODE': '1'}
    process = subprocess.Popen(
        [sys.executable, '-m', *command],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ''
    finally:
        with contextlib.suppress(ProcessLookupError):  # The test may have started others.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _row(checked: Checked) -> str:
    mutation = checked.mutation
    return f'{checked.outcome:8} {checked.seconds:5.1f} s  {mutation.name:54} {mutation.check}'


if __name__ == '__main__':
    sys.exit(main())
