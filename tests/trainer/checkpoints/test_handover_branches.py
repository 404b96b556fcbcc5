"""Runs that are paused at rungs and go on, and runs that branch off others."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from tests.factories.runs import measured, without_speed
from tests.factories.tiny import experiment
from tests.trainer.checkpoints.test_handover import (
    CHANGES,
    Killed,
    assert_same,
    die_after,
    digests,
    fake,
    steps,
)
from trainer.checkpoints import handover
from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.experiment_record import FORKED_FROM
from trainer.checkpoints.handover import copy_file, fork_checkpoint, take_over
from trainer.experiment import Experiment
from trainer.layers import Dropout
from trainer.learner import DecayAtRungs
from trainer.loop.report import Interrupted, Report
from trainer.loop.train_loop import run
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import CheckpointGoneError, UserError


def made(**overrides: Any) -> Experiment:
    """Eight steps, with a rung after the third and one after the sixth, at which it is measured."""
    return experiment(
        num_steps=8,
        task__model__dropout=Dropout(0.1),
        task__learner__schedule=DecayAtRungs(ends=[3, 6, 8], decay_share=0.7),
        train__evaluation__every=3,
        **overrides,
    )


@pytest.fixture(scope='module')
def run_of_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Report]]:
    directory = tmp_path_factory.mktemp('whole')
    kept = {'train__checkpoints__every': 1, 'train__checkpoints__keep': 9}
    return directory, measured(made(**kept), directory)


@pytest.fixture
def whole(run_of_all: tuple[Path, list[Report]]) -> Path:
    """The directory of a run that nothing disturbed, with a checkpoint of each step."""
    return run_of_all[0]


@pytest.fixture
def undisturbed(run_of_all: tuple[Path, list[Report]]) -> dict[int, dict[str, float]]:
    """Returns its measurements by step."""
    return metrics(run_of_all[1])


def metrics(measurements: list[Report]) -> dict[int, dict[str, float]]:
    return {each.step: without_speed(each) for each in measurements}


def pause(directory: Path, at: int) -> list[Report]:
    """Runs until right after the measurement at a step, and checks that it is saved by then."""
    heard: list[Report] = []
    with pytest.raises(Interrupted, match=f'at step {at}') as interrupted:
        for each in run(made(), directory, lambda: bool(heard) and heard[-1].step == at):
            heard.append(each)
    assert interrupted.value.step == at
    newest = newest_checkpoint(directory / 'checkpoints')
    assert newest is not None and newest.name == str(at)
    return heard


# --- Pauses ---


@pytest.mark.slow
def test_a_run_that_was_paused_at_its_rungs_is_the_undisturbed_one(
    whole: Path, undisturbed: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    assert [*undisturbed] == [3, 6, 8]
    # Each time in a directory of its own, as on another worker.
    one, two, three = (tmp_path / name for name in ('one', 'two', 'three'))
    heard = metrics(pause(one, 3))
    assert take_over([one], two) == 3
    again = metrics(pause(two, 6))
    assert [*again] == [3, 6]
    assert take_over([one, two], three) == 6
    rest = metrics(measured(made(), three))
    assert [*rest] == [6, 8]
    for got in (heard, again, rest):
        assert got == {step: undisturbed[step] for step in got}
    assert_same(made(), three, whole)


def test_a_pause_at_a_repeated_measurement_trains_no_step(tmp_path: Path) -> None:
    pause(tmp_path, 3)
    saved = digests(tmp_path / 'checkpoints')
    (again,) = pause(tmp_path, 3)
    assert (again.step, again.resumed_from) == (3, 3)
    assert digests(tmp_path / 'checkpoints') == saved


def test_a_run_cannot_be_paused_after_its_last_measurement(tmp_path: Path) -> None:
    heard: list[int] = []
    for _ in range(2):
        for each in run(made(), tmp_path, lambda: bool(heard) and heard[-1] == 8):
            heard.append(each.step)
    assert heard == [3, 6, 8, 8]


# --- Branches ---


def test_with_the_same_numbers_a_branch_is_its_parent(
    whole: Path, undisturbed: dict[int, dict[str, float]], tmp_path: Path
) -> None:
    fork_checkpoint([whole], 3, tmp_path)
    assert os.stat(tmp_path / 'checkpoints/3/_CHECKPOINT_METADATA').st_nlink > 1
    provenance = json.loads((tmp_path / FORKED_FROM).read_text())
    assert provenance == {'run': str(whole), 'step': 3}
    assert not (tmp_path / 'metrics.jsonl').exists()
    before = digests(whole)
    got = measured(made(), tmp_path)
    assert [(each.step, each.resumed_from) for each in got] == [(3, 3), (6, 3), (8, 3)]
    assert metrics(got) == undisturbed
    assert min(r['step'] for r in read_metrics(tmp_path / 'metrics.jsonl')) == 3
    assert digests(whole) == before


@pytest.mark.parametrize(
    'numbers',
    [
        {'task__learner__learning_rate': 0.02},
        {'task__model__dropout__rate': 0.3},
        {'task__learner__schedule__ends': [3, 5, 8]},
    ],
    ids=lambda numbers: next(iter(numbers)).split('__')[-1],
)
def test_with_other_numbers_it_goes_its_own_way(
    numbers: dict[str, Any],
    whole: Path,
    undisturbed: dict[int, dict[str, float]],
    tmp_path: Path,
) -> None:
    fork_checkpoint([whole], 6, tmp_path)
    got = metrics(measured(made(**numbers), tmp_path))
    assert [*got] == [6, 8]
    assert got[6] == undisturbed[6]
    assert got[8]['eval/loss'] != undisturbed[8]['eval/loss']
    assert got[8]['spent_tokens'] == undisturbed[8]['spent_tokens']


@pytest.mark.slow
def test_later_writes_of_the_parent_change_nothing(tmp_path: Path) -> None:
    parent, branch = tmp_path / 'parent', tmp_path / 'branch'
    pause(parent, 3)
    fork_checkpoint([parent], 3, branch)
    taken = digests(branch)
    measured(made(), parent)
    assert 3 not in steps(parent)
    fork_checkpoint([parent], 3, branch)  # It has what it needs.
    shutil.rmtree(parent)
    assert digests(branch) == taken
    assert measured(made(), branch)[-1].step == 8


def test_a_later_attempt_at_a_branch_knows_where_it_began(whole: Path, tmp_path: Path) -> None:
    one, two = tmp_path / 'one', tmp_path / 'two'
    fork_checkpoint([whole], 3, one)
    assert take_over([one], two) == 3
    assert json.loads((two / FORKED_FROM).read_text())['run'] == str(whole)


def test_the_newest_attempt_that_has_it_counts(tmp_path: Path) -> None:
    fake(tmp_path / 'first', 2, 4)
    fake(tmp_path / 'second', 4, 6)
    sources = [tmp_path / name for name in ('missing', 'second', 'first')]
    for step, run_dir in ((4, 'second'), (2, 'first')):
        target = tmp_path / f'target{step}'
        fork_checkpoint(sources, step, target)
        assert steps(target) == [step]
        provenance = json.loads((target / FORKED_FROM).read_text())
        assert provenance == {'run': str(tmp_path / run_dir), 'step': step}


def test_a_branch_of_another_run_or_step_is_refused(tmp_path: Path) -> None:
    fake(tmp_path / 'parent', 2, 4)
    fake(tmp_path / 'other', 4)
    fork_checkpoint([tmp_path / 'parent'], 4, tmp_path / 'branch')
    for source, step in (('other', 4), ('parent', 2)):
        with pytest.raises(UserError, match=r'was forked from step 4 of .*/parent, and not from'):
            fork_checkpoint([tmp_path / source], step, tmp_path / 'branch')
    moved = tmp_path / 'moved'
    moved.mkdir()
    for name in ('parent', 'branch'):
        (tmp_path / name).rename(moved / name)
    fork_checkpoint([moved / 'parent'], 4, moved / 'branch')
    assert steps(moved / 'branch') == [4]


def test_a_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    fake(tmp_path / 'first', 2)
    (tmp_path / 'first' / 'checkpoints' / '4').mkdir()
    for sources in ([tmp_path / 'first', tmp_path / 'missing'], []):
        with pytest.raises(CheckpointGoneError, match=r'no checkpoint of step 4 .* fork bef'):
            fork_checkpoint(sources, 4, tmp_path / 'target')
    assert not (tmp_path / 'target').exists()


def test_a_branch_begins_with_a_complete_checkpoint(tmp_path: Path) -> None:
    fake(tmp_path / 'first', 4)
    fake(tmp_path / 'second', 4)
    # The second attempt was killed while it saved.
    (tmp_path / 'second' / 'checkpoints' / '4' / '_CHECKPOINT_METADATA').unlink()
    target = tmp_path / 'target'
    fork_checkpoint([tmp_path / 'second', tmp_path / 'first'], 4, target)
    assert json.loads((target / FORKED_FROM).read_text())['run'] == str(tmp_path / 'first')
    assert len(digests(target / 'checkpoints' / '4')) == 4


@pytest.mark.parametrize('at', range(4))
def test_one_that_is_deleted_meanwhile_is_looked_for_in_the_other_attempts(
    at: int, tmp_path: Path
) -> None:
    fake(tmp_path / 'first', 4)
    fake(tmp_path / 'second', 4)
    calls = [0]

    def vanishing(source: epath.Path, to: epath.Path) -> None:
        if calls[0] == at:
            shutil.rmtree(tmp_path / 'second' / 'checkpoints' / '4')
        calls[0] += 1
        copy_file(source, to)

    target = tmp_path / 'target'
    fork_checkpoint([tmp_path / 'second', tmp_path / 'first'], 4, target, vanishing)
    assert [path.name for path in (target / 'checkpoints').iterdir()] == ['4']
    assert json.loads((target / FORKED_FROM).read_text())['run'] == str(tmp_path / 'first')
    assert digests(target / 'checkpoints') == digests(tmp_path / 'first' / 'checkpoints')


BRANCH_CHANGES = [*CHANGES, (handover, 'write_json')]


def test_a_kill_leaves_nothing_that_looks_like_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / 'first', 4)
    whole_files = digests(tmp_path / 'first' / 'checkpoints')
    for kill_at in range(100):
        target = tmp_path / f'target{kill_at}'
        with monkeypatch.context() as patch:
            left = [kill_at]
            for owner, name in BRANCH_CHANGES:
                die_after(patch, owner, name, left)
            try:
                fork_checkpoint([tmp_path / 'first'], 4, target)
                break
            except Killed:
                pass
        assert not (target / 'checkpoints' / '4').exists()
        fork_checkpoint([tmp_path / 'first'], 4, target)
        assert steps(target) == [4]
        assert {f'4/{name}' for name in digests(target / 'checkpoints' / '4')} == {*whole_files}
        assert (target / FORKED_FROM).exists()
    assert kill_at > 7


def test_two_processes_at_once_bring_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path / 'first', 4)
    for at in range(100):  # The other one does all of it before this change of the first.
        target, left = tmp_path / f'target{at}', [at]
        with monkeypatch.context() as patch:
            for owner, name in BRANCH_CHANGES:
                _let_the_other_go_first(patch, owner, name, left, [tmp_path / 'first'], target)
            fork_checkpoint([tmp_path / 'first'], 4, target)
        assert [path.name for path in (target / 'checkpoints').iterdir()] == ['4']
        assert sorted(path.name for path in target.iterdir()) == ['checkpoints', FORKED_FROM]
        assert len(digests(target / 'checkpoints' / '4')) == 4
        if left[0] >= 0:
            break
    assert at > 7


def test_two_processes_at_once_share_no_partial_copy(tmp_path: Path) -> None:
    fake(tmp_path / 'first', 4)
    target = tmp_path / 'target'
    copied: list[epath.Path] = []

    def copy_as_another_begins(source: epath.Path, to: epath.Path) -> None:
        copied.append(to)
        if len(copied) == 2:  # The other is killed with a part of its copy made.
            with pytest.raises(Killed):
                fork_checkpoint([tmp_path / 'first'], 4, target, killed)
        copy_file(source, to)

    def killed(source: epath.Path, to: epath.Path) -> None:
        copied.append(to)
        raise Killed

    fork_checkpoint([tmp_path / 'first'], 4, target, copy_as_another_begins)
    names = {each.relative_to(target / 'checkpoints').parts[0] for each in copied}
    assert len(names) == 2
    assert len(digests(target / 'checkpoints' / '4')) == 4


def _let_the_other_go_first(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    left: list[int],
    sources: list[Path],
    target: Path,
) -> None:
    """Has another process branch off, too, after a number of counted calls."""
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            fork_checkpoint(sources, 4, target)
        return original(*args, **kwargs)

    patch.setattr(owner, name, counted)
