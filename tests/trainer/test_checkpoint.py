"""Checkpoints that somebody, or a disk, has changed."""

import contextlib
import datetime
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.trainer.tiny import experiment
from trainer.checkpoint import Checkpoints, load_params
from trainer.checksums import checksums
from trainer.contents import Contents, DamagedError
from trainer.errors import UserError
from trainer.experiment import TrainLoop
from trainer.loop import run
from trainer.preservation import Preservation
from trainer.setup import compiled, localized
from trainer.state import TrainState


@pytest.fixture(scope='module')
def abstract() -> TrainState:
    return compiled(localized(experiment()))[0].abstract_state


@pytest.fixture(scope='module')
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of the steps 2 and 4."""
    directory = tmp_path_factory.mktemp('saved')
    for _ in run(experiment(num_steps=4), directory):
        pass
    return directory / 'checkpoints'


@pytest.fixture(scope='module')
def whole(saved: Path, abstract: TrainState) -> dict[int, TrainState]:
    """What is in them."""
    with contextlib.closing(Checkpoints(saved)) as reader:
        newest = reader.restore(abstract)
    assert newest is not None and newest.step == 4
    return {4: jax.device_get(newest.state)}


def truncated(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]


def emptied(data: bytes) -> Iterator[bytes]:
    yield b''


def flipped(data: bytes) -> Iterator[bytes]:
    """A byte flipped at some places, the first and the last among them."""
    rng = np.random.default_rng(len(data))
    for place in {0, len(data) - 1, *rng.integers(0, len(data), 6).tolist()}:
        yield data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]


# Orbax leaves what it has begun to read, and Python says so when that is collected.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('damage', [truncated, emptied, flipped])
def test_no_damage_to_a_file_ends_in_silent_garbage(
    damage: Callable[[bytes], Iterator[bytes]],
    saved: Path,
    whole: dict[int, TrainState],
    abstract: TrainState,
    tmp_path: Path,
) -> None:
    shutil.copytree(saved, tmp_path / 'checkpoints')
    outcomes = []
    files = [file for file in sorted((tmp_path / 'checkpoints' / '4').rglob('*')) if file.is_file()]
    for file in files:
        data = file.read_bytes()
        for changed in damage(data) if data else ():
            file.write_bytes(changed)
            outcomes.append(outcome(tmp_path / 'checkpoints', whole[4], abstract))
        file.write_bytes(data)
    assert len(files) >= 5
    assert set(outcomes) <= {'fallen back', 'said', 'unharmed'}
    assert outcomes.count('fallen back') >= 3


def outcome(directory: Path, wanted: TrainState, abstract: TrainState) -> str:
    """What becomes of a run that would go on from there."""
    try:
        with contextlib.closing(Checkpoints(directory)) as reader:
            restored = reader.restore(abstract)
    except UserError as error:
        assert str(directory) in str(error)
        return 'said'
    assert restored is not None
    if restored.step == 2:
        return 'fallen back'
    same = jax.tree.map(np.array_equal, jax.device_get(restored.state), wanted)
    return 'unharmed' if jax.tree.all(same) else 'garbage'


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_parameters_that_are_damaged_start_no_run(
    saved: Path, abstract: TrainState, tmp_path: Path
) -> None:
    shutil.copytree(saved / '4', tmp_path / '4')
    files = [file for file in (tmp_path / '4').rglob('*') if file.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    data = largest.read_bytes()
    middle = len(data) // 2
    largest.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(UserError, match='cannot be read'):
        load_params(epath.Path(tmp_path / '4'), abstract.params)


def test_a_checksum_does_not_depend_on_the_mesh() -> None:
    array = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    assert checksums({'a': array}) == checksums({'a': jax.device_put(array)})
    for dtype in (jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8):
        one = checksums({'a': array.astype(dtype)})
        assert one != checksums({'a': array.astype(dtype).at[7, 7].set(jnp.zeros((), dtype))})
        assert one != checksums({'a': array.T.astype(dtype)}) or dtype == jnp.bool_


def test_the_best_is_kept_also_by_a_run_that_resumes(tmp_path: Path) -> None:
    made = experiment(
        num_steps=10,
        train__save_max_to_keep=1,
        train__save_best_metric='eval/loss',
        train__save_best_goal='maximize',  # It falls, so that the first is the best.
    )
    losses = [each.metrics['eval/loss'] for each in run(made, tmp_path)]
    assert losses[0] == max(losses)
    assert steps_in(tmp_path) == [2, 10]
    made.rebind({'train.num_train_steps': 12})
    for _ in run(made, tmp_path):  # A run that resumes has not forgotten it.
        pass
    assert steps_in(tmp_path) == [2, 12]


def test_one_every_so_often_is_kept_for_good() -> None:
    loop = TrainLoop(save_max_to_keep=2, save_keep_interval_duration='1h')
    written = datetime.datetime(2026, 1, 1)
    kept: list[int] = []  # Minutes at which those that are there were written.
    for minute in range(0, 200, 20):
        kept.append(minute)
        there = [
            types.SimpleNamespace(step=each, time=written + datetime.timedelta(minutes=each))
            for each in kept
        ]
        preserved = Preservation(loop).policy.should_preserve(there, context=None)
        kept = [each for each, stays in zip(kept, preserved, strict=True) if stays]
    assert kept == [0, 60, 120, 160, 180]


def test_a_checkpoint_of_another_version_is_refused_and_not_stepped_over() -> None:
    path = epath.Path('checkpoints/4')
    with pytest.raises(UserError, match='checkpoints/4 has format 1, and this version'):
        Contents.from_json(path, {'format': 1, 'progress': {}})
    data = Contents({'position': 3}, {'step': ([], 'int32', 7)}).to_json()
    assert Contents.from_json(path, data).progress == {'position': 3}
    with pytest.raises(DamagedError):
        Contents.from_json(path, {**data, 'progress': {'position': 4}})


def test_a_metric_that_is_not_there_cannot_be_the_best(tmp_path: Path) -> None:
    made = experiment(num_steps=2, train__save_best_metric='eval/los')
    with pytest.raises(UserError, match=r"train.save_best_metric: 'eval/los' .*eval/loss"):
        list(run(made, tmp_path))


def steps_in(directory: Path) -> list[int]:
    return sorted(int(each.name) for each in (directory / 'checkpoints').iterdir())
