import numpy as np
import pytest

from tests.conformance import input_suite
from trainer.inputs import SyntheticLmInput


def maker(is_training):
    def make(**fields):
        data = {'sequence_length': 6, 'vocab_size': 50, 'num_rows': 40}
        return SyntheticLmInput(**{'is_training': is_training} | data | fields)

    return make


@pytest.mark.parametrize('check', input_suite.TRAINING)
def test_training(check):
    check(maker(True))


@pytest.mark.parametrize('check', input_suite.EVALUATION)
def test_evaluation(check):
    check(maker(False))


@pytest.mark.pax('SyntheticLmData')
def test_all_ids_but_padding_are_drawn_equally_often():
    batch = maker(False)(batch_size=5000, num_rows=5000).get_next()
    np.testing.assert_array_equal(batch['ids'][:, 1:], batch['labels'][:, :-1])
    counts = np.bincount(batch['labels'].ravel(), minlength=50)
    assert counts[0] == 0
    expected = 30_000 / 49
    chi_squared = ((counts[1:] - expected) ** 2 / expected).sum()
    assert 20 < chi_squared < 90  # 48 degrees of freedom.


@pytest.mark.parametrize('name', ['sequence_length', 'vocab_size', 'num_rows'])
def test_fields_are_checked(name):
    with pytest.raises(ValueError, match=f'{name} must be at least .: 0'):
        maker(True)(batch_size=1, **{name: 0})
