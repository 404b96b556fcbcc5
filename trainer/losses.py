"""Losses, as a value for each example.

A label is the index of a class (int, [...]), or the weight of each class (float, [..., K]); for
regression it is the value itself. The loss of an index that is no class is NaN. With weight 0 it
does not count. A term of weight 0 does not count either, even where its value is infinite: a logit
of -inf excludes a class.
"""

import jax
import jax.numpy as jnp

from trainer.metrics import weighted
from trainer.symbolic import recipes
from trainer.symbolic.component import (
    Component,
    Number,
    Numbers,
    require_fraction,
    require_not_negative,
)
from trainer.symbolic.errors import ShapeError
from trainer.symbolic.usual_values import UsualValue


class Loss(Component):
    """Base of losses."""

    @property
    def is_multi_label(self) -> bool:
        """True for multi-label classification: each logit is a binary decision."""
        return False

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """The loss of each example, float32 [...].

        Args:
            outputs: logits, or predicted values, [..., K].
            labels: as described in this module.
        """
        raise NotImplementedError(type(self).__name__)

    def per_example(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """The values of `of`, once their shape is checked.

        Raises:
            ShapeError: there is not one value for each example. A mean would hide it.
        """
        values, expected = self.of(outputs, labels), outputs.shape[:-1]
        if values.shape != expected:
            raise ShapeError(
                f'{type(self).__name__}: outputs of shape {outputs.shape} and labels of shape '
                f'{labels.shape} give losses of shape {values.shape}. Expected {expected}, one '
                'loss for each example'
            )
        return values

    def parts(self, outputs: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        """The terms of the loss of each example, by name; {} for a single term."""
        return {}


class SoftmaxCrossEntropy(Loss):
    """-log p(label) in nats, for exclusive classes.

    Attributes:
        label_smoothing: weight of a uniform target (Szegedy et al. 2016). With it, the loss is
            infinite where a logit is -inf.
        z_loss_weight: weight of log(Z)^2, which keeps logits small (Chowdhery et al. 2022).
    """

    label_smoothing: Number = 0.0
    z_loss_weight: Number = 0.0

    usual = {
        'label_smoothing': recipes.LABEL_SMOOTHING,
        'z_loss_weight': UsualValue(1e-4, 1e-5, 2e-4, 'PaLM (Chowdhery et al. 2022); 1e-5: OLMo 2'),
    }

    def check(self) -> None:
        require_fraction(self, 'label_smoothing')
        require_not_negative(self, 'z_loss_weight')

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        log_z = jax.nn.logsumexp(outputs, axis=-1)
        xent = cross_entropy(outputs, labels)
        uniform = log_z - jnp.mean(outputs, axis=-1)
        smoothed = xent + weighted(uniform - xent, self.label_smoothing)
        return smoothed + weighted(jnp.square(log_z), self.z_loss_weight)


class SigmoidCrossEntropy(Loss):
    """-log p(label) in nats, summed over classes, for multi-label classification.

    Attributes:
        label_smoothing: moves each label towards one half by this share.
    """

    label_smoothing: Number = 0.0

    usual = {'label_smoothing': UsualValue(0.1, 0.05, 0.15, 'Wightman et al. 2021')}

    def check(self) -> None:
        require_fraction(self, 'label_smoothing')

    @property
    def is_multi_label(self) -> bool:
        return True

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        targets = class_weights(labels, outputs)
        targets = targets + self.label_smoothing * (0.5 - targets)
        is_certain = jnp.isinf(outputs)  # Infinity minus infinity would be NaN.
        logits = jnp.where(is_certain, 0.0, outputs)
        losses = jax.nn.softplus(logits) - targets * logits
        wrong = weighted(jnp.abs(outputs), jnp.where(outputs > 0, 1 - targets, targets))
        losses = jnp.sum(jnp.where(is_certain, wrong, losses), axis=-1)
        return _known_only(losses, labels, outputs)


class MeanSquaredError(Loss):
    """(output - label)^2, averaged over the last axis."""

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        if labels.ndim == outputs.ndim - 1 and outputs.shape[-1] == 1:
            labels = labels[..., None]
        _require_labels(labels, outputs, outputs.shape)
        squared = jnp.square(outputs.astype(jnp.float32) - labels.astype(jnp.float32))
        return jnp.mean(squared, axis=-1)


class WeightedLosses(Loss):
    """A weighted sum of several losses of the same outputs. Each is also a metric, `loss/<name>`.

    Example:
        >>> both = WeightedLosses(
        ...     losses={'nats': SoftmaxCrossEntropy(), 'brier': MeanSquaredError()},
        ...     weights={'nats': 1.0, 'brier': 0.5},
        ... )
        >>> round(float(both.of(jnp.zeros(2), jnp.array([0.0, 1.0]))), 4)
        0.9431

    Attributes:
        losses: by name.
        weights: by the same names.
    """

    losses: dict[str, Loss]
    weights: Numbers

    def check(self) -> None:
        if not self.losses or set(self.losses) != set(self.weights):
            raise ValueError(
                f'losses and weights must have the same names: {sorted(self.losses)} and '
                f'{sorted(self.weights)}'
            )

    @property
    def is_multi_label(self) -> bool:
        return any(loss.is_multi_label for loss in self.losses.values())

    def of(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        parts = self.parts(outputs, labels)
        terms = (weighted(part, self.weights[name]) for name, part in parts.items())
        return sum(terms, jnp.zeros(()))

    def parts(self, outputs: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
        return {name: loss.per_example(outputs, labels) for name, loss in self.losses.items()}


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log softmax(logits)[label], in nats: [..., K] and labels -> [...]."""
    _require_labels(labels, logits, logits.shape, logits.shape[:-1])
    if logits.shape[-1] == 1:
        raise ShapeError('a softmax of one logit is always 1: use SigmoidCrossEntropy, or more')
    log_z = jax.nn.logsumexp(logits, axis=-1)
    if labels.ndim == logits.ndim:
        return log_z * jnp.sum(labels, axis=-1) - jnp.sum(weighted(logits, labels), axis=-1)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ShapeError(f'labels must be integers, the indices of classes, not {labels.dtype}')
    # A gather would scatter its gradient into zeros as large as the logits.
    is_label = _classes(logits) == labels[..., None]
    return _known_only(log_z - jnp.sum(jnp.where(is_label, logits, 0.0), axis=-1), labels, logits)


def class_weights(labels: jax.Array, logits: jax.Array) -> jax.Array:
    """Labels as weights of the classes: float32 [..., K].

    A single logit is the logit of class 1 against class 0.
    """
    _require_labels(labels, logits, logits.shape, logits.shape[:-1])
    if labels.ndim == logits.ndim:
        return labels.astype(jnp.float32)
    if logits.shape[-1] == 1:
        return labels[..., None].astype(jnp.float32)
    return jax.nn.one_hot(labels.astype(jnp.int32), logits.shape[-1], dtype=jnp.float32)


def class_ids(labels: jax.Array, logits: jax.Array) -> jax.Array:
    """Labels as the index of the class with the largest weight: int32 [...]."""
    _require_labels(labels, logits, logits.shape, logits.shape[:-1])
    if labels.ndim == logits.ndim:
        return jnp.argmax(labels, axis=-1).astype(jnp.int32)
    return labels.astype(jnp.int32)


def is_most_likely(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns True where the label has the largest logit: [..., K] and [...] -> [...].

    XLA vectorizes it on a CPU, unlike an argmax. Of classes that tie, the first one counts. A label
    of no class is never right, nor is any label where a logit is NaN.

    Example:
        >>> is_most_likely(jnp.array([[2.0, 1.0], [1.0, 1.0]]), jnp.array([1, 0])).tolist()
        [False, True]
    """
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    classes = _classes(logits)
    is_below = jnp.where(classes < labels[..., None], logits < of_label, logits <= of_label)
    is_label = classes == labels[..., None]
    return jnp.all(is_below | (is_label & ~jnp.isnan(of_label)), axis=-1) & (labels >= 0)


def _classes(logits: jax.Array) -> jax.Array:
    """The index of the class of each logit: int32 [..., K], as labels may have only 8 bits."""
    return jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)


def _known_only(losses: jax.Array, labels: jax.Array, logits: jax.Array) -> jax.Array:
    if labels.ndim == logits.ndim:
        return losses
    labels = labels.astype(jnp.int32)  # The number of classes may not fit into their own dtype.
    # An index of -1 would mean the last class. A run ends if a loss with weight is NaN.
    return jnp.where((labels < 0) | (labels >= max(logits.shape[-1], 2)), jnp.nan, losses)


def _require_labels(labels: jax.Array, outputs: jax.Array, *shapes: tuple[int, ...]) -> None:
    # Other shapes would broadcast: [B] and [B, 1] to [B, B].
    if labels.shape not in shapes:
        raise ShapeError(
            f'outputs of shape {outputs.shape} and labels of shape {labels.shape} do not fit '
            f'together: expected labels of shape {" or ".join(map(str, shapes))}'
        )
