from typing import Literal

import jax
import jax.numpy as jnp

from trainer.inputs.base import Input
from trainer.inputs.weights import example_mask
from trainer.layers.base import fold
from trainer.symbolic.component import (
    Number,
    require_above_zero,
    require_fraction,
    require_not_negative,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue
from trainer.task import DeviceBatch
from trainer.tasks.language_model import LanguageModelTask, without_padding
from trainer.tasks.tokens import TokenTask


class MaskedLanguageModelTask(LanguageModelTask):
    """Prediction of hidden tokens from all others (Devlin et al. 2019), to pre-train an encoder.

    Batches are those of `LanguageModelTask`; `segment_ids` are optional, and `labels` are not used.
    Each token of `ids` but `special_ids` is chosen with probability `mask_rate`. Chosen tokens are
    the labels. In the input, most of them become `mask_id`, some a random token, and some stay.

    The choice depends on the key of the step and on the row, so a resumed training chooses the same
    tokens, whatever the devices. Evaluation chooses by the row alone, always the same tokens.

    Attributes:
        mask_id: the token that hides others; texts do not have it.
        mask_rate: probability that a token, or a word, is chosen.
        random_share: share of chosen tokens that become a random token.
        kept_share: share of chosen tokens that stay.
        special_ids: ids that are no text, which are not chosen. Without 0, a token may become 0.
        word_separators: tokens between words, such as spaces. Then all tokens of a word are chosen
            together, as in whole word masking. Batches with `word_ids` [B, T], the number of the
            word of each token, need none.
    """

    mask_id: int
    mask_rate: Number = 0.15
    random_share: Number = 0.1
    kept_share: Number = 0.1
    special_ids: list[int] = [0]
    word_separators: list[int] = []
    model_type: Literal['bidirectional'] = 'bidirectional'

    usual = {
        'mask_rate': UsualValue(0.15, 0.15, 0.4, 'BERT; 0.4: Wettig et al. 2023'),
        'random_share': UsualValue(0.1, 0.0, 0.1, 'BERT; 0: Wettig et al. 2023'),
        'kept_share': UsualValue(0.1, 0.0, 0.1, 'BERT; 0: Wettig et al. 2023'),
    }

    def check(self) -> None:
        super().check()
        require_above_zero(self, 'mask_rate')
        require_fraction(self, 'mask_rate')
        require_not_negative(self, 'random_share', 'kept_share')
        if self.random_share + self.kept_share > 1:
            raise ValueError(
                f'random_share ({self.random_share}) and kept_share ({self.kept_share}) must add '
                'up to at most 1'
            )
        if (ids := self.vocab_size or 0) < 3:
            raise ValueError(
                f'task.model has a vocabulary of {ids}: padding, mask_id and a token need 3 ids'
            )
        first = self._first_text_id
        if not first <= self.mask_id < ids:
            raise ValueError(
                f'mask_id must lie between {first} and {ids - 1}, the ids of '
                f'task.model: {self.mask_id}. Enlarge its vocabulary by one if it has no spare id'
            )

    def check_input(self, data: Input) -> None:
        TokenTask.check_input(self, data)  # Padding is found without `segment_ids`.
        self._require_positions('its rows have padding')

    def prepared(self, batch: DeviceBatch, key: jax.Array) -> DeviceBatch:
        ids_BT = batch['ids']
        segment_BT = batch['segment_ids'] if 'segment_ids' in batch else without_padding(batch)
        is_text_BT = (segment_BT != 0) & ~jnp.isin(
            ids_BT, jnp.array([*self.special_ids], ids_BT.dtype)
        )
        choice_BT, kind_BT, other_BT = self._draws(ids_BT, fold(key, 'mask'))
        first_BT = _firsts(self._words(batch), segment_BT)
        chosen_BT = jnp.take_along_axis(choice_BT, first_BT, axis=1) < self.mask_rate
        chosen_BT &= is_text_BT
        is_other_BT = kind_BT < self.random_share
        is_mask_BT = kind_BT >= self.random_share + self.kept_share
        hidden_BT = jnp.where(is_mask_BT, self.mask_id, jnp.where(is_other_BT, other_BT, ids_BT))
        left_out = ('label_bytes', 'weights')  # About next tokens, which are no labels here.
        return {name: x for name, x in batch.items() if name not in left_out} | {
            'ids': jnp.where(chosen_BT, hidden_BT, ids_BT).astype(ids_BT.dtype),
            'labels': ids_BT,
            'weights': chosen_BT * _row_weights(batch),
            'segment_ids': segment_BT,
        }

    def scores(self, outputs: jax.Array, batch: DeviceBatch) -> jax.Array:
        raise UserError('task: a masked language model gives texts no probability')

    @property
    def _first_text_id(self) -> int:
        return int(0 in self.special_ids)

    def _draws(self, ids_BT: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Two uniform numbers for each token, and a random token other than `mask_id`."""
        assert self.vocab_size is not None
        length, first, last = ids_BT.shape[1], self._first_text_id, self.vocab_size - 1

        def of_row(row: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            one, two, three = jax.random.split(jax.random.fold_in(key, row), 3)
            other_T = jax.random.randint(three, (length,), first, last)
            other_T += other_T >= self.mask_id
            return jax.random.uniform(one, (length,)), jax.random.uniform(two, (length,)), other_T

        odd_T = 2 * jnp.arange(length, dtype=jnp.uint32) + 1
        row_B = jnp.sum(ids_BT.astype(jnp.uint32) * odd_T * jnp.uint32(2654435761), axis=1)
        return jax.vmap(of_row)(row_B)

    def _words(self, batch: DeviceBatch) -> jax.Array:
        """Numbers that are equal for the neighbouring tokens of a word."""
        if 'word_ids' in batch:
            return batch['word_ids']
        ids_BT = batch['ids']
        if not self.word_separators:
            return jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
        is_between_BT = jnp.isin(ids_BT, jnp.array(list(self.word_separators)))
        before_BT = jnp.pad(is_between_BT[:, :-1], ((0, 0), (1, 0)))
        return jnp.cumsum(is_between_BT | before_BT, axis=1)


def _firsts(word_BT: jax.Array, segment_BT: jax.Array) -> jax.Array:
    """The index of the first token of the word of each token."""
    is_other_BT = word_BT[:, 1:] != word_BT[:, :-1]
    is_other_BT |= segment_BT[:, 1:] != segment_BT[:, :-1]
    begins_BT = jnp.pad(is_other_BT, ((0, 0), (1, 0)))
    column_T = jnp.arange(word_BT.shape[1])
    return jax.lax.cummax(jnp.where(begins_BT, column_T, 0), axis=1)


def _row_weights(batch: DeviceBatch) -> jax.Array:
    """0 for rows of padding, whose next tokens have no weight: float32 [B, 1]."""
    if 'weights' not in batch:
        return jnp.ones((1, 1))
    mask_B: jax.Array = example_mask({'weights': batch['weights']})
    return mask_B[:, None].astype(jnp.float32)
