"""Studies under all kinds of faults, and checks of the studies at their ends.

    python benchmarks/chaos.py --check

At random moments workers, the service and the search are killed. A worker (and a machine) sleeps
longer than its lease, the disk of the trials is full, PostgreSQL is restarted. Some trials raise,
pass their memory, hang or become NaN by their decisions. The kinds of fault come one after another,
15 to 25 s apart, each kind once in a random order, then again, until the study is done. Then the
study is compared with what workers had logged as acknowledged, and with the same decisions run
without workers and faults. Three studies of 64 trials on 4 workers: kept by the search itself, by a
service with SQLite, and by one with PostgreSQL.

`--quick`: one study, in PostgreSQL, 8 trials, 2 workers; each kind of fault once, 2 to 4 s apart,
since there are six kinds and two minutes. `--check` exits with 1 where something does not hold.
"""

import argparse
import collections
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chaotic import checks, faults  # noqa: E402
from benchmarks.chaotic.scene import Mode, Plan, Scene  # noqa: E402
from paxtune.study.study import Study  # noqa: E402
from tests.postgres import PostgresMissingError  # noqa: E402

_LEASE_OF_AN_EMBEDDED_SERVICE = 30.0


def plan_of(mode: Mode, quick: bool, seed: int) -> Plan:
    """The plan of a run."""
    return Plan(
        mode,
        num_workers=2 if quick else 4,
        num_trials=8 if quick else 64,
        seed=seed,
        between_faults=(2.0, 4.0) if quick else (15.0, 25.0),
        rounds=1 if quick else 100,
        # Heartbeats are three seconds apart.
        lease_seconds=_LEASE_OF_AN_EMBEDDED_SERVICE if mode == 'embedded' else 6.0,
        timeout=12.0 if quick else 20.0,
        max_attempts=2 if quick else 3,
        deadline=300.0 if quick else 2400.0,
    )


def run(plan: Plan, keep: Path | None) -> tuple[list[faults.Happened], list[checks.Check]]:
    """Runs a study, and looks at it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scene = Scene(plan, Path(folder), stack)
        if keep is not None:
            stack.callback(_copy, scene, Path(folder), keep / plan.mode)
        kinds = faults.faults_of(scene)
        happened = faults.happen(scene, _tell)
        left = scene.left_behind()
        scene.end()
        with scene.study() as study:
            well = [trial.decisions for trial in study.trials if checks.fate(trial) is None]
            with scene.undisturbed(well) as undisturbed:
                found = checks.check(study, undisturbed, plan.num_trials, scene.logs())
            _tell_events(study)
        missing = sorted(kinds.keys() - {each.kind for each in happened})
        return happened, [
            checks.Check('kinds of fault happened', len(kinds), missing),
            checks.Check('commands end only when they are to', 1, scene.surprises),
            checks.Check('no worker is left', 1, [f'process {pid}' for pid in left]),
            *found,
        ]


def _copy(scene: Scene, folder: Path, target: Path) -> None:
    """Keeps what is left of a study, to look into."""
    for source in {folder, scene.job_log_dir}:
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)


def _tell(fault: faults.Happened) -> None:
    print(f'  {fault.at:6.1f} s  {fault.kind:39} {fault.details}', flush=True)


def _tell_events(study: Study) -> None:
    events = collections.Counter(
        event['event'] for trial in study.trials for event in trial.history
    )
    outcomes = collections.Counter(trial.status for trial in study.trials)
    for what, counts in (('trials', outcomes), ('their events', events)):
        text = ', '.join(f'{count} {name}' for name, count in sorted(counts.items()))
        print(f'  {what}: {text}')


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
    for mode in args.modes or (['postgresql'] if args.quick else get_args(Mode)):
        plan = plan_of(mode, args.quick, args.seed)
        print(f'{mode}: {plan.num_trials} trials, {plan.num_workers} workers, seed {plan.seed}')
        start = time.monotonic()
        try:
            happened, found = run(plan, args.keep)
        except PostgresMissingError as error:
            print(f'left out: {error}')
            continue
        print(f'  {time.monotonic() - start:.0f} s in all')
        kinds = collections.Counter(fault.kind for fault in happened)
        for kind, count in sorted(kinds.items()):
            print(f'  {count:3} × {kind}')
        print(*found, sep='\n')
        counts['trials'] += plan.num_trials
        counts['faults'] += len(happened)
        counts['checked'] += sum(each.count for each in found)
        counts['checks'] += len(found)
        counts['held'] += sum(not each.wrong for each in found)
    print('RESULT ' + json.dumps(counts))
    return int(args.check and not 0 < counts['checks'] == counts['held'])


if __name__ == '__main__':
    sys.exit(main())
