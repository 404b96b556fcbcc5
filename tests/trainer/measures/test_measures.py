"""Measures equal those of scikit-learn for any division of examples into batches."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from trainer.losses import MeanSquaredError
from trainer.measures import (
    F1,
    AccuracyAt,
    AccuracyStrict,
    Auc,
    MeanLoss,
    Measure,
    Outcome,
    Precision,
    Recall,
)  # fmt: skip
from trainer.measures.auc import AucCounts
from trainer.metrics import Metric, Totals

CLASSES = 4
MEASURES: list[Measure] = [
    AccuracyAt(1), AccuracyAt(2), F1(), F1('micro'), F1('macro'), Precision('macro'),
    Recall(), Auc(), Auc(positive_class=3), MeanLoss('squared', MeanSquaredError()),
]  # fmt: skip


def outcome_of(outputs: Any, labels: Any, weights: Any, **more: Any) -> Any:
    """An outcome made of arrays of numpy."""
    return Outcome(outputs, labels, weights, **more)


def data(seed: int, size: int, several: bool = False) -> Any:
    """Examples, some of weight zero."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, size)
    logits = rng.normal(size=(size, CLASSES)) + 2 * np.eye(CLASSES)[labels]
    # Few values, so that some tie.
    logits = np.round(2 * logits) / 2
    dense = rng.integers(0, 2, (size, CLASSES)) if several else np.eye(CLASSES)[labels]
    weights = rng.integers(0, 3, size)
    arrays = (np.asarray(each, np.float32) for each in (logits, dense, weights))
    return outcome_of(*arrays, is_multi_label=several)


def batches(outcome: Any, cuts: list[int]) -> list[Outcome]:
    """Batches of at most 8 examples, with wrong labels in the padding."""
    size = len(outcome.weights)
    edges = sorted({0, size, *(cut % size for cut in cuts), *range(0, size, 8)})
    found = []
    for start, end in itertools.pairwise(edges):
        padded = [
            np.concatenate(
                [array[start:end], filler * np.ones((8 - end + start, *array.shape[1:]))]
            )
            for array, filler in zip(outcome[:3], (9, 1, 0), strict=True)
        ]
        found.append(outcome_of(*padded, is_multi_label=outcome.is_multi_label))
    return found


_compiled: dict[Any, Any] = {}


def measured(measure: Measure, outcome: Outcome) -> Metric:
    """On the device, compiled."""
    several = outcome.is_multi_label
    name = (str(measure), several, len(outcome.weights))
    if name not in _compiled:

        def compiled(outputs: Any, labels: Any, weights: Any) -> Metric:
            return measure.measure(Outcome(outputs, labels, weights, several))

        _compiled[name] = jax.jit(compiled)
    arrays = [jnp.asarray(array, jnp.float32) for array in outcome[:3]]
    return jax.device_get(_compiled[name](*arrays))


def value(measure: Measure, parts: list[Outcome]) -> float | None:
    totals = Totals()
    for part in parts:
        totals.add({'it': measured(measure, part)})
        totals = Totals(totals.to_json())
    return totals.values().get('it')


@pytest.mark.pax('clu metrics, mixed')
@examples(15)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, 100), max_size=4),
    st.sampled_from(range(len(MEASURES))),
    st.booleans(),
)
def test_any_division_into_batches_gives_the_same(
    seed: int, cuts: list[int], which: int, several: bool
) -> None:
    measure, outcome = MEASURES[which], data(seed, 16, several)
    whole, parts = value(measure, [outcome]), value(measure, batches(outcome, cuts))
    assert (whole is None) == (parts is None)
    if whole is not None and parts is not None:
        assert parts == pytest.approx(whole, rel=1e-6)


def test_accuracy_at_k_is_that_of_scikit_learn() -> None:
    found = data(1, 40)
    outputs = found.outputs + np.linspace(0, 0.1, CLASSES, dtype=np.float32)
    found = outcome_of(outputs, found.labels, found.weights)
    labels = found.labels.argmax(-1)
    ranks = np.argsort(-found.outputs, axis=-1)
    for k in (1, 2, 3):
        right = (ranks[:, :k] == labels[:, None]).any(-1)
        assert value(AccuracyAt(k), [found]) == pytest.approx(
            np.average(right, weights=found.weights), rel=1e-6
        )


def test_tied_logits_are_never_correct() -> None:
    for logits in (np.zeros((3, CLASSES)), np.full((3, CLASSES), np.nan)):
        found = outcome_of(logits, np.eye(CLASSES)[:3], np.ones(3))
        assert value(AccuracyAt(2), [found]) == 0


def scores_by_hand(actual: Any, predicted: Any, weights: Any, average: str) -> dict[str, float]:
    """Precision, recall and F1 of scikit-learn, by the names of their metrics."""
    hits, of_class, said = (
        np.sum(weights[:, None] * each, 0) for each in (actual * predicted, actual, predicted)
    )
    if average == 'micro':
        hits, of_class, said = (np.sum(each, keepdims=True) for each in (hits, of_class, said))
    precision, recall = (
        np.divide(hits, total, where=total > 0, out=np.zeros(len(hits)))
        for total in (said, of_class)
    )
    both = precision + recall
    f1 = np.divide(2 * precision * recall, both, where=both > 0, out=np.zeros(len(hits)))
    suffix = '' if average == 'binary' else f'_{average}'
    return {
        f'{name}{suffix}': each[1] if average == 'binary' else each[(of_class + said) > 0].mean()
        for name, each in (('precision', precision), ('recall', recall), ('f1', f1))
    }


