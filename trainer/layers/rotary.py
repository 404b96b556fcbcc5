import jax
import jax.numpy as jnp

from trainer.layers.attention_position import AttentionPosition, Position
from trainer.layers.rotary_scaling import RotaryScaling
from trainer.symbolic.component import require_above_zero, require_share
from trainer.symbolic.usual_values import UsualValue


class Rotary(AttentionPosition):
    """Turns each pair of features by an angle that grows with the position (Su et al. 2021).

    Attributes:
        wavelength: tokens in which the slowest pair turns by about one radian.
        fraction: share of a head that turns, its first features. The rest knows no positions
            (Black et al. 2022, section 2.1).
        scaling: other frequencies, for rows longer than those of an earlier training.
    """

    wavelength: float = 10_000.0
    fraction: float = 1.0
    scaling: RotaryScaling | None = None

    usual = {
        'wavelength': UsualValue(1e4, 1e4, 5e5, 'Su et al. 2021; 5e5: Llama 3; 1e6: Qwen2'),
        'fraction': UsualValue(1.0, 0.25, 1.0, 'Su et al. 2021; 0.25: GPT-NeoX-20B, Pythia'),
    }

    def check(self) -> None:
        require_above_zero(self, 'fraction')
        require_share(self, 'fraction')
        if self.wavelength <= 1:
            raise ValueError(f'wavelength must be above 1: {self.wavelength}')

    def require_head(self, head_dim: int) -> None:
        if head_dim % 2:
            raise ValueError(f'head_dim must be even for rotary positions: {head_dim}')
        features = self.fraction * head_dim
        if not round(features / 2) >= 1 or abs(features / 2 - round(features / 2)) > 1e-6:
            raise ValueError(
                f'position.fraction: {self.fraction} of a head of {head_dim} features is '
                f'{features:.4g}, but they turn in pairs'
            )

    def turned(self, x_BTNH: jax.Array, index_BT: jax.Array) -> jax.Array:
        features = round(self.fraction * x_BTNH.shape[-1])
        frequency_h, scale = frequencies(features, self.wavelength), None
        if self.scaling is not None:
            frequency_h = self.scaling.scaled(frequency_h, self.wavelength)
            scale = self.scaling.attention_scale()
        first = rotate(x_BTNH[..., :features], index_BT, frequency_h, scale)
        if features == x_BTNH.shape[-1]:
            return first
        return jnp.concatenate([first, x_BTNH[..., features:]], axis=-1)


def turned(x_BTNH: jax.Array, index_BT: jax.Array, position: Position) -> jax.Array:
    """Queries or keys that know their positions.

    Args:
        position: a name, or a component of the running layer.
    """
    if isinstance(position, AttentionPosition):
        x_BTNH = position.call('turned', x_BTNH, index_BT)
    elif position == 'rotary':
        x_BTNH = rotate(x_BTNH, index_BT, frequencies(x_BTNH.shape[-1], 10_000.0))
    return x_BTNH


def frequencies(features: int, wavelength: float) -> jax.Array:
    """Radians by which each of `features / 2` pairs turns at a token, the fastest first.

    Example:
        >>> frequencies(4, 100.0).round(3).tolist()
        [1.0, 0.10000000149011612]
    """
    half = features // 2
    return wavelength ** (-jnp.arange(half, dtype=jnp.float32) / half)


def rotate(
    x_BTNH: jax.Array, index_BT: jax.Array, frequency_h: jax.Array, scale: float | None = None
) -> jax.Array:
    """Rotates each pair of features by an angle that grows with the position.

    Args:
        x_BTNH: queries or keys; H is even. Feature i is paired with feature i + H / 2.
        frequency_h: radians of each pair at a token.
        scale: multiplies the result; None for 1.
    """
    angle_BT1h = index_BT[:, :, None, None].astype(jnp.float32) * frequency_h
    sin, cos = jnp.sin(angle_BT1h), jnp.cos(angle_BT1h)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    if scale is not None:
        rotated = rotated * scale
    return rotated.astype(x_BTNH.dtype)
