"""Suggestions and reports a second of one service with 64 workers, beside Optuna.

    python benchmarks/service_load.py --check

Each worker has a connection, a study and a cache of its own, as a worker process has. They share
eight processes, as threads: 64 processes would spend two cores on starting. Four contenders have
the same workers, in the same processes and threads, and the same trials:

    paxtune, PostgreSQL     one `python -m paxtune.serve`, workers with `Study.ask`
    paxtune, SQLite         the same with a file
    Optuna, PostgreSQL      `RDBStorage` in the same server, which writes through to the disk
    Optuna, journal         `JournalStorage` in a file

A trial has 4 decisions about plain values, drawn at random, 3 reports of one metric, and an end.
When the study holds 100, 1,000 and 10,000 trials, the workers do rounds of it in step: all suggest,
all report, all complete. The time of a part is that from its beginning to the last worker's end.
The contenders take turns round by round, so that all see the same machine; one that has taken half
a minute has had enough of them. The median round counts: a garbage collection, or a disk that
waits, takes longer than a round. Before that, one worker alone opens the study, of a service that
was just started, and reads all trials.

Goals: ahead of Optuna on PostgreSQL at 10,000 trials, in suggestions and in reports; opening takes
under 5 s. Optuna is installed into `.venv-service_load` when this is first run.

`--quick` has 8 workers, in two processes, and 10,000 trials only; `--check` exits with 1 where a
goal is missed.
"""

import argparse
import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
WORKERS = ROOT / 'benchmarks' / 'load' / 'workers.py'
OPEN_GOAL = 5.0
ENOUGH_SECONDS = 30.0
PARTS = ('suggest', 'report', 'complete')


class Crew:
    """Workers of one contender: processes with some threads each."""

    def __init__(self, python: Path, kind: str, where: str, processes: int, threads: int) -> None:
        command = [str(python), str(WORKERS), kind, where, str(threads)]
        pipes: dict[str, Any] = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
        self._processes = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(processes)]
        try:
            self.do('prepare')
        except BaseException:
            self.close()
            raise

    def do(self, command: str, *arguments: Any) -> float:
        """Seconds until all workers have done it."""
        start = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([command, *arguments]) + '\n')
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline() != 'done\n':
                raise RuntimeError(f'a worker has failed at: {command}')
        return time.perf_counter() - start

    def __enter__(self) -> 'Crew':
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


class Contender:
    """One kind of workers, and what they work with.

    Attributes:
        name: for people.
        opening: seconds in which one worker alone opens the study and reads its trials.
        seconds: of each part of a round, one number for each round.
        bytes: what a trial takes where they are kept.
    """

    def __init__(self, name: str, python: Path, place: str, size: Callable[[], int]) -> None:
        """Makes a contender.

        Args:
            name: for people.
            python: what its workers run on.
            place: where its trials are kept.
            size: how many bytes they take there.
        """
        self.name = name
        self._kind = name.partition(',')[0]
        self._python, self._place, self._size = python, place, size
        self._empty = size()
        self.opening = self.bytes = 0.0
        self.seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def ready(self, count: int, processes: int, threads: int) -> Iterator[Crew]:
        """Its workers, of a study that holds a number of trials."""
        with self._served() as where, self._crew(where, 1, 1) as one:
            one.do('open')
            one.do('fill', count)
        self.bytes = (self._size() - self._empty) / count
        with self._served() as where:
            with self._crew(where, 1, 1) as one:
                self.opening = one.do('open') + one.do('trials')
            with self._crew(where, processes, threads) as crew:
                crew.do('open')
                self.round(crew)  # In which they read what is there, and connect.
                self.seconds = {part: [] for part in PARTS}
                yield crew

    def round(self, crew: Crew) -> None:
        """A trial of each worker."""
        for part in PARTS:
            self.seconds.setdefault(part, []).append(crew.do(part))

    def rate(self, part: str, workers: int) -> float:
        """Number of operations a second in the median round."""
        from benchmarks.load.workers import STEPS

        each = len(STEPS) if part == 'report' else 1
        return each * workers / statistics.median(self.seconds[part])

    def _crew(self, where: str, processes: int, threads: int) -> Crew:
        return Crew(self._python, self._kind, where, processes, threads)

    @contextlib.contextmanager
    def _served(self) -> Iterator[str]:
        """Where workers find the study: a service that was just started, with paxtune."""
        if self._kind == 'Optuna':
            yield self._place
            return
        command = [sys.executable, '-m', 'paxtune.serve', f'--database={self._place}', '--port=0']
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as service:
            try:
                assert service.stdout is not None
                found = re.search(r' at (127\.0\.0\.1:\d+) ', service.stdout.readline())
                if found is None:
                    raise RuntimeError('the service does not start')
                yield found[1]
            finally:
                service.terminate()


