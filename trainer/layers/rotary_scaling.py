"""Frequencies of rotary positions for rows longer than those of an earlier training."""

import math

import jax
import jax.numpy as jnp

from trainer.symbolic.component import Component, require_above_zero, require_at_least


class RotaryScaling(Component):
    """Base: frequencies of pairs of features -> others."""

    def scaled(self, frequency_h: jax.Array, wavelength: float) -> jax.Array:
        """The new frequencies.

        Args:
            frequency_h: in radians at a token, wavelength^(-i / h).
            wavelength: as in `Rotary`.
        """
        raise NotImplementedError(type(self).__name__)

    def attention_scale(self) -> float | None:
        """Multiplies queries and keys once turned; None for 1."""
        return None


class LinearScaling(RotaryScaling):
    """Divides all frequencies, as if positions were closer together (Chen et al. 2023).

    Attributes:
        factor: how many times longer rows are.
    """

    factor: float

    def check(self) -> None:
        require_at_least(self, 1, 'factor')

    def scaled(self, frequency_h: jax.Array, wavelength: float) -> jax.Array:
        return frequency_h / self.factor


class LlamaScaling(RotaryScaling):
    """Divides low frequencies and keeps high ones (Llama 3.1, Dubey et al. 2024, section 3.4.3).

    A frequency between them is a mean of both, weighted by its turns in `original_length` tokens.

    Attributes:
        factor: of the low frequencies.
        low: pairs with fewer turns in `original_length` tokens are low.
        high: pairs with more turns are high.
        original_length: tokens of a row in the earlier training.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def check(self) -> None:
        require_at_least(self, 1, 'factor', 'original_length')
        require_above_zero(self, 'low')
        if self.low >= self.high:
            raise ValueError(f'high must be above low, {self.low}: {self.high}')

    def scaled(self, frequency_h: jax.Array, wavelength: float) -> jax.Array:
        turns_h = self.original_length * frequency_h / (2 * math.pi)
        kept_h = jnp.clip((turns_h - self.low) / (self.high - self.low), 0.0, 1.0)
        return frequency_h * (kept_h + (1 - kept_h) / self.factor)


class YarnScaling(RotaryScaling):
    """Divides low frequencies, keeps high ones, and sharpens attention (Peng et al. 2023).

    Between them, the share that is kept falls by the same amount from pair to pair. So the code of
    the authors has it, and models trained with it; in the paper it falls with the number of turns.

    Attributes:
        factor: how many times longer rows are.
        original_length: tokens of a row in the earlier training.
        low: pairs with fewer turns in `original_length` tokens are low.
        high: pairs with more turns are high.
        attention_factor: multiplies queries and keys; None for 0.1 * ln(factor) + 1.
    """

    factor: float
    original_length: int
    low: float = 1.0
    high: float = 32.0
    attention_factor: float | None = None

    def check(self) -> None:
        require_at_least(self, 1, 'factor', 'original_length')
        require_above_zero(self, 'low', 'attention_factor')
        if self.low >= self.high:
            raise ValueError(f'high must be above low, {self.low}: {self.high}')

    def scaled(self, frequency_h: jax.Array, wavelength: float) -> jax.Array:
        half = len(frequency_h)

        def pair(turns: float) -> float:
            """The pair with this number of turns in `original_length` tokens."""
            tokens = self.original_length / (2 * math.pi * turns)
            return half * math.log(tokens) / math.log(wavelength)

        first = max(math.floor(pair(self.high)), 0)
        last = min(math.ceil(pair(self.low)), 2 * half - 1)
        kept_h = 1 - jnp.clip((jnp.arange(half) - first) / max(last - first, 1e-3), 0.0, 1.0)
        return frequency_h * (kept_h + (1 - kept_h) / self.factor)

    def attention_scale(self) -> float | None:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1
