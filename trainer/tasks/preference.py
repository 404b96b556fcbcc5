import math
from typing import Literal

import jax
import jax.numpy as jnp

from trainer.inputs.base import Input
from trainer.inputs.weights import broadcast, weights_of
from trainer.losses import cross_entropy
from trainer.metrics import Count, Metrics, WeightedScalar, weighted
from trainer.state import REFERENCE
from trainer.symbolic.component import Number, require_above_zero, require_not_negative
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue
from trainer.task import DeviceBatch
from trainer.tasks.language_model import LanguageModelTask

CHOSEN, REJECTED = 'chosen', 'rejected'
"""Parts of a batch of pairs: its features are `chosen.ids`, `rejected.ids` and so on."""

_FEATURES = ('ids', 'labels', 'weights')


class PreferenceTask(LanguageModelTask):
    """Direct preference optimization (Rafailov et al. 2023) of pairs of answers to a prompt.

    A batch has `ids`, `labels` and `weights` [B, T] of `chosen` and of `rejected`, such as
    `chosen.ids`. The weights are 1 for tokens of the answer. The model is compared with the
    reference. With `adapters`, that is the model without them, which costs no memory. Otherwise it
    is the model as the run began: the state keeps copies of the trained parameters.

    The reward of an answer is beta times its log ratio of model and reference. Metrics: `loss`;
    `preference_accuracy`, the share of pairs whose chosen answer has the higher reward;
    `reward_chosen`, `reward_rejected` and `reward_margin`; `log_pplx` of the tokens of chosen
    answers; `num_pairs`. `drift` is half the mean squared log ratio of a token, an estimate of the
    KL divergence (Schulman 2020). Batches without pairs are measured as by `LanguageModelTask`.

    Attributes:
        beta: strength of the tie to the reference.
        form: of the loss. 'sigmoid' is that of the paper. 'ipo' is a squared distance, from mean
            log ratios of tokens, which does not overfit to certain preferences (Azar et al. 2024).
        label_smoothing: probability that a pair is the wrong way round (cDPO, Mitchell 2023).
        supervised_weight: weight of the mean loss of the tokens of the chosen answer (Pang et al.
            2024).
    """

    beta: Number = 0.1
    form: Literal['sigmoid', 'ipo'] = 'sigmoid'
    label_smoothing: Number = 0.0
    supervised_weight: Number = 0.0
    model_type: Literal['causal'] = 'causal'

    usual = {
        'beta': UsualValue(0.1, 0.01, 0.5, 'Rafailov et al. 2023: 0.1, and 0.5 for summaries'),
        'label_smoothing': UsualValue(0.0, 0.0, 0.3, 'cDPO (Mitchell 2023)'),
        'supervised_weight': UsualValue(0.0, 0.0, 1.0, 'Pang et al. 2024: 1'),
    }

    def check(self) -> None:
        super().check()
        require_above_zero(self, 'beta')
        require_not_negative(self, 'label_smoothing', 'supervised_weight')
        if not self.label_smoothing < 0.5:
            raise ValueError(
                f'label_smoothing must be below 0.5, where a pair says nothing: '
                f'{self.label_smoothing}'
            )
        if self.form == 'ipo' and self.label_smoothing:
            raise ValueError("label_smoothing must be 0 with form 'ipo', which does not need it")

    def check_input(self, data: Input) -> None:
        names = {*data.element_spec()}
        if f'{CHOSEN}.ids' not in names:
            if data.is_training:
                raise UserError(
                    f'its batches have no pairs ({CHOSEN}.ids, {REJECTED}.ids), only '
                    f'{", ".join(sorted(names))}: use PreferenceInput'
                )
            super().check_input(data)
            return
        needed = {f'{part}.{name}' for part in (CHOSEN, REJECTED) for name in _FEATURES}
        if missing := sorted(needed - names):
            raise UserError(f'its batches have no {", ".join(missing)}')
        self.check_vocabulary(data)

    @property
    def keeps_reference(self) -> bool:
        return self.adapters is None

    def compares(self, batch: DeviceBatch) -> bool:
        return f'{CHOSEN}.ids' in batch

    def model_inputs(self, batch: DeviceBatch) -> tuple[object, ...]:
        return super().model_inputs(_rows(batch))

    def example_weights(self, batch: DeviceBatch) -> jax.Array | None:
        return super().example_weights(_rows(batch))

    def label_weights(self, batch: DeviceBatch) -> jax.Array:
        return super().label_weights(_rows(batch))

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        if not self.compares(batch):
            return super().measure(outputs, batch)
        rows = _rows(batch)
        labels, weights = rows['labels'], self.label_weights(batch)
        self._require_logits(outputs, labels.shape)
        xent, at_start = cross_entropy(outputs, labels), cross_entropy(batch[REFERENCE], labels)
        xent, ratios, weights = (
            jnp.stack([part[::2], part[1::2]]) for part in (xent, at_start - xent, weights)
        )
        sums, sizes = jnp.sum(weighted(ratios, weights), -1), jnp.sum(weights, -1)
        of_pair = jnp.all(sizes > 0, axis=0).astype(jnp.float32)
        chosen, rejected = self.beta * sums
        nats = jnp.sum(weighted(xent[0], weights[0]), -1) / jnp.maximum(sizes[0], 1e-12)
        losses = self._losses(sums, sizes) + weighted(nats, self.supervised_weight)
        found = {
            'loss': losses,
            'preference_accuracy': (chosen > rejected).astype(jnp.float32),
            'reward_chosen': chosen,
            'reward_rejected': rejected,
            'reward_margin': chosen - rejected,
        }
        return {
            **{name: WeightedScalar.of(each, of_pair) for name, each in found.items()},
            'drift': WeightedScalar.of(jnp.square(ratios) / 2, weights * of_pair[:, None]),
            'log_pplx': WeightedScalar.of(xent[0], weights[0]),
            'num_pairs': Count(jnp.sum(of_pair)),
        }

    def num_tokens(self, batch: DeviceBatch) -> int:
        if not self.compares(batch):
            return super().num_tokens(batch)
        return 2 * math.prod(batch[f'{CHOSEN}.ids'].shape)

    def _losses(self, sums: jax.Array, sizes: jax.Array) -> jax.Array:
        """The loss of each pair, from the sums of log ratios and the sizes of both answers."""
        if self.form == 'ipo':
            chosen, rejected = sums / jnp.maximum(sizes, 1.0)
            return jnp.square(chosen - rejected - 1 / (2 * self.beta))
        margin = self.beta * (sums[0] - sums[1])
        right, wrong = jax.nn.softplus(-margin), jax.nn.softplus(margin)
        return right + weighted(wrong - right, self.label_smoothing)


def _rows(batch: DeviceBatch) -> DeviceBatch:
    """Both answers of each pair as neighbouring rows [2B, T], which stay on their device."""
    if f'{CHOSEN}.ids' not in batch:
        return batch
    rows = {}
    for name in _FEATURES:
        parts = [batch[f'{part}.{name}'] for part in (CHOSEN, REJECTED)]
        if name == 'weights':  # Weights of the whole batch count, too.
            found = [weights_of(batch, f'{part}.labels') for part in (CHOSEN, REJECTED)]
            parts = [broadcast(*each) for each in zip(found, [x.shape for x in parts], strict=True)]
        both = jnp.stack(parts, axis=1)
        rows[name] = both.reshape(-1, *both.shape[2:])
    return rows
