"""Processes that run cells, two at a time."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.search.cells import Cell
from benchmarks.search.methods import STOCK

ROOT = Path(__file__).parents[2]
WORKER = ROOT / 'benchmarks' / 'search' / 'worker.py'
MAX_BYTES = 3 * 2**30  # Beyond it a process is followed by another: JAX keeps what it compiles.


class Crew:
    """Some threads, each with a process for each environment, that share a list of cells."""

    def __init__(self, python_of: Callable[[str], Path], data_dir: Path, cache_dir: Path) -> None:
        """Starts nothing yet.

        Args:
            python_of: gives the interpreter of the environment with a name.
            data_dir: where the tables lie.
            cache_dir: where cells are kept.
        """
        self._python_of = python_of
        self._folders = str(data_dir), str(cache_dir)
        self._environment = os.environ | {
            # Two processes have two cores.
            'OMP_NUM_THREADS': '1',
            'JAX_PLATFORMS': 'cpu',
            # What libraries say of themselves and of each other.
            'TF_CPP_MIN_LOG_LEVEL': '3',
            'PYTHONWARNINGS': 'ignore',
            # All that is compiled is kept, as a study does.
            'JAX_COMPILATION_CACHE_DIR': str(cache_dir / 'compiled'),
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
            'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
        }
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[str]] = []
        self._is_over = False

    def run(
        self,
        cells: Sequence[tuple[str, Cell]],
        done: Callable[[Cell, str | None], None],
        processes: int = 2,
    ) -> None:
        """Runs cells.

        Args:
            cells: each with the name of the environment that it runs in.
            done: called with each cell that has ended, and with a traceback where it has failed.
            processes: how many run at once.
        """
        todo = iter(cells)
        errors: list[BaseException] = []

        def work() -> None:
            with contextlib.ExitStack() as stack:
                started: dict[str, subprocess.Popen[str]] = {}
                while not errors and not self._is_over:
                    with self._lock:
                        where, cell = next(todo, ('', None))
                    if cell is None:
                        return
                    try:
                        if where not in started:
                            started[where] = stack.enter_context(self._start(where))
                        answer = _ask(started[where], cell)
                        if 'error' in answer or answer['peak_bytes'] > MAX_BYTES:
                            _end(started.pop(where))
                        with self._lock:
                            done(cell, answer.get('error'))
                    except BaseException as error:
                        errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(processes)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:  # Also where this is ended from outside, in the middle of a cell.
            self._is_over = True
            for process in self._running:
                process.kill()
        if errors:
            raise errors[0]

    @contextlib.contextmanager
    def _start(self, where: str) -> Any:
        with self._lock:  # An environment is made once.
            python = self._python_of(where)
        process = subprocess.Popen(
            [str(python), str(WORKER), *self._folders],
            cwd=ROOT,
            env=self._environment | ({'JAX_ENABLE_X64': 'True'} if where == STOCK else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        try:
            yield process
        finally:
            _end(process)


def _ask(process: subprocess.Popen[str], cell: Cell) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(vars(cell)) + '\n')
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        return {'error': f'the process has ended: {process.wait()}', 'peak_bytes': 0}
    found: dict[str, Any] = json.loads(line)
    return found


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
