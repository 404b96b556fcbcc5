from typing import Any

import numpy as np
import pytest

from tests.trainer.inputs.seqio.test_seqio_input import LENGTH, maker, sequences
from trainer.inputs.evaluation import eval_batches
from trainer.symbolic.errors import UserError

SIZE = 40
"""Examples in the validation split."""


def outputs(data, decode):
    """The results of `decode` on the labels, by the number of the example; padding under 0."""
    found: dict[int, Any] = {}
    for batch in eval_batches(data):
        made = [decode(row) for row in batch['labels']]
        found |= dict(zip(batch['example_ids'].tolist(), made, strict=True))
    return found


def reversing(**fields):
    # Long enough for all targets, so that the tokens have the whole text.
    lengths = {'inputs': 8, 'targets': 600}
    return sequences()(batch_size=9, example_ids=True, **fields).rebind(
        task_feature_lengths=lengths
    )


@pytest.mark.pax('… predict metrics')
@pytest.mark.contract
def test_predictions_have_the_metrics_of_the_task():
    data = reversing()
    right = outputs(data, lambda row: row[row > 0].tolist())
    assert 0 in right  # 40 examples are four batches of nine and a half-filled one.
    # The postprocessor lowercases targets; the texts are lower-case.
    assert data.predict_metrics(right) == {'exact': 100.0}
    ids = sorted(set(right) - {0})
    wrong = right | {number: [5, 1] for number in ids[: SIZE // 4]}
    assert data.predict_metrics(wrong) == {'exact': 75.0}


def test_ids_after_the_end_do_not_count_and_texts_may_be_given():
    data = reversing()
    known = outputs(data, lambda row: [*row[row > 0].tolist(), 77, 78])
    assert data.predict_metrics(known) == {'exact': 100.0}
    texts = outputs(data, lambda row: data.ids_to_strings(row[None])[0] + ' ')
    assert data.predict_metrics(texts) == {'exact': 100.0}  # Postprocessing strips.


def test_hosts_are_joined_in_any_order():
    found: dict[int, Any] = {}
    for host in (1, 0):
        data = reversing(num_infeed_hosts=2, infeed_host_index=host)
        found |= outputs(data, lambda row: row[row > 0].tolist())
    assert reversing().predict_metrics(found) == {'exact': 100.0}


def test_scores_are_means_over_examples_and_not_over_padding():
    data = reversing()
    scores = outputs(data, lambda row: float((row > 0).sum())) | {0: 1e9}
    expected = np.mean([score for number, score in scores.items() if number])
    assert data.score_metrics(scores)['mean_score'] == pytest.approx(expected)


@pytest.mark.slow
def test_metrics_of_a_mixture_have_the_names_of_their_tasks():
    lengths = {'inputs': 8, 'targets': LENGTH}
    data = maker('paxtune_pairs', lengths=lengths)(batch_size=16, example_ids=True)
    assert data.wants_scores
    scores = outputs(data, lambda row: 2.0)
    assert sorted(set(scores) - {0}) == list(range(1, 2 * SIZE + 2))
    assert data.score_metrics(scores) == {'paxtune_reversed/mean_score': 2.0}


@pytest.mark.slow
def test_metrics_of_a_partial_evaluation():
    some = reversing(eval_num_examples=5)
    assert some.predict_metrics(outputs(some, lambda row: row[row > 0])) == {'exact': 100.0}
    first = reversing(eval_loop_num_batches=2)
    found = outputs(first, lambda row: row[row > 0])
    assert len(found) == 18
    assert first.predict_metrics(found) == {'exact': 100.0}


def test_missing_examples_are_named():
    data = reversing()
    found = outputs(data, lambda row: row[row > 0])
    del found[7]
    with pytest.raises(UserError, match='paxtune_reversed: there is no output for example 7'):
        data.predict_metrics(found)
    with pytest.raises(UserError, match='paxtune_reversed: there is no example 41'):
        data.predict_metrics(found | {7: 'x', 41: 'y'})


def test_a_task_without_metrics_has_none():
    data = maker()(batch_size=1, example_ids=True)
    assert not data.wants_scores
    assert data.score_metrics({1: 0.0}) == data.predict_metrics({1: 'x'}) == {}


def test_a_metric_that_is_no_number_is_named():
    data = maker('paxtune_sampled')(batch_size=1, example_ids=True, eval_num_examples=1)
    with pytest.raises(UserError, match="metric 'sample' is no number: 'text'"):
        data.predict_metrics({1: 'x'})
