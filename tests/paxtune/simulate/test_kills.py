"""Studies that pause, promote and fork, killed 200 times: nothing is lost, nothing counts twice."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paxtune.running.supervisor import wait_for_the_last
from paxtune.simulate.replay_workload import load
from paxtune.storage.open_study import load_study
from paxtune.study.study import Study
from paxtune.study.trial import Trial
from paxtune.study.trial_paths import attempt_directories
from tests.factories.curve_tables import write_curves
from tests.servers.processes import ROOT, environment
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.slow

STEPS = 8
SCHEDULERS = {
    'asha': 'PromotingAsha(min_resource=1, reduction_factor=2)',
    'hyperband': 'Hyperband(min_resource=1, reduction_factor=2)',
    'population': 'PopulationBasedTraining(population_size=4, interval=2, quantile=0.5)',
}
MOMENTS = {  # Each of them as often as it stands there.
    'asha': ['pause', 'promote', 'pause', 'promote', 'promote', 'end'],
    'hyperband': ['pause', 'promote', 'pause', 'promote', 'promote', 'end'],
    'population': ['pause', 'promote', 'fork', 'fork', 'branch', 'branch'],
}
ALGORITHM = 'RegularizedEvolution(population_size=3, tournament_size=2)'
KILLS, KILLS_OF_WORKERS = 55, 12  # For each scheduler: 201 together.


class Nursery:
    """Starts searches without delay: see `tests.factories.forked_simulations`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'tests.factories.forked_simulations'],
            env=environment(),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, argv: list[str], kill: str | None, log: Path) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {'argv': argv, 'kill': kill, 'log': str(log)}
        self._process.stdin.write(json.dumps(job) + '\n')
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope='module')
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope='module')
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_curves(tmp_path_factory.mktemp('table') / 'curves.json', steps=STEPS)


def flags(table: Path, scheduler: str, directory: Path, seed: int, num_trials: int) -> list[str]:
    return [
        f'--table={table}',
        f'--scheduler={SCHEDULERS[scheduler]}',
        f'--algorithm={ALGORITHM}',
        f'--num_trials={num_trials}',
        f'--seed={seed}',
        '--processes',
        f'--job_log_dir={directory}',
    ]


def events(trial: Trial, *kinds: str) -> list[tuple[str, str]]:
    found = [(each['event'], each.get('detail', '')) for each in trial.history]
    return [each for each in found if each[0] in kinds]


def told(study: Study) -> list[Any]:
    """All that a kill must not change where one process runs the trials."""
    return [
        (
            trial.id,
            trial.status,
            trial.decisions,
            trial.record.pauses,
            trial.lineage.forked_from,
            trial.lineage.replaces,
            trial.lineage.parent,
            trial.reason,
            trial.final,
            [(each.step, each.reward) for each in trial.measurements],
            events(trial, 'paused', 'promoted', 'ended'),
        )
        for trial in study.trials
    ]


def whole_trace(study: Study, trial: Trial, until: int) -> list[tuple[int, int]]:
    """All training that the state of a trial stands for, as its lineage says."""
    before: list[tuple[int, int]] = []
    if trial.lineage.forked_from is not None:
        parent, step = trial.lineage.forked_from
        before = whole_trace(study, study.trial(parent), step)
    begun = before[-1][1] if before else 0
    return before + [(trial.id, step) for step in range(begun + 1, until + 1)]


