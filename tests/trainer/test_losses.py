from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.losses import (
    Loss,
    MeanSquaredError,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    WeightedLosses,
    class_weights,
    cross_entropy,
    is_most_likely,
)
from trainer.metrics import WeightedScalar
from trainer.symbolic.errors import ShapeError

LOGITS = np.asarray(3 * jax.random.normal(jax.random.key(0), (5, 4)))
LABELS = np.array([0, 3, 1, 1, 2])
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]


def of(loss: Loss, labels: Any, logits: Any = LOGITS) -> Any:
    return np.asarray(loss.of(jnp.asarray(logits), jnp.asarray(labels)))


def probabilities() -> np.ndarray:
    return np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)


@pytest.mark.pax('ClassificationModel')
def test_softmax_cross_entropy() -> None:
    wanted = -np.log(probabilities()[np.arange(5), LABELS])
    np.testing.assert_allclose(of(SoftmaxCrossEntropy(), LABELS), wanted, rtol=1e-5)
    np.testing.assert_allclose(of(SoftmaxCrossEntropy(), ONE_HOT), wanted, rtol=1e-5, atol=1e-6)
    # Smoothing is another target, which may be given as well.
    soft = 0.9 * ONE_HOT + 0.1 / 4
    smoothed = of(SoftmaxCrossEntropy(label_smoothing=0.1), LABELS)
    np.testing.assert_allclose(smoothed, -np.sum(soft * np.log(probabilities()), -1), rtol=1e-5)
    np.testing.assert_allclose(of(SoftmaxCrossEntropy(), soft), smoothed, rtol=1e-5)
    z_loss = of(SoftmaxCrossEntropy(z_loss_weight=0.5), LABELS) - wanted
    np.testing.assert_allclose(z_loss, 0.5 * np.log(np.exp(LOGITS).sum(-1)) ** 2, rtol=1e-4)


@pytest.mark.pax('ClassificationModel')
def test_sigmoid_cross_entropy() -> None:
    labels = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 0, 1]])
    chance = 1 / (1 + np.exp(-LOGITS))
    wanted = -np.sum(labels * np.log(chance) + (1 - labels) * np.log(1 - chance), -1)
    np.testing.assert_allclose(of(SigmoidCrossEntropy(), labels), wanted, rtol=1e-4)
    smoothed = of(SigmoidCrossEntropy(label_smoothing=0.2), labels)
    np.testing.assert_allclose(of(SigmoidCrossEntropy(), 0.8 * labels + 0.1), smoothed, rtol=1e-4)
    # A single logit is that of class 1.
    single = of(SigmoidCrossEntropy(), labels[:, 0], LOGITS[:, :1])
    np.testing.assert_allclose(single, of(SigmoidCrossEntropy(), labels[:, :1], LOGITS[:, :1]))
    assert np.isfinite(of(SigmoidCrossEntropy(), labels, 1e4 * LOGITS)).all()


@pytest.mark.parametrize('loss', [SoftmaxCrossEntropy(), SigmoidCrossEntropy()])
def test_an_index_that_is_no_class_counts_only_without_weight(loss: Loss) -> None:
    labels = jnp.array([0, -1, 3, 4, 2])
    losses = loss.per_example(jnp.asarray(LOGITS), labels)
    assert np.isnan(losses).tolist() == [False, True, False, True, False]
    assert WeightedScalar.of(losses, jnp.ones(5)).value() is not None
    weights = jnp.array([1.0, 0, 1, 0, 2])

    def mean(logits: jax.Array) -> jax.Array:
        return WeightedScalar.of(loss.per_example(logits, labels), weights).mean

    wanted = np.average(np.asarray(losses)[[0, 2, 4]], weights=[1, 1, 2])
    assert mean(jnp.asarray(LOGITS)) == pytest.approx(wanted, rel=1e-6)
    gradients = jax.grad(mean)(jnp.asarray(LOGITS))
    assert np.isfinite(gradients).all() and not gradients[jnp.array([1, 3])].any()


def test_a_single_logit_has_no_softmax() -> None:
    with pytest.raises(ValueError, match='softmax of one logit is always 1: use Sigmoid'):
        of(SoftmaxCrossEntropy(), LABELS, LOGITS[:, :1])
    assert np.isnan(of(SigmoidCrossEntropy(), LABELS, LOGITS[:, :1])).tolist() == [
        *(False, True, False, False, True)
    ]


def test_mean_squared_error() -> None:
    loss = MeanSquaredError()
    np.testing.assert_allclose(of(loss, 0 * LOGITS), np.mean(LOGITS**2, -1), rtol=1e-5)
    np.testing.assert_allclose(of(loss, LABELS, LOGITS[:, :1]), (LOGITS[:, 0] - LABELS) ** 2, 1e-5)
    with pytest.raises(ValueError, match=r'outputs of shape \(5, 4\) and labels of shape \(5,\)'):
        of(loss, LABELS)


@pytest.mark.pax('Overridable `loss_fn`, `apply_fn`', 'LossAggregator')
def test_several_losses_are_one() -> None:
    made = WeightedLosses(
        losses={'xent': SoftmaxCrossEntropy(), 'squared': MeanSquaredError()},
        weights={'xent': 0.5, 'squared': 2.0},
    )
    parts = of(SoftmaxCrossEntropy(), ONE_HOT), of(MeanSquaredError(), ONE_HOT)
    np.testing.assert_allclose(of(made, ONE_HOT), 0.5 * parts[0] + 2 * parts[1], rtol=1e-5)
    assert list(made.parts(jnp.asarray(LOGITS), jnp.asarray(ONE_HOT))) == ['xent', 'squared']
    assert not made.is_multi_label
    with pytest.raises(ValueError, match='losses and weights must have the same names'):
        WeightedLosses(losses={'xent': SoftmaxCrossEntropy()}, weights={'nats': 1.0})


