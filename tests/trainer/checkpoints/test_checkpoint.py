"""Checkpoints that a user or a disk has changed."""

import contextlib
import datetime
import gc
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.checksums import checksums
from trainer.checkpoints.manifest import DamagedError, Manifest, Progress
from trainer.checkpoints.reader import CheckpointReader
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import BestCheckpoint, Checkpoints
from trainer.loop.open_run import prepare_run
from trainer.loop.train_loop import run
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError

pytestmark = pytest.mark.contract

Right = tuple[TrainState, Progress]
"""Targets of a restore: the state, and the progress."""


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
def whole(
    saved: Path, abstract: TrainState, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Right]:
    """Reads their content."""
    found: dict[int, Right] = {}
    for step in (2, 4):
        alone = tmp_path_factory.mktemp('alone')
        shutil.copytree(saved / str(step), alone / str(step))
        with contextlib.closing(CheckpointStore(alone)) as reader:
            restored = reader.restore(abstract)
        assert restored is not None and restored.step == step
        found[step] = (jax.device_get(restored.state), restored.progress)
    assert not np.array_equal(*(state.params['embedding']['table'] for state, _ in found.values()))
    return found


def truncated(data: bytes) -> Iterator[bytes]:
    yield data[: len(data) // 2]


def flipped(data: bytes) -> Iterator[bytes]:
    """A byte flipped at three places: the first, the last, and one between."""
    rng = np.random.default_rng(len(data))
    for place in {0, len(data) - 1, int(rng.integers(len(data)))}:
        yield data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]


def removed(data: bytes) -> Iterator[None]:
    yield None


@pytest.fixture
def _collected() -> Iterator[None]:
    """Orbax leaves what it has begun to read, and Python says so when that is collected: here."""
    yield
    gc.collect()


@pytest.mark.pax('A damaged checkpoint')
@pytest.mark.slow
@pytest.mark.usefixtures('_collected')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize(
    ('damage', 'is_alone'), [(truncated, False), (removed, False), (flipped, True)]
)
def test_no_damage_to_a_file_ends_in_silent_garbage(
    damage: Callable[[bytes], Iterator[bytes | None]],
    is_alone: bool,
    saved: Path,
    whole: dict[int, Right],
    abstract: TrainState,
    tmp_path: Path,
) -> None:
    shutil.copytree(saved, tmp_path / 'checkpoints')
    if is_alone:
        shutil.rmtree(tmp_path / 'checkpoints' / '2')
    outcomes: dict[str, set[str]] = {}
    newest = tmp_path / 'checkpoints' / '4'
    files = [file for file in sorted(newest.rglob('*')) if file.is_file()]
    for file in files:
        data = file.read_bytes()
        assert data, file  # So that there is something to damage.
        for changed in damage(data):
            if changed is None:
                file.unlink()
            else:
                file.write_bytes(changed)
            told = outcome(tmp_path / 'checkpoints', whole, abstract)
            outcomes.setdefault(told, set()).add(str(file.relative_to(newest)))
        file.write_bytes(data)
    # All kinds of files are among them: the arrays, what says where they are, and what is in them.
    assert {'_CHECKPOINT_METADATA', 'state/_METADATA', 'state/manifest.ocdbt'} <= {
        str(file.relative_to(newest)) for file in files
    }
    # Orbax opens no checkpoint where a name in the metadata of one is damaged.
    opened_none = set() if is_alone else outcomes.pop('said', set())
    assert opened_none <= {'_CHECKPOINT_METADATA'}, opened_none
    assert outcomes.keys() <= {'said' if is_alone else 'fallen back', 'unharmed'}, outcomes
    harmed = outcomes['said' if is_alone else 'fallen back']
    assert harmed >= {'_CHECKPOINT_METADATA', 'state/manifest.ocdbt'}
    assert any('/d/' in name for name in harmed)
    assert outcome(tmp_path / 'checkpoints', whole, abstract) == 'unharmed'


def test_a_checkpoint_with_a_damaged_name_in_its_metadata_is_named(
    saved: Path, tmp_path: Path
) -> None:
    damage_metadata(saved, tmp_path / 'checkpoints')
    with pytest.raises(UserError, match=r'checkpoints/4 is damaged .*: move that checkpoint away'):
        CheckpointStore(tmp_path / 'checkpoints')


def test_a_run_falls_back_from_damaged_metadata_to_an_older_checkpoint(
    saved: Path, tmp_path: Path, abstract: TrainState, caplog: pytest.LogCaptureFixture
) -> None:
    damage_metadata(saved, tmp_path / 'checkpoints')
    policy = RetentionPolicy(Checkpoints())
    with contextlib.closing(CheckpointStore(tmp_path / 'checkpoints', policy)) as store:
        restored = store.restore(abstract)
    assert restored is not None
    assert restored.step == 2
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == [
        '2',
        'damaged-4-1',
    ]
    assert 'checkpoints/4 is damaged: renamed' in caplog.text


def test_the_only_checkpoint_is_not_renamed(saved: Path, tmp_path: Path) -> None:
    damage_metadata(saved, tmp_path / 'checkpoints')
    shutil.rmtree(tmp_path / 'checkpoints' / '2')
    with pytest.raises(UserError, match='move that checkpoint away'):
        CheckpointStore(tmp_path / 'checkpoints', RetentionPolicy(Checkpoints()))
    assert (tmp_path / 'checkpoints' / '4').is_dir()


def test_checkpoints_are_not_deleted_through_a_link(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / 'of another run')
    (tmp_path / 'checkpoints').symlink_to(tmp_path / 'of another run')
    with pytest.raises(UserError, match='checkpoints is a symbolic link'):
        CheckpointStore(tmp_path / 'checkpoints', RetentionPolicy(Checkpoints()))
    CheckpointStore(tmp_path / 'checkpoints').close()  # A reader changes nothing.