def require_sound(study: Study, num_trials: int) -> None:
    """Checks a study after a kill."""
    trials = study.trials
    assert [trial.id for trial in trials] == list(range(1, len(trials) + 1))
    assert len(trials) <= num_trials
    replaced = [trial.lineage.replaces for trial in trials if trial.lineage.replaces is not None]
    assert len({*replaced}) == len(replaced)
    for trial in trials:
        assert trial.state != 'INFEASIBLE', trial.reason
        assert len(events(trial, 'ended')) == trial.is_terminal
        turns = [name for name, _ in events(trial, 'paused', 'promoted')]
        assert turns == ['paused', 'promoted'] * (len(turns) // 2) + ['paused'] * (len(turns) % 2)
        assert turns.count('paused') == len(trial.record.pauses)
        steps = [each.step for each in trial.measurements]
        first = trial.lineage.forked_from[1] if trial.lineage.forked_from is not None else 1
        assert steps == list(range(first, first + len(steps)))
        if not trial.is_terminal and trial.continues_from is not None:
            require_checkpoint(study, trial)


def require_sound_if_there(directory: Path, num_trials: int) -> None:
    """The same, where the kill has left a study."""
    try:
        study = load_study(directory)
    except UserError as error:  # It was killed before it had made one.
        assert 'no study' in str(error) or 'cannot be opened' in str(error)
        return
    with study:
        require_sound(study, num_trials)


def require_checkpoint(study: Study, trial: Trial) -> None:
    """Checks that the state that a trial resumes from exists, or its source."""
    assert trial.continues_from is not None
    whose, step = trial.continues_from
    own = [Path(each) / 'checkpoints' for each in attempt_directories(study.directory, trial)]
    parents = attempt_directories(study.directory, study.trial(whose)) if whose != trial.id else []
    found = [newest_checkpoint(each) for each in own]
    found += [newest_checkpoint(Path(each) / 'checkpoints' / str(step)) for each in parents]
    there = [Path(each) for each in found if each is not None and int(each.name) >= step]
    assert there, f'trial {trial.id} cannot go on from step {step} of trial {whose}'
    for each in there:
        lineage = study.trial(whose) if str(each.parent) not in map(str, own) else trial
        assert list(load(each).trace) == whole_trace(study, lineage, int(each.name))


def require_done(study: Study, num_trials: int) -> None:
    """Checks a study at its end."""
    require_sound(study, num_trials)
    trials = study.trials
    assert study.is_done and len(trials) == num_trials
    assert all(trial.is_terminal for trial in trials)
    takers = {
        trial.lineage.replaces: trial for trial in trials if trial.lineage.replaces is not None
    }
    for trial in trials:
        if trial.id in takers:
            assert trial.reason == f'replaced by trial {takers[trial.id].id}'
        elif trial.status == 'stopped':
            assert trial.reason == f'not promoted from step {trial.record.pauses[-1]}'
        else:
            newest = newest_checkpoint(
                Path(attempt_directories(study.directory, trial)[-1]) / 'checkpoints'
            )
            assert newest is not None
            assert list(load(Path(newest)).trace) == whole_trace(study, trial, STEPS)
    counts = Counter(str(trial.status) for trial in trials)
    assert counts['completed'] and counts['stopped'], counts


def drawn_kill(rng: random.Random, scheduler: str) -> str:
    kind = rng.choice(['event', 'moment', 'moment', 'after'])
    if kind == 'event':
        return f'event:{rng.randint(1, 160)}'
    if kind == 'after':
        return f'after:{rng.uniform(0.0, 0.4):.3f}'
    return f'{rng.choice(MOMENTS[scheduler])}:{rng.randint(1, 2)}+{rng.randint(0, 12)}'


@pytest.mark.timeout(1200)
@pytest.mark.parametrize('scheduler', list(SCHEDULERS))
def test_a_killed_study_in_one_process_ends_as_the_undisturbed_one(
    scheduler: str, nursery: Nursery, table: Path, tmp_path: Path
) -> None:
    rng, num_trials, kills = random.Random(scheduler), 10, 0
    for seed in range(KILLS):
        directory, log = tmp_path / f'killed-{seed}', tmp_path / f'{seed}.log'
        argv = flags(table, scheduler, directory, seed, num_trials)
        own = 0
        while True:
            # The last ones of all end one study, so that it is compared, too.
            kill = drawn_kill(rng, scheduler) if kills < KILLS else None
            code = nursery.run(argv, kill, log)
            if code != -signal.SIGKILL:
                break
            kills += 1
            own += 1
            require_sound_if_there(directory, num_trials)
        assert code == 0, log.read_text()
        alone = tmp_path / f'alone-{seed}'
        assert nursery.run(flags(table, scheduler, alone, seed, num_trials), None, log) == 0
        with load_study(directory) as study, load_study(alone) as undisturbed:
            require_done(study, num_trials)
            assert told(study) == told(undisturbed), f'seed {seed}, {own} kills'
        print(f'{scheduler}, seed {seed}: {own} kills')
        if kills == KILLS:
            return
    raise AssertionError(f'only {kills} kills have hit')


# --- Workers ---


def started(argv: list[str], log: Path) -> 'subprocess.Popen[bytes]':
    with open(log, 'ab') as out:
        return subprocess.Popen(
            [sys.executable, '-m', 'paxtune.simulate', *argv],
            env=environment(),
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )


def busy_worker(
    process: 'subprocess.Popen[bytes]', directory: Path, rng: random.Random
) -> psutil.Process | None:
    """A worker that has a trial; None without one, or if the search has just ended."""
    try:
        children = psutil.Process(process.pid).children()
        with load_study(directory) as study:
            holders = {trial.record.holder for trial in study.trials if trial.record.holder}
        names = [f'--worker={holder}' for holder in sorted(holders)]
        busy = [each for each in children if {*each.cmdline()} & {*names}]
    except (psutil.Error, UserError):
        return None
    return rng.choice(busy) if busy else None


def killed_once(
    process: 'subprocess.Popen[bytes]', directory: Path, rng: random.Random, is_whole: bool
) -> bool:
    """Kills a worker that has a trial, or the whole search; False if the search has ended."""
    while process.poll() is None:
        worker = busy_worker(process, directory, rng)
        time.sleep(rng.uniform(0.05, 1.0))
        if worker is None or not worker.is_running():
            continue
        if is_whole:
            process.kill()
            return process.wait() == -signal.SIGKILL
        with contextlib.suppress(psutil.Error):
            worker.kill()
            return True
    return False


@pytest.mark.timeout(1200)
@pytest.mark.parametrize('scheduler', list(SCHEDULERS))
@pytest.mark.sentinel
def test_workers_that_are_killed_lose_nothing(scheduler: str, table: Path, tmp_path: Path) -> None:
    rng, num_trials, kills = random.Random(scheduler), 10, 0
    for seed in range(KILLS_OF_WORKERS):
        directory, log = tmp_path / str(seed), tmp_path / f'{seed}.log'
        argv = [
            *flags(table, scheduler, directory, seed, num_trials),
            '--workers=3',
            '--speedup=0.25',
        ]
        process = started(argv, log)
        try:
            while kills < KILLS_OF_WORKERS:
                is_whole = kills % 6 == 4
                if not killed_once(process, directory, rng, is_whole):
                    break
                kills += 1
                if is_whole:
                    wait_for_the_last(directory, 60.0)  # They end with it.
                    require_sound_if_there(directory, num_trials)
                    process = started(argv, log)
            assert process.wait(timeout=600) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
        with load_study(directory) as study:
            require_done(study, num_trials)
        print(f'{scheduler}, seed {seed}, workers: {kills} kills so far')
        if kills == KILLS_OF_WORKERS:
            return
    raise AssertionError(f'only {kills} kills have hit')
