"""The contract of inputs. Each check takes a maker of the input under test.

    @pytest.mark.parametrize('check', input_suite.TRAINING)
    def test_my_input(check):
        check(lambda **fields: MyInput(is_training=True, **fields))

A maker takes `batch_size`, `num_infeed_hosts` and `infeed_host_index` and makes a new input over
the same data, which holds no example twice. TRAINING is for inputs with `is_training`, EVALUATION
for those without.
"""

import json
from collections.abc import Callable

import numpy as np
import pyglove as pg
import pytest

from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.evaluation import eval_batches
from trainer.inputs.peek import Peekable
from trainer.inputs.weights import example_mask, weights_of
from trainer.symbolic.errors import UserError

Maker = Callable[..., Input]


def read(data: Input, count: int) -> list[Batch]:
    """The next `count` batches."""
    return [data.get_next() for _ in range(count)]


def read_to_end(data: Input) -> list[Batch]:
    """All batches that are left of an evaluation input."""
    batches = []
    try:
        while True:
            batches.append(data.get_next())
    except EndOfData:
        return batches


def rows(batches: list[Batch]) -> list[bytes]:
    """The examples that weigh something, comparable."""
    return [
        b''.join(np.ascontiguousarray(batch[name][i]).tobytes() for name in sorted(batch))
        for batch in batches
        for i in np.flatnonzero(example_mask(batch))
    ]


def assert_same(actual: list[Batch], expected: list[Batch]) -> None:
    """Fails unless both hold the same bits."""
    assert len(actual) == len(expected)
    for got, wanted in zip(actual, expected, strict=True):
        assert got.keys() == wanted.keys()
        for name in wanted:
            assert got[name].dtype == wanted[name].dtype
            np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def spec_matches_batches(make: Maker) -> None:
    data = make(batch_size=3)
    data.prepare()
    spec = data.element_spec()
    for batch in read(data, 2):
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
            name: (wanted.shape, wanted.dtype) for name, wanted in spec.items()
        }


def weights_are_zero_where_nothing_is(make: Maker) -> None:
    for batch in read(make(batch_size=3), 2):
        empty = ~example_mask(batch)
        for name in batch:
            weights = weights_of(batch, name)
            padding = empty if weights is None else weights == 0
            # An encoder's tokens stand in other places than the labels that weigh.
            alike = batch[name].shape[: padding.ndim] == padding.shape
            there = alike and not name.startswith('encoder_')
            assert not batch[name][padding if there else empty].any(), name
        if 'label_bytes' in batch:
            assert (batch['label_bytes'] >= 0).all()


def ids_lie_in_the_vocabulary(make: Maker) -> None:
    data = make(batch_size=3)
    vocab_size = getattr(data, 'vocab_size', None)
    for batch in read(data, 2):
        for name in ('ids', 'labels') if vocab_size is not None else ():
            assert batch[name].min() >= 0
            assert batch[name].max() < vocab_size


def equal_inputs_yield_equal_batches(make: Maker) -> None:
    first, second = make(batch_size=2), make(batch_size=2)
    assert first.fingerprint() == second.fingerprint()
    assert_same(read(first, 3), read(second, 3))


def json_rebuilds_the_input(make: Maker) -> None:
    data = make(batch_size=2)
    rebuilt = pg.from_json_str(data.to_json_str(), auto_import=False)
    assert pg.eq(rebuilt, data)
    assert_same(read(rebuilt, 2), read(data, 2))


def position_is_exact(make: Maker) -> None:
    data = make(batch_size=2)
    for skipped in (0, 1, 3):
        read(data, skipped)
        position = json.dumps(data.get_position())
        expected = read(data, 3)
        fresh = make(batch_size=2)
        fresh.set_position(json.loads(position))
        assert json.dumps(fresh.get_position()['fingerprint']) in position
        assert_same(read(fresh, 3), expected)
        data.set_position(json.loads(position))  # Backwards, in an input that has been read.
        assert_same(read(data, 3), expected)


def reset_goes_to_the_first_batch(make: Maker) -> None:
    data = make(batch_size=2)
    expected = read(data, 3)
    data.reset()
    assert_same(read(data, 3), expected)


def clones_share_no_state(make: Maker) -> None:
    data = make(batch_size=2)
    expected = read(data, 2)
    for clone in (data.clone(), data.clone(deep=True)):
        assert_same(read(clone, 2), expected)
    assert_same(read(data, 1), read(make(batch_size=2), 3)[2:])


def other_data_is_refused(make: Maker) -> None:
    data = make(batch_size=2)
    read(data, 1)
    position = data.get_position() | {'fingerprint': 'of-something-else'}
    with pytest.raises(UserError, match='the data changed') as refused:
        data.set_position(position)
    assert 'of-something-else' in str(refused.value)
    assert data.fingerprint() in str(refused.value)


