from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

from trainer.inputs import weights
from trainer.inputs.base import Input
from trainer.layers.positions import Positions
from trainer.losses import (
    Loss,
    MeanSquaredError,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    class_ids,
    class_weights,
    cross_entropy,
    is_most_likely,
)
from trainer.measures.base import Measure, Outcome, measured
from trainer.metrics import Metrics, WeightedScalar, joined, without_padding
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch, Task


class SupervisedTask(Task):
    """Base of tasks whose batches hold examples and their labels, and may hold `weights` [B].

    The weights belong to the labels, as in `trainer.inputs.weights`. NaN in features, outputs and
    labels of weight 0 has no effect.
    Metrics: `loss`, with `loss/<name>` for each of several; then those in `metrics`.

    Attributes:
        loss: the objective.
        metrics: additional metrics.
        input_feature: input of the model; unsigned 8-bit integers, such as images, are divided by
            255.
        label_feature: the labels, as in `trainer.losses`.
        padding_feature: feature [B, T] that is 0 for padding, such as the ids of texts. The model
            gets `(x, positions)` with it. The numbers in `segment_ids` are segments of packed rows.
            None calls the model with x alone.
    """

    loss: Loss
    metrics: list[Measure] = []
    input_feature: str = 'image'
    label_feature: str = 'label'
    padding_feature: str | None = None

    def check(self) -> None:
        joined(*({each.metric_name(): each} for each in self.metrics))

    def check_input(self, data: Input) -> None:
        there = data.element_spec()
        for field in ('input_feature', 'label_feature', 'padding_feature'):
            name = self.sym_getattr(field)
            if name is not None and name not in there:
                raise UserError(
                    f'its batches have no feature {name!r}, only {", ".join(sorted(there))}: '
                    f'set task.{field}'
                )

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        x = batch[self.input_feature]
        if x.dtype == jnp.uint8:
            x = x.astype(jnp.float32) / 255
        elif (found := self.example_weights(batch)) is not None:
            there = jnp.any(found.reshape(len(found), -1) != 0, axis=1)
            x = without_padding(x, there)
        x = x.astype(self.fprop_dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
        if self.padding_feature is None:
            return (x,)
        return x, Positions.packed(segments_of(batch, self.padding_feature))

    def example_weights(self, batch: DeviceBatch) -> jax.Array | None:
        found: jax.Array | None = weights.weights_of(batch, *self._features())
        return found

    def weight_features(self, names: Iterable[str]) -> list[str]:
        return weights.weight_features(names, *self._features())

    def _features(self) -> tuple[str, str]:
        return self.label_feature, self.input_feature

    def outcome(self, outputs: jax.Array, batch: DeviceBatch) -> Outcome:
        """The input of measures."""
        labels, outputs = batch[self.label_feature], outputs.astype(jnp.float32)
        if jnp.issubdtype(labels.dtype, jnp.integer):
            labels = labels.astype(jnp.int32)  # A loss of users may compute 2 * label - 1.
        found = weights.broadcast(self.example_weights(batch), outputs.shape[:-1])
        clean = without_padding(outputs, found), without_padding(labels, found)
        return Outcome(*clean, found, self.loss.is_multi_label)

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        return self._measured(self.outcome(outputs, batch))

    def _measured(self, outcome: Outcome) -> Metrics:
        labelled = outcome.outputs, outcome.labels
        values = {'loss': self.loss.per_example(*labelled)}
        values |= {f'loss/{name}': part for name, part in self.loss.parts(*labelled).items()}
        return joined(_means(values, outcome.weights), measured(self.metrics, outcome))


class ClassificationTask(SupervisedTask):
    """Classification: logits [B, K].

    Metrics: `loss`; `avg_xent`, the plain cross-entropy in nats, and `accuracy` of the largest
    logit; in multi-label classification, `accuracy` is the share of correct binary decisions. Then
    those in `metrics`.

    Example:
        >>> from trainer.layers import Mlp
        >>> from trainer.learner import Learner
        >>> from trainer.measures import AccuracyAt, F1
        >>> loss = SoftmaxCrossEntropy(label_smoothing=0.1)
        >>> metrics = [AccuracyAt(5), F1('macro')]
        >>> task = ClassificationTask(Mlp([128], 10), Learner(1e-3), loss=loss, metrics=metrics)

    Attributes:
        loss: `SoftmaxCrossEntropy` for exclusive classes, `SigmoidCrossEntropy` for multi-label
            classification or a single logit.
    """

    loss: Loss = SoftmaxCrossEntropy()

    def _measured(self, outcome: Outcome) -> Metrics:
        return joined(self._plain(outcome), super()._measured(outcome))

    def _plain(self, outcome: Outcome) -> Metrics:
        logits, labels, weights = outcome.outputs, outcome.labels, outcome.weights
        if not outcome.is_multi_label:
            right = is_most_likely(logits, class_ids(labels, logits))
            values = {'avg_xent': cross_entropy(logits, labels), 'accuracy': right}
            return _means(values, weights)
        xent = SigmoidCrossEntropy().of(logits, labels)
        right = (logits > 0) == (class_weights(labels, logits) > 0.5)
        values = {'avg_xent': xent, 'accuracy': jnp.mean(right, axis=-1, dtype=jnp.float32)}
        return _means(values, weights)


class RegressionTask(SupervisedTask):
    """Regression: outputs and labels [B, D], or labels [B] where D is 1.

    Attributes:
        loss: such as the squared error.
    """

    loss: Loss = MeanSquaredError()


def segments_of(batch: DeviceBatch, feature: str) -> jax.Array:
    """The segment of each token, 0 for padding, of `segment_ids` or a feature that is 0 there.

    A 0 before another token is no padding.

    Example:
        >>> segments_of({'ids': jnp.array([[5, 0, 7, 0]])}, 'ids').tolist()
        [[1, 1, 1, 0]]
    """
    found = batch[feature]
    if feature.rpartition('.')[2].endswith('segment_ids'):
        return found
    return jax.lax.cummax((found != 0).astype(jnp.int32), axis=1, reverse=True)


def _means(values: Mapping[str, jax.Array], weights: jax.Array) -> Metrics:
    return {
        name: WeightedScalar.of(each.astype(jnp.float32), weights) for name, each in values.items()
    }
