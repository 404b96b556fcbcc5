"""Studies under all kinds of faults, and checks of the studies at their ends.

    python benchmarks/chaos.py --check

Processes are killed, and stopped for longer than a lease: workers, searches with their machines,
the service. The network between a machine and the service is slow, loses what one side sends, cuts
connections, or leaves them half-open. The disk of the trials is full, PostgreSQL is restarted. Some
trials raise, pass their memory, hang or become NaN by their decisions. Each kind of fault happens
alone, and pairs of them overlap, at moments that the seed determines. The study is then compared
with what workers had logged as acknowledged, with the same decisions run without workers and
faults, and with its files. Studies of 24 trials on 4 workers are kept by the search itself, by a
service with SQLite, and by one with PostgreSQL. Studies of a service run on two machines, with host
names and networks of their own.

`--quick`: one study, in PostgreSQL, 6 trials, 2 workers, one fault and two pairs. `--check` exits
with 1 where something does not hold.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chaotic import checks, faults, files  # noqa: E402
from benchmarks.chaotic.scene import Mode, Plan, Scene  # noqa: E402
from paxtune.study.study import Study  # noqa: E402
from tools.servers.postgres import PostgresMissingError  # noqa: E402

_LEASE_OF_AN_EMBEDDED_SERVICE = 30.0


def plan_of(mode: Mode, quick: bool, seed: int) -> Plan:
    """The plan of a run."""
    return Plan(
        mode,
        num_workers=2 if quick else 4,
        num_machines=2,
        num_trials=6 if quick else 24,
        seed=seed,
        num_alone=1 if quick else None,
        num_pairs=2 if quick else 5,
        between_faults=(1.0, 2.0) if quick else (2.0, 6.0),
        lease_seconds=_LEASE_OF_AN_EMBEDDED_SERVICE if mode == 'embedded' else 6.0,
        timeout=20.0 if quick else 40.0,
        max_attempts=2 if quick else 3,
        deadline=900.0 if quick else 2400.0,
    )


def run_all(
    plan: Plan, keep: Path | None
) -> Iterator[tuple[list[faults.Happened], list[checks.Check]]]:
    """Runs one study after another, until all planned faults have happened."""
    planned: deque[faults.Planned] | None = None
    for number in itertools.count():
        study = dataclasses.replace(plan, seed=plan.seed + number)
        start = time.monotonic()
        print(f'{plan.mode}: {plan.num_trials} trials, {plan.num_workers} workers, {study.seed=}')
        happened, found, planned = run(study, planned, keep)
        print(f'  {time.monotonic() - start:.0f} s in all', *found, sep='\n')
        yield happened, found
        if not planned or plan.num_alone is not None:
            return


def run(
    plan: Plan, planned: deque[faults.Planned] | None, keep: Path | None
) -> tuple[list[faults.Happened], list[checks.Check], deque[faults.Planned]]:
    """Runs a study, and looks at it. Returns the faults that are still planned, too."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scene = Scene(plan, Path(folder), stack)
        if keep is not None:
            stack.callback(_copy, scene, Path(folder), keep / f'{plan.mode}-{plan.seed}')
        writers = files.Writers(scene.job_log_dir)
        writers.start()
        if planned is None:
            planned = faults.schedule(plan, faults.faults_of(scene))
        happened = faults.happen(scene, planned, _tell)
        writers.stop()
        left = scene.left_behind()
        scene.end()
        with scene.study() as study:
            well = [trial.decisions for trial in study.trials if checks.fate(trial) is None]
            with scene.undisturbed(well) as undisturbed:
                found = checks.check(study, undisturbed, plan.num_trials, scene.logs())
            found += files.check_files(study)
            _tell_events(study)
        return (
            happened,
            [
                checks.Check('commands end only when they are to', 1, scene.surprises),
                checks.Check(
                    'commands print no traceback, the service no internal error', 1, scene.errors()
                ),
                checks.Check('no worker is left', 1, [f'process {pid}' for pid in left]),
                checks.Check('attempts have one writer', writers.looks, writers.wrong),
                *found,
            ],
            planned,
        )


def _copy(scene: Scene, folder: Path, target: Path) -> None:
    """Keeps what is left of a study, to look into."""
    for source in {folder, scene.job_log_dir}:
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)


def _tell(fault: faults.Happened) -> None:
    mark = '+' if fault.is_second else ' '
    print(f'{mark} {fault.at:6.1f} s  {fault.kind:39} {fault.details}', flush=True)


def _tell_events(study: Study) -> None:
    events = collections.Counter(
        event['event'] for trial in study.trials for event in trial.history
    )
    outcomes = collections.Counter(trial.status for trial in study.trials)
    for what, counts in (('trials', outcomes), ('their events', events)):
        text = ', '.join(f'{count} {name}' for name, count in sorted(counts.items()))
        print(f'  {what}: {text}')


def _count(
    counts: collections.Counter[str], happened: list[faults.Happened], found: list[checks.Check]
) -> None:
    counts['studies'] += 1
    counts['faults'] += len(happened)
    counts['network_or_overlapping'] += sum(
        each.overlaps or each.kind in faults.NETWORK for each in happened
    )
    counts['checked'] += sum(each.count for each in found)
    counts['checks'] += len(found)
    counts['held'] += sum(not each.wrong for each in found)


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument('--quick', action='store_true')
    flags.add_argument('--check', action='store_true')
    flags.add_argument('--seed', type=int, default=0)
    flags.add_argument('--modes', nargs='+', choices=get_args(Mode))
    flags.add_argument('--keep', type=Path, metavar='DIR', help='copy what is left there')
    args = flags.parse_args()
    # So that processes are ended and disks unmounted then, too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    counts: collections.Counter[str] = collections.Counter()
    faults_by_mode: list[tuple[str, str]] = []
    for mode in args.modes or (['postgresql'] if args.quick else get_args(Mode)):
        try:
            for happened, found in run_all(plan_of(mode, args.quick, args.seed), args.keep):
                _count(counts, happened, found)
                faults_by_mode += [(fault.kind, mode) for fault in happened]
        except PostgresMissingError as error:
            print(f'left out: {error}')
    if faults_by_mode:
        frame = pd.DataFrame(faults_by_mode, columns=['faults', 'store'])
        print(pd.crosstab(frame['faults'], frame['store'], margins=True, margins_name='all'))
    print('RESULT ' + json.dumps(counts))
    return int(args.check and not 0 < counts['checks'] == counts['held'])


if __name__ == '__main__':
    sys.exit(main())
