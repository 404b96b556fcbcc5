from typing import Any

import jax
from flax.linen import initializers
from jax.ad_checkpoint import checkpoint_name

from trainer.layers.activations import Activation, activate
from trainer.layers.base import Layer
from trainer.layers.context import current_context
from trainer.layers.dropout import Dropout
from trainer.layers.initialization import Bias, Initializer, kernel_init
from trainer.layers.positions import Positions
from trainer.layers.tokamax_kernels import ACTIVATIONS, gated_unit
from trainer.layers.width import width_span
from trainer.symbolic.component import require_above_zero, require_positive
from trainer.symbolic.usual_values import UsualValue, choice, over


class FeedForward(Layer):
    """activation(x @ up) @ down: [B, T, D] -> [B, T, D].

    Attributes:
        hidden_dims: hidden width; None for four times the width of the model.
        activation: applied to the hidden values.
        dropout: applied after the activation.
        bias: 'zeros' adds biases that start at zero to both products.
        init: of new kernels; None for a normal distribution of deviation 1 / sqrt(inputs).
        hidden_ratio: the hidden width as a multiple of the width of the model, rounded, in place of
            `hidden_dims`. It is structure: another ratio compiles another program.
    """

    is_pointwise = True

    hidden_dims: int | None = None
    activation: Activation = 'gelu'
    dropout: Dropout | None = None
    bias: Bias = 'none'
    init: Initializer | None = None
    hidden_ratio: float | None = None

    usual = {
        'activation': choice('gelu', 'GPT-3 (Brown et al. 2020), BERT, ViT'),
        'hidden_ratio': UsualValue(4.0, 3.0, 4.0, 'Vaswani et al. 2017, GPT-3, BERT, ViT'),
    }

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        stated = super().usual_values(experiment)
        ratio = stated.get('hidden_ratio')
        hidden = over(width_span(experiment), ratio.scaled) if ratio else None
        return stated | ({'hidden_dims': hidden} if hidden else {})

    def check(self) -> None:
        require_positive(self, 'hidden_dims')
        require_above_zero(self, 'hidden_ratio')
        if self.hidden_dims is not None and self.hidden_ratio is not None:
            raise ValueError(
                f'hidden_dims ({self.hidden_dims}) and hidden_ratio ({self.hidden_ratio}) both set '
                'the hidden width: give one of them'
            )

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        hidden_BTF = activate(self.project_in('up', x_BTD), self.activation)
        return self.project_out(hidden_BTF, x_BTD.shape[-1])

    def hidden_width(self, dims: int) -> int:
        """The hidden width in a model of width `dims`.

        Example:
            >>> FeedForward(hidden_ratio=2.6).hidden_width(8)
            21
        """
        if self.hidden_ratio is not None:
            return max(1, round(self.hidden_ratio * dims))
        return self.hidden_dims or self.default_hidden_dims(dims)

    def default_hidden_dims(self, dims: int) -> int:
        """The hidden width where no field sets it."""
        return 4 * dims

    def project_in(self, name: str, x_BTD: jax.Array) -> jax.Array:
        dims = x_BTD.shape[-1]
        return self._multiplied(name, x_BTD, (dims, self.hidden_width(dims)), ('embed', 'mlp'))

    def project_out(self, hidden_BTF: jax.Array, dims: int) -> jax.Array:
        hidden_BTF = self.constrain(hidden_BTF, ('batch', 'length', 'mlp'))
        if self.dropout is not None:
            hidden_BTF = self.dropout(hidden_BTF)
        shape = (hidden_BTF.shape[-1], dims)
        x_BTD = self._multiplied('down', hidden_BTF, shape, ('mlp', 'embed'))
        return self.constrain(x_BTD, ('batch', 'length', 'features'))

    def _multiplied(
        self, name: str, x: jax.Array, shape: tuple[int, int], axes: tuple[str, str]
    ) -> jax.Array:
        kernel = self.param(name, shape, axes, kernel_init(self.init))
        y = self.product('...d,df->...f', x, kernel)
        if self.bias != 'none':
            axis = ('mlp',) if axes[1] == 'mlp' else ('norm',)  # Replicated, like norms.
            y += self.param(f'{name}_bias', shape[1:], axis, initializers.zeros, decay=False)
        return checkpoint_name(y, name)


class GatedFeedForward(FeedForward):
    """(activation(x @ gate) * (x @ up)) @ down. Shazeer 2020.

    The default width gives as many parameters as the plain layer has.
    """

    activation: Activation = 'silu'

    usual = {
        'activation': choice('silu', 'SwiGLU: Shazeer 2020, PaLM, LLaMA'),
        'hidden_ratio': UsualValue(8 / 3, 2.5, 3.5, 'Shazeer 2020, LLaMA; 3.5: Llama 3, Mistral'),
    }

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        if self._has_kernel():
            gate_DF, up_DF = (self._kernel_in(name, x_BTD) for name in ('gate', 'up'))
            hidden_BTF = gated_unit(x_BTD, gate_DF, up_DF, self.activation)
            return self.project_out(hidden_BTF, x_BTD.shape[-1])
        gate_BTF = activate(self.project_in('gate', x_BTD), self.activation)
        return self.project_out(gate_BTF * self.project_in('up', x_BTD), x_BTD.shape[-1])

    def _has_kernel(self) -> bool:
        context = current_context()
        is_plain = context.adapters is None and context.precision is None and self.bias == 'none'
        is_known = isinstance(self.activation, str) and self.activation in ACTIVATIONS
        return context.kernels == 'tokamax' and is_plain and is_known

    def _kernel_in(self, name: str, x_BTD: jax.Array) -> jax.Array:
        dims = x_BTD.shape[-1]
        return self.param(
            name, (dims, self.hidden_width(dims)), ('embed', 'mlp'), kernel_init(self.init)
        )

    def default_hidden_dims(self, dims: int) -> int:
        return 8 * dims // 3
