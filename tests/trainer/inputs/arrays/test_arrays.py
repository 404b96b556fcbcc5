import pickle
import zipfile

import numpy as np
import pytest

from tests.conformance import input_suite
from trainer.inputs import DigitsInput, NpzInput, arrays_of
from trainer.inputs.arrays.digits import NUM_TEST
from trainer.symbolic.errors import UserError


@pytest.fixture
def file(tmp_path):
    drawn = np.random.default_rng(0)
    path = tmp_path / 'a.npz'
    np.savez(path, x=drawn.normal(size=(40, 2)), label=np.arange(40))
    return path


def digits(split, is_training, **fixed):
    def make(**fields):
        return DigitsInput(split=split, is_training=is_training, **fixed, **fields)

    return make


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training_on_digits(check):
    check(digits('train', True, max_shift=1))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation_on_digits(check):
    check(digits('test', False))


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training_on_a_file(check, file):
    check(lambda **fields: NpzInput(path=str(file), is_training=True, **fields))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation_on_a_file(check, file):
    check(lambda **fields: NpzInput(path=str(file), **fields))


def whole(split):
    size = NUM_TEST if split == 'test' else 1797 - NUM_TEST
    return DigitsInput(batch_size=size, split=split).get_next()


@pytest.mark.pax('Images: MNIST, ImageNet')
def test_the_splits_are_all_digits_and_share_none():
    from sklearn.datasets import load_digits

    train, test = whole('train'), whole('test')
    images = np.concatenate([train['image'], test['image']]).reshape(1797, 64)
    assert sorted(map(bytes, images * 16)) == sorted(map(bytes, load_digits().data.astype('f4')))
    assert images.min() == 0
    assert images.max() == 1
    for split in (train, test):
        assert np.bincount(split['label']).min() >= len(split['label']) // 14  # None is rare.
    known = load_digits()
    by_image = dict(zip(map(bytes, known.data.astype('f4')), known.target, strict=True))
    labels = np.concatenate([train['label'], test['label']])
    assert [by_image[bytes(image)] for image in images * 16] == labels.tolist()


def test_shifts_move_images_by_all_that_is_allowed():
    plain = digits('train', True)(batch_size=64).get_next()
    moved = digits('train', True, max_shift=1)(batch_size=64).get_next()
    np.testing.assert_array_equal(plain['label'], moved['label'])
    padded = np.pad(plain['image'], [(0, 0), (1, 1), (1, 1), (0, 0)])
    shifts = []
    for i, image in enumerate(moved['image']):
        shifts += [
            (down, right)
            for down in range(3)
            for right in range(3)
            if (padded[i, down : down + 8, right : right + 8] == image).all()
        ]
    assert len(shifts) == 64
    assert len(set(shifts)) == 9


def test_shifts_are_drawn_anew_in_each_epoch():
    make = digits('train', True, max_shift=2)
    data = make(batch_size=1797 - NUM_TEST)
    first, second = data.get_next(), data.get_next()
    assert set(map(bytes, first['image'])) != set(map(bytes, second['image']))


def test_a_step_does_not_depend_on_the_number_of_hosts():
    make = digits('train', True, max_shift=2)
    alone = make(batch_size=6).get_next()
    shares = [make(batch_size=2, num_infeed_hosts=3, infeed_host_index=i) for i in range(3)]
    parts = [share.get_next() for share in shares]
    together = {name: np.concatenate([part[name] for part in parts]) for name in alone}
    input_suite.assert_same([together], [alone])


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'max_shift': 8}, r'max_shift must lie in \[0, 8\): 8'),
        ({'max_shift': 1, 'is_training': False}, 'max_shift is only for training'),
    ],
)
def test_fields_are_checked(fields, message):
    with pytest.raises(ValueError, match=message):
        DigitsInput(**({'batch_size': 1, 'split': 'test', 'is_training': True} | fields))


def test_own_weights_are_kept():
    class Weighted(NpzInput):
        def read(self):
            return arrays_of({'x': np.arange(3), 'weights': np.array([[1.0], [0.5], [0.0]])})

    data = Weighted(batch_size=4, path='')
    assert data.element_spec()['weights'].shape == (4, 1)
    assert data.get_next()['weights'].tolist() == [[1.0], [0.5], [0.0], [0.0]]


@pytest.mark.parametrize('content', [b'', b'PK\3\4 and so on', b'text'])
def test_invalid_npz_files_are_named(content, tmp_path):
    path = tmp_path / 'a.npz'
    path.write_bytes(content)
    with pytest.raises(UserError, match=r'a\.npz. cannot be read .* Set eval_inputs\.<name>\.path'):
        NpzInput(batch_size=1, path=str(path)).prepare()
    with pytest.raises(UserError, match='cannot be read'):
        NpzInput(batch_size=1, path=str(tmp_path / 'nowhere')).prepare()


def test_an_array_that_fits_no_memory_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / 'a.npz', 'w') as archive, archive.open('x.npy', 'w') as file:
        header = {'descr': '<f8', 'fortran_order': False, 'shape': (2**57,)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(UserError, match=r'cannot be read as an \.npz file'):
        NpzInput(batch_size=1, path=str(tmp_path / 'a.npz')).prepare()


class Evil:
    def __reduce__(self):
        return (exec, ('raise SystemExit("run!")',))


def test_no_pickle_is_read(tmp_path):
    path = tmp_path / 'a.npz'
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match='cannot be read'):
        NpzInput(batch_size=1, path=str(path)).prepare()
    np.savez(path, x=np.array([Evil()], dtype=object))
    with pytest.raises(UserError, match='cannot be read'):
        NpzInput(batch_size=1, path=str(path)).prepare()


def test_features_must_be_numbers_of_as_many_examples():
    with pytest.raises(UserError, match="feature 'name' is not an array of numbers"):
        arrays_of({'name': np.array(['a'])})
    with pytest.raises(UserError, match='different numbers of examples'):
        arrays_of({'a': np.zeros(2), 'b': np.zeros(3)})


def test_no_examples_are_refused(tmp_path):
    np.savez(tmp_path / 'a.npz', x=np.zeros((0, 2)))
    with pytest.raises(UserError, match='no examples'):
        NpzInput(batch_size=1, path=str(tmp_path / 'a.npz')).prepare()


@pytest.mark.parametrize(
    ('given', 'wanted'),
    [
        (np.zeros((3, 2, 2), np.uint8), 'uint8'),
        (np.zeros((3, 4), np.uint8), 'uint8'),
        (np.zeros(3, np.uint8), 'int32'),
        (np.zeros((3, 2), np.int8), 'int32'),
        (np.zeros((3, 2), np.uint16), 'int32'),
        (np.zeros((3, 2), np.int64), 'int32'),
        (np.zeros((3, 2), bool), 'int32'),
        (np.zeros((3, 2), np.float16), 'float32'),
        (np.zeros((3, 2), np.float64), 'float32'),
    ],
    ids=lambda value: value if isinstance(value, str) else f'{value.dtype}{value.ndim}',
)
def test_images_of_8_bits_stay_so(given, wanted, tmp_path):
    np.savez(tmp_path / 'a.npz', image=given)
    data = NpzInput(batch_size=2, path=str(tmp_path / 'a.npz'))
    assert data.get_next()['image'].dtype == data.element_spec()['image'].dtype == wanted