@contextlib.contextmanager
def contenders() -> Iterator[list[Contender]]:
    """All of them, their databases empty."""
    import psycopg

    from benchmarks.common.environments import python_of
    from tools.servers.postgres import PostgresServer

    peers, own = python_of('service_load', 300), Path(sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix='service_load') as folder,
        PostgresServer.started(is_durable=True) as server,
    ):
        # Each worker of Optuna takes up to two connections; a server lets in 100.
        with psycopg.connect(server.url('postgres'), autocommit=True) as connection:
            connection.execute('ALTER SYSTEM SET max_connections = 300')
        server.restart()
        urls = [server.new_database() for _ in range(2)]
        files = [Path(folder, name) for name in ('studies.db', 'journal')]
        driver = urls[1].replace('postgresql:', 'postgresql+psycopg:')
        yield [
            Contender('paxtune, PostgreSQL', own, urls[0], lambda: database_bytes(urls[0])),
            Contender('paxtune, SQLite', own, str(files[0]), lambda: file_bytes(files[0])),
            Contender('Optuna, PostgreSQL', peers, driver, lambda: database_bytes(urls[1])),
            Contender('Optuna, journal', peers, str(files[1]), lambda: file_bytes(files[1])),
        ]


def database_bytes(url: str) -> int:
    """Size of a PostgreSQL database."""
    import psycopg

    with psycopg.connect(url) as connection:
        found: Any = connection.execute('SELECT pg_database_size(current_database())').fetchone()
        return int(found[0])


def file_bytes(path: Path) -> int:
    """Size of a file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def measure(all_: list[Contender], count: int, processes: int, threads: int, rounds: int) -> None:
    """Rounds of all contenders, in turns, of studies of a size; prints what came out."""
    with contextlib.ExitStack() as stack:
        crews = [stack.enter_context(each.ready(count, processes, threads)) for each in all_]
        for _ in range(rounds):
            for each, crew in zip(all_, crews, strict=True):
                if sum(map(sum, each.seconds.values())) < ENOUGH_SECONDS:
                    each.round(crew)
    for each in all_:
        rates = '  '.join(f'{part} {each.rate(part, processes * threads):6.0f}/s' for part in PARTS)
        rest = f'opening {each.opening:5.2f} s  {each.bytes:5.0f} bytes'
        print(f'{count:6} {each.name:20} {rates}  {rest}', flush=True)


def result(all_: list[Contender], workers: int) -> dict[str, float]:
    """Ratios, of what was measured last."""
    own, own_file, peer, journal = all_
    found = {'opening_to_goal': own.opening / OPEN_GOAL}
    for part in PARTS:
        found[f'{part}_to_postgres'] = own.rate(part, workers) / peer.rate(part, workers)
        found[f'{part}_to_journal'] = own_file.rate(part, workers) / journal.rate(part, workers)
    return found


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    args = flags.parse_args()
    processes, threads, rounds = (2, 4, 20) if args.quick else (8, 8, 10)
    # Whatever hangs, and however this is ended: what was started is ended with it.
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    signal.alarm(600 if args.quick else 2400)
    with contenders() as all_:
        for count in (10_000,) if args.quick else (100, 1000, 10_000):
            measure(all_, count, processes, threads, rounds)
    found = result(all_, processes * threads)
    print('RESULT ' + json.dumps({name: round(value, 3) for name, value in found.items()}))
    is_met = (
        found['opening_to_goal'] < 1
        and found['suggest_to_postgres'] > 1
        and found['report_to_postgres'] > 1
    )
    return int(args.check and not is_met)


if __name__ == '__main__':
    sys.exit(main())