def training_shares_never_overlap(make: Maker) -> None:
    for hosts in (2, 3):
        shares = [
            rows(read(make(batch_size=2, num_infeed_hosts=hosts, infeed_host_index=host), 3))
            for host in range(hosts)
        ]
        together = [row for share in shares for row in share]
        assert len(together) == len(set(together)) >= 6 * hosts


def evaluation_shares_cover_the_data_once(make: Maker) -> None:
    alone = rows(read_to_end(make(batch_size=3)))
    assert len(alone) == len(set(alone)) > 6
    for batch_size, hosts in ((3, 2), (2, 3), (len(alone) - 1, 2)):
        shares = [
            read_to_end(make(batch_size=batch_size, num_infeed_hosts=hosts, infeed_host_index=host))
            for host in range(hosts)
        ]
        assert len({len(share) for share in shares}) == 1
        assert sorted(row for share in shares for row in rows(share)) == sorted(alone)
        spec = make(batch_size=batch_size).element_spec()
        for batch in (batch for share in shares for batch in share):
            assert {n: a.shape for n, a in batch.items()} == {n: s.shape for n, s in spec.items()}


def evaluation_stays_at_its_end(make: Maker) -> None:
    data = make(batch_size=3)
    batches = read_to_end(data)
    with pytest.raises(EndOfData):
        data.get_next()
    position = data.get_position()
    data.reset()
    assert_same(read_to_end(data), batches)
    fresh = make(batch_size=3)
    fresh.set_position(json.loads(json.dumps(position)))
    with pytest.raises(EndOfData):
        fresh.get_next()


def evaluation_goes_on_at_its_position(make: Maker) -> None:
    data = make(batch_size=2)
    read(data, 2)
    position = data.get_position()
    expected = read_to_end(data)
    fresh = make(batch_size=2)
    fresh.set_position(position)
    assert_same(read_to_end(fresh), expected)


def a_look_ahead_loses_nothing(make: Maker) -> None:
    looked_at = Peekable(make(batch_size=2))
    expected = read(make(batch_size=2), 3)
    assert_same([looked_at.get_next_padded(), looked_at.peek_padded()], expected[:2])
    position = json.loads(json.dumps(looked_at.get_position()))
    assert_same([looked_at.get_next_padded(), looked_at.get_next_padded()], expected[1:])
    fresh = make(batch_size=2)
    fresh.set_position(position)
    assert_same(read(fresh, 2), expected[1:])


def padding_is_zeros(make: Maker) -> None:
    data, plain = make(batch_size=2, batch_padding_size=1), make(batch_size=2).get_next()
    batch, spec = data.get_next_padded(), data.padded_spec()
    assert {n: a.shape for n, a in batch.items()} == {n: s.shape for n, s in spec.items()}
    assert_same([{name: array[:2] for name, array in batch.items()}], [plain])
    assert not any(array[2:].any() for array in batch.values())


def ids_are_text(make: Maker) -> None:
    data = make(batch_size=2)
    ids = data.get_next().get('labels')
    if ids is not None and ids.ndim == 2:  # Others are classes.
        texts = data.ids_to_strings(ids, lengths=np.array([ids.shape[1], 0]))
        assert texts[0]
        assert not texts[1]


def evaluations_read_the_requested_batches(make: Maker) -> None:
    whole = read_to_end(make(batch_size=3))
    assert len(whole) > 2
    data = make(batch_size=3)
    assert_same(list(eval_batches(data)), whole)
    assert_same(list(eval_batches(data)), whole)
    data = make(batch_size=3, eval_loop_num_batches=2)
    assert_same(list(eval_batches(data)), whole[:2])
    assert_same(list(eval_batches(data)), whole[:2])


def a_rolling_evaluation_goes_round_and_over_restarts(make: Maker) -> None:
    whole = read_to_end(make(batch_size=3))
    number = len(whole) // 2 + 1
    fields = {'batch_size': 3, 'reset_for_eval': False, 'eval_loop_num_batches': number}
    data = make(**fields)
    found = list(eval_batches(data))
    for _ in range(2):
        position = json.loads(json.dumps(data.get_position()))
        data = make(**fields)
        data.set_position(position)
        found += eval_batches(data)
    assert_same(found, [*whole, *whole][: 3 * number])


_ALL = [
    spec_matches_batches,
    weights_are_zero_where_nothing_is,
    ids_lie_in_the_vocabulary,
    equal_inputs_yield_equal_batches,
    json_rebuilds_the_input,
    reset_goes_to_the_first_batch,
    clones_share_no_state,
    other_data_is_refused,
    position_is_exact,
    a_look_ahead_loses_nothing,
    padding_is_zeros,
    ids_are_text,
]
TRAINING = [*_ALL, training_shares_never_overlap]
EVALUATION = [
    *_ALL,
    evaluation_shares_cover_the_data_once,
    evaluation_stays_at_its_end,
    evaluation_goes_on_at_its_position,
    evaluations_read_the_requested_batches,
    a_rolling_evaluation_goes_round_and_over_restarts,
]
