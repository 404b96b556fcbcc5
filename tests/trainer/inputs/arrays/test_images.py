"""Images in numpy files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance import input_suite
from trainer.inputs import ImagesInput
from trainer.symbolic.errors import UserError

_NUM = 43
_SHAPE = [6, 5, 3]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp('images')
    drawn = np.random.default_rng(0)
    np.save(made / 'train_images.npy', drawn.integers(1, 256, (_NUM, 8, 9, 3), np.uint8))
    np.save(made / 'train_labels.npy', np.arange(1, _NUM + 1))
    return made


def images(folder: Path, **fields: Any) -> ImagesInput:
    given = {'batch_size': 4, 'image_shape': _SHAPE}
    return ImagesInput(data_dir=str(folder), split='train', **given | fields)


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check: Any, folder: Path) -> None:
    check(lambda **fields: images(folder, is_training=True, flip=True, **fields))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check: Any, folder: Path) -> None:
    check(lambda **fields: images(folder, **fields))


def test_evaluation_crops_the_middle(folder: Path) -> None:
    batch = images(folder, batch_size=_NUM).get_next()
    stored = np.load(folder / 'train_images.npy')
    np.testing.assert_array_equal(batch['image'], stored[:, 1:7, 2:7])
    np.testing.assert_array_equal(batch['label'], np.arange(1, _NUM + 1))


@pytest.mark.pax('Images: MNIST, ImageNet')
def test_training_crops_anywhere_and_mirrors_half(folder: Path) -> None:
    stored = np.load(folder / 'train_images.npy')
    seen = set()
    data = images(folder, batch_size=_NUM, is_training=True, flip=True)
    for _ in range(12):
        batch = data.get_next()
        for image, label in zip(batch['image'], batch['label'], strict=True):
            whole = stored[label - 1]
            at = [
                (down, right, mirrored)
                for down in range(3)
                for right in range(5)
                for mirrored in (False, True)
                if (whole[down : down + 6, right : right + 5][:, :: -1 if mirrored else 1] == image)
                .all()
            ]  # fmt: skip
            assert len(at) == 1
            seen |= set(at)
    assert len(seen) == 3 * 5 * 2


def test_images_of_the_right_shape_are_unchanged(folder: Path) -> None:
    batch = images(folder, image_shape=[8, 9, 3], is_training=True).get_next()
    stored = np.load(folder / 'train_images.npy')
    np.testing.assert_array_equal(batch['image'], stored[batch['label'] - 1])


def test_other_images_are_other_data(folder: Path, tmp_path: Path) -> None:
    for name in ('train_images.npy', 'train_labels.npy'):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert images(tmp_path).fingerprint() == images(folder).fingerprint()
    changed = np.load(folder / 'train_images.npy')
    changed[7, 0, 0, 0] ^= 1
    np.save(tmp_path / 'train_images.npy', changed)
    assert images(tmp_path).fingerprint() != images(folder).fingerprint()


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    message = r'train_images.npy cannot be read.*--set eval_inputs.<name>.data_dir=DIR'
    with pytest.raises(UserError, match=message):
        images(tmp_path).prepare()
    # The spec of batches does not need data.
    assert images(tmp_path).element_spec()['image'].shape == (4, 6, 5, 3)


def test_objects_in_a_file_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / 'train_images.npy').write_bytes((folder / 'train_images.npy').read_bytes())
    np.save(tmp_path / 'train_labels.npy', np.array([{}] * _NUM), allow_pickle=True)
    with pytest.raises(UserError, match=r'train_labels.npy cannot be read .*Python objects'):
        images(tmp_path).prepare()


@pytest.mark.parametrize(
    ('what', 'array', 'message'),
    [
        ('images', np.zeros((3, 8, 9, 1), np.uint8), r'are uint8 \[3, 8, 9, 1\]: image_shape'),
        ('images', np.zeros((3, 5, 9, 3), np.uint8), r'needs uint8 \[N, 6 or more, 5 or more'),
        ('images', np.zeros((3, 8, 9, 3), np.float32), 'are float32'),
        ('images', np.zeros((0, 8, 9, 3), np.uint8), r'are uint8 \[0, 8, 9, 3\]'),
        ('labels', np.zeros(_NUM - 1, np.int32), 'of 43 images'),
        ('labels', np.zeros(_NUM), 'labels of train are float64'),
    ],
)
def test_files_of_other_shapes_are_refused(
    what: str, array: Any, message: str, folder: Path, tmp_path: Path
) -> None:
    for name in ('train_images.npy', 'train_labels.npy'):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    np.save(tmp_path / f'train_{what}.npy', array)
    with pytest.raises(UserError, match=message):
        images(tmp_path).prepare()


def test_impossible_fields_are_refused() -> None:
    with pytest.raises(ValueError, match='height, width and colours'):
        images(Path(), image_shape=[28, 28])
    with pytest.raises(ValueError, match='flip is only for training'):
        images(Path(), flip=True)