@pytest.mark.parametrize('several', [False, True])
@pytest.mark.parametrize('average', ['binary', 'micro', 'macro'])
@pytest.mark.parametrize('measure', [Precision, Recall, F1])
def test_scores_of_classes_are_those_of_scikit_learn(
    measure: Any, average: Any, several: bool
) -> None:
    found = data(2, 40, several)
    # The last class is never predicted: its precision is 0, as scikit-learn has it.
    found.outputs[:, 3] = -9
    predicted = np.eye(CLASSES)[found.outputs.argmax(-1)]
    if several:
        predicted = 1 / (1 + np.exp(-found.outputs)) > 0.3
    wanted = scores_by_hand(found.labels, predicted, found.weights, average)
    score = measure(average, threshold=0.3 if several else 0.5)
    assert value(score, [found]) == pytest.approx(wanted[score.metric_name()], rel=1e-6)


@pytest.mark.parametrize('measure', [Precision, Recall, F1])
def test_classes_that_do_not_occur_have_no_score(measure: Any) -> None:
    found = outcome_of(np.eye(CLASSES)[[0, 0]], np.eye(CLASSES)[[0, 0]], np.ones(2))
    assert value(measure('macro'), [found]) == 1
    assert value(measure('binary'), [found]) is None


def auc_by_hand(score: Any, is_of_class: Any, weights: Any) -> float:
    """The share of ordered pairs; ties count half."""
    above = np.sign(score[:, None] - score[None]) / 2 + 0.5
    pairs = np.outer(weights * is_of_class, weights * (1 - is_of_class))
    return float((above * pairs).sum() / pairs.sum())


@examples(15)
@given(st.integers(0, 10_000), st.sampled_from([1e-3, 1.0, 30.0]), st.sampled_from([4, 2048]))
def test_auc_is_within_its_bound_of_the_exact_one(seed: int, scale: float, bins: int) -> None:
    rng = np.random.default_rng(seed)
    is_of_class = rng.integers(0, 2, 64)
    score = (scale * (rng.normal(size=64) + is_of_class)).astype(np.float32)
    found = outcome_of(score[:, None], is_of_class, rng.integers(0, 3, 64), is_multi_label=True)
    counts: Any = measured(Auc(num_bins=bins), found)
    counts = AucCounts(np.float64(counts.positives), np.float64(counts.negatives))
    exact = auc_by_hand(score, is_of_class, found.weights)
    bound = counts.error_bound()
    assert counts.value() == pytest.approx(exact, abs=bound + 1e-9)
    if bins == 2048 and scale == 1:
        assert bound < 0.005


def test_auc_of_a_class_is_that_of_its_odds_against_all_others() -> None:
    found = data(3, 64)
    chance = np.exp(found.outputs) / np.exp(found.outputs).sum(-1, keepdims=True)
    wanted = auc_by_hand(np.round(chance[:, 2], 6), found.labels[:, 2], found.weights)
    got = value(Auc(positive_class=2, num_bins=1 << 16), [found])
    assert got == pytest.approx(wanted, abs=1e-4)
    one_class = outcome_of(found.outputs, np.eye(CLASSES)[np.zeros(64, int)], found.weights)
    assert value(Auc(), [one_class]) is None


def test_scores_that_are_not_finite_are_counted_once() -> None:
    scores = np.array([-np.inf, np.nan, 0, np.inf], np.float32)
    ones = np.ones(4)
    found = outcome_of(scores[:, None], ones, ones, is_multi_label=True)
    counts: Any = measured(Auc(num_bins=4), found)
    assert counts.positives.tolist() == [2, 0, 1, 1]


@pytest.mark.pax('acc_strict')
def test_a_sequence_is_correct_if_all_of_its_tokens_are() -> None:
    labels = np.array([[1, 2, 3, 1, 2, 0], [1, 1, 1, 1, 0, 0]])
    said = np.array([[1, 2, 3, 1, 3, 5], [1, 1, 1, 1, 2, 2]])
    weights = np.array([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    found = outcome_of(np.eye(6)[said], labels, weights)
    assert AccuracyStrict().measure(found).value() == 0.5
    segments = np.array([[1, 1, 1, 2, 2, 0], [901, 901, -7, -7, 0, 0]])
    packed = jax.tree.map(jnp.asarray, found[:3])
    by_segment = AccuracyStrict().measure(outcome_of(*packed, segments=jnp.asarray(segments)))
    assert by_segment.value() == 0.75
    assert by_segment.weight == 4


@pytest.mark.parametrize(
    ('measure', 'several', 'message'),
    [
        (AccuracyAt(CLASSES), False, 'accuracy_at_4: k must be less than 4, the classes'),
        (AccuracyAt(2), True, 'needs one class for each example'),
        (AccuracyStrict(), True, 'needs one class for each example'),
        (F1(positive_class=CLASSES), False, 'positive_class=4: there are only 4 classes'),
        (Auc(positive_class=9), True, 'positive_class=9: there are only 4 classes'),
        (Recall(threshold=0.3), False, 'recall: threshold is only for multi-label losses'),
    ],
)
def test_measures_that_do_not_suit_the_classes_are_refused(
    measure: Measure, several: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        measure.measure(data(0, 4, several))


def test_a_positive_class_of_an_average_is_refused() -> None:
    with pytest.raises(ValueError, match="positive_class is only for average='binary': 2"):
        Precision('macro', positive_class=2)
