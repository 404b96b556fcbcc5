"""Encoder-decoder transformers. Vaswani et al. 2017, Raffel et al. 2020."""

import jax

from trainer.layers.base import Layer
from trainer.layers.cross_attention import CrossAttention, Memory
from trainer.layers.dropout import Dropout
from trainer.layers.embedding import Embedding, check_head, token_logits
from trainer.layers.linear import Linear
from trainer.layers.masks import require_mask
from trainer.layers.normalization import Normalization, RMSNorm
from trainer.layers.positions import Positions
from trainer.layers.stack import Stack
from trainer.layers.transformer import TransformerBlock


class DecoderBlock(TransformerBlock):
    """Attention, attention to the memory, then feed-forward: [B, T, D] -> [B, T, D].

    Attributes:
        cross_attention: attends to the output of the encoder.
        cross_attention_norm: applied to its input, or as `norm_policy` says.
    """

    cross_attention: CrossAttention
    cross_attention_norm: Normalization = RMSNorm()

    def check(self) -> None:
        super().check()
        if self.parallel:
            raise ValueError('parallel: attention to the memory stands between the two layers')

    def forward(
        self, x_BTD: jax.Array, positions: Positions | None = None, memory: Memory | None = None
    ) -> jax.Array:
        if positions is None or memory is None:
            raise ValueError(f'{self.sym_path}: a decoder needs positions and a memory')
        x_BTD = self._around([self.attention], self.attention_norm, x_BTD, positions)
        cross, norm = self.cross_attention, self.cross_attention_norm
        x_BTD = self._around([cross], norm, x_BTD, positions, memory)
        return self._around([self.feed_forward], self.feed_forward_norm, x_BTD, positions)


class TransformerEncoderDecoder(Layer):
    """Token ids of two sequences, [B, S] and [B, T] -> logits [B, T, V] in float32.

    The encoder attends in both directions. The decoder attends to its own past, and to the output
    of the encoder for the same segment.

    Attributes:
        embedding: of the decoder's tokens; it sets the width of the model.
        encoder: blocks whose attention has the mask 'full'.
        decoder: blocks whose attention is causal, each a `DecoderBlock`.
        encoder_embedding: of the encoder's tokens; None shares the table of the decoder.
        encoder_norm: applied to the output of the encoder.
        final_norm: applied before the logits.
        head: projects to the vocabulary; None shares the table of the embedding.
        dropout: applied to the embedded tokens of both.
    """

    embedding: Embedding
    encoder: Stack
    decoder: Stack
    encoder_embedding: Embedding | None = None
    encoder_norm: Normalization = RMSNorm()
    final_norm: Normalization = RMSNorm()
    head: Linear | None = None
    dropout: Dropout | None = None

    def check(self) -> None:
        require_mask(self.encoder, 'encoder', 'full')
        require_mask(self.decoder, 'decoder', 'causal')
        other, own = self.encoder_embedding, self.embedding
        if other is not None and other.dims != own.dims:
            raise ValueError(
                f'encoder_embedding.dims ({other.dims}) must equal embedding.dims ({own.dims})'
            )
        check_head(own, self.head)

    @property
    def vocab_size(self) -> int:
        """The number of token ids of the decoder."""
        return self.embedding.vocab_size

    def forward(
        self,
        encoder_ids_BS: jax.Array,
        ids_BT: jax.Array,
        encoder_positions: Positions | None = None,
        positions: Positions | None = None,
    ) -> jax.Array:
        return self.logits(self.last_hidden(encoder_ids_BS, ids_BT, encoder_positions, positions))

    def last_hidden(
        self,
        encoder_ids_BS: jax.Array,
        ids_BT: jax.Array,
        encoder_positions: Positions | None = None,
        positions: Positions | None = None,
    ) -> jax.Array:
        """The activations that logits are made of, [B, T, D]."""
        memory = self.encode(encoder_ids_BS, encoder_positions)
        return self._decoded(ids_BT, memory, positions)

    def encode(self, ids_BS: jax.Array, positions: Positions | None = None) -> Memory:
        """Runs the encoder."""
        positions = positions or Positions.unpacked(ids_BS.shape)
        embedding = self.encoder_embedding or self.embedding
        x_BSD = self.encoder_norm(self.encoder(self._embedded(embedding, ids_BS), positions))
        return Memory(x_BSD, positions.segment_BT)

    def decode(
        self, ids_BT: jax.Array, memory: Memory, positions: Positions | None = None
    ) -> jax.Array:
        """Logits of the next token at each position."""
        return self.logits(self._decoded(ids_BT, memory, positions))

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Logits of the result of `last_hidden`, in float32."""
        return token_logits(self.embedding, self.head, x_BTD)

    def _decoded(self, ids_BT: jax.Array, memory: Memory, positions: Positions | None) -> jax.Array:
        positions = positions or Positions.unpacked(ids_BT.shape)
        x_BTD = self.decoder(self._embedded(self.embedding, ids_BT), positions, memory)
        normalized: jax.Array = self.final_norm(x_BTD)
        return normalized

    def _embedded(self, embedding: Embedding, ids: jax.Array) -> jax.Array:
        x = embedding(ids)
        return x if self.dropout is None else self.dropout(x)
