"""Runs that go on in another directory, where an earlier attempt left off."""

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.factories import real_input_experiments as killed
from tests.factories.runs import final_state, measured
from tests.factories.tiny import experiment
from tests.servers.processes import ROOT, environment
from trainer.checkpoints import handover
from trainer.checkpoints.checkpoint import CheckpointStore, saved_checkpoints
from trainer.checkpoints.handover import copy_file, take_over
from trainer.experiment import Experiment
from trainer.layers import Dropout
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.runtime.directory import JobPath
from trainer.runtime.metric_writer import read_metrics
from trainer.warm_start_rules import FILE

_PATH = type(epath.Path('/tmp'))


@pytest.fixture(scope='module')
def made() -> Experiment:
    return experiment(num_steps=6, task__model__dropout=Dropout(0.1), train__evaluation__every=3)


@pytest.fixture(scope='module')
def undisturbed(made: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp('undisturbed')
    measured(made, directory)
    return directory


def begin(made: Experiment, directory: JobPath, measurements: int = 1) -> None:
    """Runs an attempt that is lost after some measurements."""
    running = run(made, directory)
    for _ in range(measurements):
        next(running)
    running.close()


def assert_same(made: Experiment, directory: JobPath, undisturbed: JobPath) -> None:
    """Checks that a run has ended as another one, with its whole history."""
    state, wanted = (final_state(made, each) for each in (directory, undisturbed))
    jax.tree.map(np.testing.assert_array_equal, state, wanted)
    told, whole = (
        [
            {name: value for name, value in record.items() if 'per_second' not in name}
            | {'time': 0}
            for record in read_metrics(each / 'metrics.jsonl')
        ]
        for each in (directory, undisturbed)
    )
    assert told == whole


def digests(directory: epath.PathLike) -> dict[str, str]:
    """Reads the files of a directory."""
    path = epath.Path(directory)
    found: dict[str, str] = {}
    for child in path.iterdir():
        if child.is_dir():
            found |= {f'{child.name}/{name}': text for name, text in digests(child).items()}
        else:
            found[child.name] = hashlib.sha256(child.read_bytes()).hexdigest()
    return found


def steps(run_dir: JobPath) -> list[int]:
    """The complete checkpoints of a run."""
    directory = epath.Path(run_dir / 'checkpoints')
    return sorted(int(each.name) for each in saved_checkpoints(directory))


@pytest.fixture(params=['linked', 'copied', 'in a store'])
def how(request: pytest.FixtureRequest) -> str:
    """Copies of checkpoints between directories."""
    return str(request.param)


@pytest.fixture
def job(how: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> JobPath:
    """The directory that attempts have in common."""

    def link(source: Any, target: Any) -> None:
        raise OSError(errno.EXDEV, 'Invalid cross-device link')

    if how != 'linked':
        monkeypatch.setattr(os, 'link', link)
    found: JobPath = request.getfixturevalue('store' if how == 'in a store' else 'tmp_path')
    return found


@pytest.mark.fast(1)
def test_a_run_that_was_taken_over_ends_as_the_undisturbed_one(
    how: str, job: JobPath, made: Experiment, undisturbed: Path
) -> None:
    first, second = job / 'first', job / 'second'
    begin(made, first)
    before = digests(first / 'checkpoints')
    assert take_over([first], second) == 2
    if isinstance(job, Path):
        is_linked = os.stat(second / 'checkpoints/2/_CHECKPOINT_METADATA').st_nlink == 2
        assert is_linked == (how == 'linked')
    rest = measured(made, second)
    assert rest[0].resumed_from == 2
    assert_same(made, second, undisturbed)
    # Nothing was changed where it was, by orbax neither.
    assert digests(first / 'checkpoints') == before


def test_each_attempt_goes_on_from_the_furthest_of_all_before_it(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ('first', 'second', 'third'))
    fake(first, 2)
    assert take_over([first], second) == 2
    assert take_over([first, second, tmp_path / 'missing'], third) == 2
    fake(second, 4, 6)
    assert take_over([first, second], third) == 2, 'it has one of its own'
    shutil.rmtree(third)
    assert take_over([first, second], third) == 6
    assert steps(third) == [4, 6]


def test_where_the_newest_is_damaged_the_one_before_it_counts(
    made: Experiment, undisturbed: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / 'first', tmp_path / 'second'
    measured(made, first)
    for path in (first / 'checkpoints' / '6').rglob('*'):
        if path.is_file():
            path.write_bytes(b'')
    assert take_over([first], second) == 6
    assert measured(made, second)[0].resumed_from == 4
    assert_same(made, second, undisturbed)


def test_attempts_without_a_checkpoint_leave_nothing_to_go_on_from(tmp_path: Path) -> None:
    (tmp_path / 'empty' / 'checkpoints' / '2.orbax-checkpoint-tmp').mkdir(parents=True)
    (tmp_path / 'empty' / 'checkpoints' / '4').mkdir()
    earlier = [tmp_path / 'missing', tmp_path / 'empty']
    assert take_over(earlier, tmp_path / 'run') == 0
    assert take_over([], tmp_path / 'run') == 0
    assert not (tmp_path / 'run').exists()


def fake(run_dir: JobPath, *saved: int) -> None:
    """Checkpoints of a few files, which are taken for whole ones."""
    for step in saved:
        directory = run_dir / 'checkpoints' / str(step)
        (directory / 'state' / 'd').mkdir(parents=True)
        for name in ('_CHECKPOINT_METADATA', 'commit_success.txt', 'state/a', 'state/d/b'):
            (directory / name).write_text(f'{name} of {step}')
    lines = [f'{{"step": {step}, "train/loss": 1.0}}\n' for step in range(1, max(saved) + 3)]
    (run_dir / 'metrics.jsonl').write_text(''.join([*lines, '{"step": 99, "tr']))


class Killed(BaseException):
    """In place of a death at this point."""


@pytest.mark.fast(1)
def test_a_kill_leaves_nothing_that_looks_like_a_checkpoint(
    how: str, job: JobPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job / 'first'
    fake(first, 2, 4)
    whole = digests(first / 'checkpoints')
    # A store takes longer to answer.
    for kill_at in range(0, 100, 5 if how == 'in a store' else 1):
        target = job / f'target{kill_at}'
        with monkeypatch.context() as patch:
            left = [kill_at]
            for owner, name in CHANGES:
                die_after(patch, owner, name, left)
            try:
                assert take_over([first], target) == 4
                break
            except Killed:
                pass
        orbax = [p for p in (target / 'checkpoints').glob('*') if '-tmp' not in p.name]
        complete = [p for p in orbax if (p / 'commit_success.txt').exists()]
        assert how == 'in a store' or orbax == complete
        for path in complete:
            assert {f'{path.name}/{name}' for name in digests(path)} <= {*whole}
            assert len(digests(path)) == 4
        assert take_over([first], target) == 4, 'no step is repeated'
        records = read_metrics(target / 'metrics.jsonl')
        assert [record['step'] for record in records] == [1, 2, 3, 4]
    assert kill_at > 8
    assert steps(target) == [2, 4]


CHANGES = [
    (os, 'link'),
    (os, 'rename'),
    (handover, 'write_text'),
    *((_PATH, name) for name in ('mkdir', 'rename', 'copy', 'rmtree', 'write_text')),
]


def die_after(patch: pytest.MonkeyPatch, owner: Any, name: str, left: list[int]) -> None:
    """Has the process die in place of a call, after a number of counted ones."""
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return original(*args, **kwargs)

    patch.setattr(owner, name, counted)


@pytest.mark.parametrize('at', range(5))
@pytest.mark.fast(6)
def test_a_checkpoint_that_vanishes_gives_way_to_another(at: int, how: str, job: JobPath) -> None:
    first, target = job / 'first', job / 'target'
    fake(first, 2, 4)
    calls = [0]

    def vanishing(source: epath.Path, to: epath.Path) -> None:
        if calls[0] == at:
            # The earlier attempt has saved another one, and deletes the oldest.
            epath.Path(first / 'checkpoints' / '4').rmtree()
            fake(first, 6)
        calls[0] += 1
        copy_file(source, to)

    taken = take_over([first], target, vanishing)
    # All files of 4 were there already when it was deleted in the last case. In a store one of
    # them is written last.
    assert taken == (4 if at >= (3 if how == 'in a store' else 4) else 2)
    assert [p.name for p in (target / 'checkpoints').iterdir() if '-tmp' in p.name] == []
    assert len(digests(target / 'checkpoints' / str(taken))) == 4
    assert [r['step'] for r in read_metrics(target / 'metrics.jsonl')][-1] == taken


def test_where_all_vanish_it_is_looked_again(tmp_path: Path) -> None:
    first, target = tmp_path / 'first', tmp_path / 'target'
    fake(first, 2)

    def vanishing(source: epath.Path, to: epath.Path) -> None:
        if (first / 'checkpoints' / '2').exists():
            shutil.rmtree(first / 'checkpoints' / '2')
            fake(first, 4)
        copy_file(source, to)

    assert take_over([first], target, vanishing) == 4


def test_a_checkpoint_of_which_only_directories_are_left_is_left_out(tmp_path: Path) -> None:
    first, target = tmp_path / 'first', tmp_path / 'target'
    fake(first, 2, 4, 6)

    def emptied(source: epath.Path, to: epath.Path) -> None:
        for file in (first / 'checkpoints' / '4').rglob('*'):
            if file.is_file():
                file.unlink()
        copy_file(source, to)

    assert take_over([first], target, emptied) == 6
    assert steps(target) == [2, 6]


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    first, target = tmp_path / 'first', tmp_path / 'target'
    fake(first, 2)

    def full(source: epath.Path, to: epath.Path) -> None:
        raise OSError(errno.ENOSPC, 'No space left on device')

    with pytest.raises(OSError, match='No space left'):
        take_over([first], target, full)
    assert steps(target) == []
    assert take_over([first], target) == 2


@pytest.mark.slow
def test_a_checkpoint_taken_from_a_live_attempt_is_readable(tmp_path: Path) -> None:
    """In a process of its own: orbax mixes up a save and a restore that go on in one process."""
    made, first = killed.Text(), tmp_path / 'first'
    program, _ = compiled(localized(made))
    often = ['train.num_train_steps=40', 'train.checkpoints.every=1', 'train.checkpoints.keep=1']
    flags = [
        '--exp=tests.factories.real_input_experiments.Text',
        f'--job_log_dir={first}',
        '--set',
        *often,
    ]
    taken: list[int] = []
    with subprocess.Popen(
        [sys.executable, '-m', 'trainer.main', *flags, 'train.evaluation.every=40'],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    ) as running:
        while running.poll() is None:
            target = tmp_path / f'target{len(taken)}'
            step = take_over([first], target)
            with contextlib.closing(CheckpointStore(target / 'checkpoints')) as checkpoints:
                restored = checkpoints.restore(program.abstract_state)
            assert (restored.step if restored else 0) == step
            assert restored is None or restored.state.step == step
            taken.append(step)
    assert running.returncode == 0
    assert taken == sorted(taken)
    assert len({*taken}) > 2


def test_where_a_warm_start_came_from_is_taken_over(undisturbed: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed, tmp_path / 'one')
    (tmp_path / 'one' / FILE).write_text('{"sources": []}')
    take_over([tmp_path / 'one'], tmp_path / 'two')
    assert (tmp_path / 'two' / FILE).read_text() == '{"sources": []}'