def damage_metadata(saved: Path, copy: Path) -> None:
    """Copies checkpoints, and damages the newest so that Orbax opens none of them."""
    shutil.copytree(saved, copy)
    metadata = copy / '4' / '_CHECKPOINT_METADATA'
    metadata.write_text(metadata.read_text().replace('"performance_metrics"', '"1erformance"'))


def outcome(directory: Path, whole: dict[int, Right], abstract: TrainState) -> str:
    """Resumes a run from there."""
    try:
        with contextlib.closing(CheckpointStore(directory)) as reader:
            restored = reader.restore(abstract)
    except UserError as error:
        assert str(directory / '4') in str(error)
        return 'said'
    if restored is None:
        return 'begun anew'
    state, progress = whole[restored.step]
    # As they are in memory: NaN and the sign of zero count.
    same = jax.tree.map(
        lambda one, other: np.asarray(one).tobytes() == np.asarray(other).tobytes(),
        jax.device_get(restored.state),
        state,
    )
    if not jax.tree.all(same) or restored.progress != progress:
        return 'garbage'
    return 'fallen back' if restored.step == 2 else 'unharmed'


@pytest.mark.usefixtures('_collected')
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_parameters_that_are_damaged_start_no_run(
    saved: Path, abstract: TrainState, tmp_path: Path
) -> None:
    shutil.copytree(saved / '4', tmp_path / '4')
    right = parameters(tmp_path / '4', abstract)
    refused = 0
    for file in sorted((tmp_path / '4').rglob('d/*')):
        data = file.read_bytes()
        # Where in a file the parameters lie is the business of TensorStore's release.
        for place in range(len(data) // 16, len(data), len(data) // 8):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            try:
                found = parameters(tmp_path / '4', abstract)
            except UserError as error:
                assert 'cannot be read' in str(error)
                refused += 1
            else:
                assert found == right
        file.write_bytes(data)
    assert refused


def parameters(directory: Path, abstract: TrainState) -> dict[str, bytes]:
    stored = CheckpointReader(epath.Path(directory))
    names = [name for name in stored.shapes if name.startswith('params.')]
    loaded = stored.load(dict.fromkeys(names, abstract.step.sharding))
    return {name: np.asarray(array).tobytes() for name, array in loaded.items()}


def test_a_checksum_does_not_depend_on_the_mesh() -> None:
    array = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    assert checksums({'a': array}) == checksums({'a': jax.device_put(array)})
    for dtype in (jnp.bfloat16, jnp.int32, jnp.bool_, jnp.uint8):
        one = checksums({'a': array.astype(dtype)})
        assert one != checksums({'a': array.astype(dtype).at[7, 7].set(jnp.zeros((), dtype))})
        assert one != checksums({'a': array.T.astype(dtype)}) or dtype == jnp.bool_


@pytest.mark.pax('The best by a metric')
def test_the_best_is_kept_also_by_a_run_that_resumes(tmp_path: Path) -> None:
    made = experiment(
        num_steps=10,
        train__checkpoints__keep=1,
        # The loss falls, so the first is the best.
        train__checkpoints__keep_best=BestCheckpoint('eval/loss', 'maximize'),
    )
    losses = [each.metrics['eval/loss'] for each in run(made, tmp_path)]
    assert losses[0] == max(losses)
    assert steps_in(tmp_path) == [2, 10]
    made.rebind({'train.num_train_steps': 12})
    for _ in run(made, tmp_path):  # A run that resumes has not forgotten it.
        pass
    assert steps_in(tmp_path) == [2, 12]


@pytest.mark.pax('save_keep_interval_duration')
def test_one_every_so_often_is_kept_for_good() -> None:
    checkpoints = Checkpoints(keep=2, keep_period='1h')
    written = datetime.datetime(2026, 1, 1)
    kept: list[int] = []  # Minutes at which those that are there were written.
    for minute in range(0, 200, 20):
        kept.append(minute)
        there = [
            types.SimpleNamespace(step=each, time=written + datetime.timedelta(minutes=each))
            for each in kept
        ]
        preserved = RetentionPolicy(checkpoints).policy.should_preserve(there, context=None)
        kept = [each for each, stays in zip(kept, preserved, strict=True) if stays]
    assert kept == [0, 60, 120, 160, 180]


@pytest.mark.pax('restore_transformations', 'Formats and their')
def test_a_checkpoint_of_another_version_is_refused_and_not_stepped_over() -> None:
    path = epath.Path('checkpoints/4')
    with pytest.raises(UserError, match='checkpoints/4 has format 1, and this version'):
        Manifest.from_json(path, {'format': 1, 'progress': {}})
    progress = Progress([{'batch': 3}])
    data = Manifest(progress, {'step': ([], 'int32', 7)}).to_json()
    assert Manifest.from_json(path, data).progress == progress
    with pytest.raises(DamagedError):
        Manifest.from_json(path, {**data, 'progress': Progress([{'batch': 4}]).to_json()})


def test_a_metric_that_is_not_there_cannot_be_the_best(tmp_path: Path) -> None:
    made = experiment(num_steps=2, train__checkpoints__keep_best=BestCheckpoint('eval/los'))
    with pytest.raises(UserError, match=r"keep_best.metric: 'eval/los' .*eval/loss"):
        prepare_run(made, tmp_path)


def steps_in(directory: Path) -> list[int]:
    return sorted(int(each.name) for each in (directory / 'checkpoints').iterdir())
