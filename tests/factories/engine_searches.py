"""Searches with any engine, whose trials are disturbed once: a file in their folder says how.

python -m tests.factories.engine_searches ENGINE FOLDER TRIALS HOURS

A line of the output is the outcome of the search.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyglove as pg

from paxtune import InProcess, MultiHost, Packed, Ray, Remote, Slurm, Threads, Workers, tune
from paxtune.config.budget import Budget
from paxtune.engines.base import Engine
from paxtune.engines.remote_multi_host import RemoteMultiHost
from paxtune.engines.supervised import WorkerConfig
from paxtune.engines.vizier_storage import VizierStorage
from paxtune.experiment import Tunable
from paxtune.running.trial_errors import StudyStoppedError
from paxtune.running.tuner import Paused
from paxtune.service.address import Service
from tests.factories import tunables
from tests.factories.tiny import CountingInput
from trainer import command
from trainer.inputs.base import Batch
from trainer.mesh import Mesh
from trainer.runtime import processes

STUDY, ENDPOINT, INTERRUPTED = 'study', 'endpoint', 'interrupted'
"""Names in the folder of a search: the study, its service's address, a request to save and end."""

OUTCOMES = ('done', 'paused', 'stopped')

_HELD_SECONDS = 5.0
"""The time that a step takes once an interrupt is requested: a search must notice it."""


def service(folder: Path) -> Service:
    """The service that keeps the study of a folder."""
    return Service((folder / ENDPOINT).read_text(), STUDY)


ENGINES: dict[str, Callable[[Path], Engine]] = {
    'in_process': lambda folder: InProcess(),
    'threads': lambda folder: Threads(2),
    'packed': lambda folder: Packed(2),
    'workers': lambda folder: Workers(2),
    'remote': lambda folder: Remote(service(folder), WorkerConfig(2)),
    'multi_host': lambda folder: MultiHost(),
    'remote_multi_host': lambda folder: RemoteMultiHost(Remote(service(folder))),
    'ray': lambda folder: Ray(2, lease_seconds=10.0),
    'vizier_storage': lambda folder: VizierStorage(service(folder)),
    'slurm': lambda folder: Slurm(2, options={'time': '60'}, lease_seconds=10.0),
}
TRAINS = {'packed', 'multi_host', 'remote_multi_host'}
"""Engines whose trials are those of an experiment; the others call a function."""


def _kill(*processes: int) -> None:
    for each in processes:
        os.kill(each, signal.SIGKILL)


def _fail() -> None:
    raise OSError('the disk is lost')


def _disturb(folder: Path) -> None:
    """Does once what a file in the folder asks for."""
    actions: dict[str, Callable[[], None]] = {
        'pause': (folder / INTERRUPTED).touch,
        'fail': _fail,
        'kill': lambda: _kill(os.getpid()),
        'kill_job': lambda: _kill(os.getppid(), os.getpid()),
    }
    for name, action in actions.items():
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
            action()


def disturbed(x: float, folder: str) -> Iterator[dict[str, float]]:
    """A function of three steps."""
    for step in range(1, 4):
        _disturb(Path(folder))
        yield {'objective': x / step}
        last = time.monotonic() + _HELD_SECONDS
        while (Path(folder) / INTERRUPTED).exists() and time.monotonic() < last:
            time.sleep(0.1)


class DisturbedInput(CountingInput):
    """Data that disturb the first process of a search.

    Attributes:
        folder: of the search.
    """

    folder: str

    def get_next(self) -> Batch:
        if self._batch == 3 and processes.is_first():
            _disturb(Path(self.folder))
        return super().get_next()


def experiment(folder: Path) -> Tunable:
    """An experiment of six steps, on all devices."""
    data = DisturbedInput(batch_size=8, is_training=True, folder=str(folder))
    return tunables.Rates().rebind({'mesh': Mesh(data=-1), 'train_input': data})


def outcome(
    engine: Engine, folder: Path, trials: int, hours: float | None = None, trains: bool = False
) -> str:
    """Searches, and returns one of `OUTCOMES`."""
    what: Any = experiment(folder) if trains else disturbed
    fields: dict[str, Any] = {}
    if not trains:
        fields['space'] = {'x': pg.floatv(0.0, 1.0), 'folder': str(folder)}
        fields['objective'] = 'minimize'
    try:
        tune(
            what,
            engine=engine,
            job_log_dir=folder / STUDY,
            budget=Budget(trials, hours=hours),
            algorithm='random_search',
            should_interrupt=(folder / INTERRUPTED).exists,
            callbacks=[],
            **fields,
        ).close()
    except Paused:
        return 'paused'
    except StudyStoppedError as error:
        print(error)
        return 'stopped'
    return 'done'


def main(argv: Sequence[str] | None) -> int:
    flags = command.parser(__doc__)
    for name in ('engine', 'folder', 'trials', 'hours'):
        flags.add_argument(name)
    command.add_process_flags(flags)
    args = flags.parse_args(argv)
    if args.coordinator is not None:
        from trainer.runtime import processes

        processes.start(args)
    folder, hours = Path(args.folder), float(args.hours) or None
    engine, trains = ENGINES[args.engine](folder), args.engine in TRAINS
    print(outcome(engine, folder, int(args.trials), hours, trains), flush=True)
    return 0


if __name__ == '__main__':
    # Workers import its classes and functions by the name of the module.
    from tests.factories import engine_searches

    command.run_command(engine_searches.main, trains=True)
