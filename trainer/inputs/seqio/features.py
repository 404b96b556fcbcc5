from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from trainer.inputs.base import Batch
from trainer.inputs.libraries import libraries
from trainer.inputs.tokens.language import language_spec
from trainer.inputs.tokens.vocabulary import PAD_ID
from trainer.symbolic.component import Component

Lengths = Mapping[str, int]


class FeatureConverter(Component):
    """Converts the examples of a task to rows with the features of a model.

    Attributes:
        bos_id: the id before the first token of an example in `ids`.
    """

    bos_id: int = PAD_ID

    def features(self, lengths: Lengths, packed: bool) -> dict[str, str]:
        """Maps the features of a batch to their names in SeqIO's converter.

        Args:
            lengths: tokens of each feature of the task.
            packed: rows hold several examples.
        """
        raise NotImplementedError(type(self).__name__)

    def required(self) -> list[set[str]]:
        """The sets of task features that it can convert."""
        raise NotImplementedError(type(self).__name__)

    def seqio(self, lengths: Lengths, packed: bool, check_lengths: bool) -> Any:
        """SeqIO's converter; with `check_lengths`, examples that are too long are an error."""
        raise NotImplementedError(type(self).__name__)

    def element_spec(
        self, batch_size: int, lengths: Lengths, packed: bool, label_bytes: bool
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a batch. See `language_spec`."""
        raise NotImplementedError(type(self).__name__)

    def finished(self, rows: Batch) -> Batch:
        """The batch from rows of SeqIO's converter."""
        # SeqIO leaves the last label of a document in `ids` before the padding.
        ids = rows['ids'] * (rows['labels'] != PAD_ID)
        return {**rows, 'ids': ids, 'weights': rows['weights'].astype(np.float32)}

    def _settings(self, packed: bool, check_lengths: bool) -> dict[str, Any]:
        return {'pack': packed, 'apply_length_check': check_lengths, 'bos_id': self.bos_id}


_DECODER = {
    'ids': 'decoder_input_tokens',
    'labels': 'decoder_target_tokens',
    'weights': 'decoder_loss_weights',
}
_PACKED_DECODER = {'segment_ids': 'decoder_segment_ids', 'segment_pos': 'decoder_positions'}
_ENCODER = {'encoder_ids': 'encoder_input_tokens'}
_PACKED_ENCODER = {
    'encoder_segment_ids': 'encoder_segment_ids',
    'encoder_segment_pos': 'encoder_positions',
}


class LanguageModelFeatures(FeatureConverter):
    """The features of a decoder: `ids`, `labels`, `weights`.

    The `inputs` of a task stand in the row before its targets. `inputs_indicator` is 1 for the
    prefix of a prefix language model (Raffel et al. 2020): the tokens in `ids` that belong to
    `inputs`, up to the position that predicts the first target.

    Attributes:
        weights_on_targets_only: tokens of `inputs` have no weight as labels.
    """

    weights_on_targets_only: bool = True

    def required(self) -> list[set[str]]:
        return [{'targets'}, {'inputs', 'targets'}]

    def features(self, lengths: Lengths, packed: bool) -> dict[str, str]:
        prefix = {'inputs_indicator': 'decoder_causal_attention'} if 'inputs' in lengths else {}
        return _DECODER | (_PACKED_DECODER if packed else {}) | prefix

    def element_spec(
        self, batch_size: int, lengths: Lengths, packed: bool, label_bytes: bool
    ) -> dict[str, jax.ShapeDtypeStruct]:
        length = sum(lengths.values())
        spec = language_spec(batch_size, length, packed=packed, label_bytes=label_bytes)
        if 'inputs' in lengths:
            spec['inputs_indicator'] = jax.ShapeDtypeStruct((batch_size, length), np.int32)
        return spec

    def seqio(self, lengths: Lengths, packed: bool, check_lengths: bool) -> Any:
        seqio, settings = libraries().seqio, self._settings(packed, check_lengths)
        if 'inputs' not in lengths:
            return seqio.LMFeatureConverter(**settings)
        return seqio.PrefixLMFeatureConverter(
            loss_on_targets_only=self.weights_on_targets_only, **settings
        )


class SequenceModelFeatures(FeatureConverter):
    """The features of an encoder and a decoder.

    `encoder_ids` int32 and `encoder_weights` float32 [B, S], 0 for padding; `ids`, `labels` and
    `weights` [B, T] of the decoder. Packed rows also have `segment_ids` and `segment_pos`, and
    `encoder_segment_ids` and `encoder_segment_pos`; equal numbers mark the same example.
    """

    def required(self) -> list[set[str]]:
        return [{'inputs', 'targets'}]

    def features(self, lengths: Lengths, packed: bool) -> dict[str, str]:
        segments = _PACKED_DECODER | _PACKED_ENCODER if packed else {}
        return _ENCODER | _DECODER | segments

    def element_spec(
        self, batch_size: int, lengths: Lengths, packed: bool, label_bytes: bool
    ) -> dict[str, jax.ShapeDtypeStruct]:
        encoder = language_spec(batch_size, lengths['inputs'], packed=packed, label_bytes=False)
        del encoder['labels']
        decoder = language_spec(
            batch_size, lengths['targets'], packed=packed, label_bytes=label_bytes
        )
        return {f'encoder_{name}': spec for name, spec in encoder.items()} | decoder

    def finished(self, rows: Batch) -> Batch:
        is_token = rows['encoder_ids'] != PAD_ID
        return super().finished(rows) | {'encoder_weights': is_token.astype(np.float32)}

    def seqio(self, lengths: Lengths, packed: bool, check_lengths: bool) -> Any:
        return libraries().seqio.EncDecFeatureConverter(**self._settings(packed, check_lengths))
