import numpy as np
import pytest

from tests.conformance import input_suite
from trainer.inputs import EndOfData, TextInput
from trainer.symbolic.errors import UserError

LENGTH = 16


@pytest.fixture
def folder(tmp_path):
    drawn = np.random.default_rng(0)
    for name, size in (('a.txt', 500), ('sub/b.txt', 700), ('c.md', 400)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(drawn.bytes(size))
    return tmp_path


def maker(folder, **fixed):
    def make(**fields):
        return TextInput(sequence_length=LENGTH, paths=[str(folder)], **fixed, **fields)

    return make


def text_of(folder):
    return b''.join((folder / name).read_bytes() for name in ('a.txt', 'c.md', 'sub/b.txt'))


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check, folder):
    check(maker(folder, is_training=True))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check, folder):
    check(maker(folder))


def test_evaluation_labels_every_byte_but_the_first_once(folder):
    batches = input_suite.read_to_end(maker(folder)(batch_size=3))
    labels = np.concatenate([batch['labels'][batch['weights'] > 0] for batch in batches])
    assert bytes(labels.tolist()) == text_of(folder)[1:]
    assert sum(batch['label_bytes'].sum() for batch in batches) == 1599
    first = batches[0]
    np.testing.assert_array_equal(first['ids'][:, 1:], first['labels'][:, :-1])
    assert first['ids'][0, 0] == text_of(folder)[0]


def test_an_epoch_visits_every_window_once_in_a_drawn_order(folder):
    data = maker(folder, is_training=True)(batch_size=9)
    windows = len(text_of(folder)) // LENGTH - 1
    assert windows % 9 == 0
    epochs = [
        [row.tobytes() for b in input_suite.read(data, windows // 9) for row in b['ids']]
        for _ in range(2)
    ]
    text = text_of(folder)
    starts = [
        [text.index(bytes(np.frombuffer(row, np.int32).tolist())) for row in epoch]
        for epoch in epochs
    ]
    for epoch in starts:
        assert epoch != sorted(epoch)
        assert np.all(np.diff(sorted(epoch)) == LENGTH)
    assert np.argsort(starts[0]).tolist() != np.argsort(starts[1]).tolist()


@pytest.mark.pax('SyntheticLmData')
def test_labels_are_the_bytes_after_the_ids(folder):
    batch = maker(folder, is_training=True)(batch_size=4).get_next()
    text = text_of(folder)
    for ids, labels in zip(batch['ids'], batch['labels'], strict=True):
        start = text.index(bytes(ids.tolist()))
        assert bytes(labels.tolist()) == text[start + 1 : start + 1 + LENGTH]
    assert batch['weights'].min() == 1


def test_a_step_does_not_depend_on_the_number_of_hosts(folder):
    make = maker(folder, is_training=True)
    alone = input_suite.read(make(batch_size=4), 40)  # Over the end of an epoch.
    shares = [
        input_suite.read(make(batch_size=2, num_infeed_hosts=2, infeed_host_index=host), 40)
        for host in (0, 1)
    ]
    together = [
        {name: np.concatenate([first[name], second[name]]) for name in first}
        for first, second in zip(*shares, strict=True)
    ]
    input_suite.assert_same(together, alone)


def test_a_batch_larger_than_an_epoch(folder):
    data = maker(folder, is_training=True)(batch_size=250)
    batch = data.get_next()
    # 99 windows: each comes at least twice over two and a half epochs, at other offsets.
    assert len({row.tobytes() for row in batch['ids']}) == 250


def test_seeds_draw_different_orders(folder):
    first, second = (
        maker(folder, is_training=True, input_random_seed=seed)(batch_size=4) for seed in (0, 1)
    )
    assert (first.get_next()['ids'] != second.get_next()['ids']).any()


def test_paths_are_files_directories_and_patterns_each_file_once(folder):
    def text(*paths):
        data = TextInput(
            batch_size=1, sequence_length=4, paths=[path.format(folder) for path in paths]
        )
        return data.corpus().data.tobytes()

    a, b, c = ((folder / name).read_bytes() for name in ('a.txt', 'sub/b.txt', 'c.md'))
    assert text('{}/c.md', '{}/a.txt') == c + a
    assert text('{}/**/*.txt') == a + b
    assert text('{}/c.md', '{}', '{}/*.md') == c + a + b


def test_paths_that_match_nothing_are_named(folder):
    data = TextInput(batch_size=1, sequence_length=4, paths=[str(folder), 'nowhere/*.txt'])
    with pytest.raises(UserError, match=r"'nowhere/\*\.txt'.*eval_inputs.<name>.paths"):
        data.prepare()


def test_a_short_text_is_refused(tmp_path):
    (tmp_path / 'x').write_text('short')
    for is_training in (True, False):
        length = 4 if is_training else 1000
        data = TextInput(
            batch_size=1, is_training=is_training, sequence_length=length, paths=[str(tmp_path)]
        )
        if is_training:
            with pytest.raises(UserError, match=r'5 bytes.*sequence_length 4'):
                data.prepare()
        else:
            data.prepare()
            assert data.get_next()['weights'].sum() == 4
    (tmp_path / 'x').write_text('')
    with pytest.raises(UserError, match='0 bytes'):
        TextInput(batch_size=1, sequence_length=4, paths=[str(tmp_path)]).prepare()


def test_changed_files_are_read_anew_and_refuse_the_old_position(folder):
    make = maker(folder, is_training=True)
    before = make(batch_size=2)
    position = before.get_position()
    (folder / 'c.md').write_bytes(b'x' * 400)
    after = make(batch_size=2)
    assert after.fingerprint() != before.fingerprint()
    with pytest.raises(UserError, match=before.fingerprint()):
        after.set_position(position)


def test_moved_files_are_the_same_data(folder):
    before = maker(folder)(batch_size=2).fingerprint()
    folder = folder.rename(folder.with_name('moved'))
    assert maker(folder)(batch_size=2).fingerprint() == before


def test_fields_are_checked(folder):
    with pytest.raises(ValueError, match='sequence_length must be at least 1: 0'):
        TextInput(batch_size=1, sequence_length=0, paths=['x'])
    with pytest.raises(ValueError, match='paths must name at least one'):
        TextInput(batch_size=1, sequence_length=1, paths=[])
    with pytest.raises(ValueError, match='batch_size must be at least 1: 0'):
        TextInput(batch_size=0, sequence_length=1, paths=['x'])


def test_settings_name_all_inputs_of_a_kind(folder):
    import pyglove as pg

    tree = pg.Dict(
        train_input=maker(folder, is_training=True)(batch_size=1),
        eval_inputs=pg.Dict(books=maker(folder)(batch_size=1)),
    )
    expected = ['train_input.paths', 'eval_inputs.books.paths']
    assert tree.train_input.settings('paths') == expected
    assert tree.eval_inputs.books.settings('paths') == expected


def test_the_end_of_an_evaluation_is_the_same_for_a_host_without_rows(folder):
    data = maker(folder)(batch_size=200, num_infeed_hosts=3, infeed_host_index=2)
    batch = data.get_next()
    assert not any(array.any() for array in batch.values())
    with pytest.raises(EndOfData):
        data.get_next()