@pytest.mark.parametrize(
    ('kind', 'fields'),
    [
        (SoftmaxCrossEntropy, {'label_smoothing': 1.0}),
        (SoftmaxCrossEntropy, {'z_loss_weight': -1.0}),
        (SigmoidCrossEntropy, {'label_smoothing': -0.1}),
    ],
)
def test_impossible_numbers_are_refused(kind: type[Loss], fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match='must'):
        kind(**fields)


def test_the_most_likely_class_is_that_of_an_argmax() -> None:
    logits = jnp.round(jax.random.normal(jax.random.key(0), (200, 5)))  # Many tie.
    labels = jax.random.randint(jax.random.key(1), (200,), 0, 5)
    found = is_most_likely(logits, labels)
    assert (found == (jnp.argmax(logits, axis=-1) == labels)).all()
    assert 0 < found.sum() < 200


def test_labels_of_no_class_and_nan_are_never_the_most_likely() -> None:
    logits = jnp.array([[0.0, 1.0], [0.0, 1.0], [jnp.nan, 0.0], [jnp.nan, 0.0]])
    assert not is_most_likely(logits, jnp.array([-1, 2, 0, 1])).any()


class Difference(Loss):
    """A mistake that broadcasting hides: outputs [B, 1] minus labels [B]."""

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.square(outputs - labels)


@pytest.mark.parametrize(
    'wrap', [lambda loss: loss, lambda loss: WeightedLosses({'d': loss}, {'d': 1.0})]
)
def test_a_loss_with_another_shape_than_one_value_for_each_example_is_refused(wrap: Any) -> None:
    expected = r'Difference: outputs of shape \(5, 1\) and labels of shape \(5,\) .*\(5, 5\)'
    with pytest.raises(ValueError, match=expected):
        wrap(Difference()).per_example(jnp.zeros((5, 1)), jnp.zeros(5))


@pytest.mark.parametrize('loss', [SoftmaxCrossEntropy(), SigmoidCrossEntropy(), MeanSquaredError()])
def test_labels_that_would_broadcast_are_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match=r'outputs of shape \(5, 4\) and labels of shape \(5, 1\)'):
        loss.of(jnp.zeros((5, 4)), jnp.zeros((5, 1), jnp.int32))


@pytest.mark.parametrize('classes', [256, 300, 1000])
def test_labels_of_eight_bits_are_those_of_many_classes(classes: int) -> None:
    logits = jnp.arange(float(classes))[None] / 30
    for labels in (jnp.array([250], jnp.uint8), jnp.array([250])):
        wanted = jax.nn.logsumexp(logits) - logits[0, 250]
        np.testing.assert_allclose(cross_entropy(logits, labels), [wanted], rtol=1e-6)
        assert not is_most_likely(logits, labels).any()
        assert np.flatnonzero(class_weights(labels, logits)).tolist() == [250]


def test_indices_that_are_no_integers_are_refused() -> None:
    with pytest.raises(ShapeError, match=r'labels must be integers, .*, not float32'):
        cross_entropy(jnp.zeros((2, 3)), jnp.array([0.0, 0.5]))


@pytest.mark.parametrize(
    'loss', [SoftmaxCrossEntropy(), SigmoidCrossEntropy(), SoftmaxCrossEntropy(z_loss_weight=0.1)]
)
@pytest.mark.parametrize('labels', [np.array([1]), np.array([[0, 1, 0]])], ids=['index', 'weights'])
def test_a_logit_of_minus_infinity_excludes_a_class(loss: Loss, labels: np.ndarray) -> None:
    masked = jnp.array([[0.5, 1.0, -jnp.inf]])
    kept = of(loss, labels[..., :2], masked[:, :2])
    np.testing.assert_allclose(of(loss, labels, masked), kept, rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(loss.of(x, jnp.asarray(labels))))(masked)
    assert np.isfinite(gradient).all() and gradient[0, 2] == 0
    # A certain mistake is infinitely wrong, and no NaN.
    assert np.isposinf(of(loss, np.eye(3, dtype=np.float32)[[2]], masked))


def test_a_certain_and_right_class_costs_nothing() -> None:
    logits = jnp.array([[jnp.inf, -jnp.inf]])
    assert of(SigmoidCrossEntropy(), np.array([[1, 0]]), logits) == 0
    assert np.isposinf(of(SigmoidCrossEntropy(), np.array([[0, 0]]), logits))
    assert np.isposinf(of(SigmoidCrossEntropy(label_smoothing=0.1), np.array([[1, 0]]), logits))


def test_a_loss_of_weight_zero_may_be_infinite() -> None:
    both = {'nats': SoftmaxCrossEntropy(), 'brier': MeanSquaredError()}
    loss = WeightedLosses(losses=both, weights={'nats': 1.0, 'brier': 0.0})
    masked = jnp.array([[0.0, 1.0, -jnp.inf]])
    wanted = of(SoftmaxCrossEntropy(), np.array([[0, 1, 0]]), masked)
    np.testing.assert_array_equal(of(loss, np.array([[0, 1, 0]]), masked), wanted)
