from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import AUX_LOSS, NON_TRAINABLE, PARAMS, Layer, current_frame, run_layer
from trainer.symbolic.component import Count, require_at_least
from trainer.symbolic.errors import UserError

SAMPLED = -1
"""A choice that is drawn."""


class ChoiceLayer(Layer):
    """Several layers, one of which runs: a choice block of a supernet (Guo et al. 2019).

    It has the parameters of all candidates. The choice is traced: all choices share one compiled
    program, and only the layer that runs takes time.

    Attributes:
        candidates: layers with results of equal shapes, and without auxiliary losses.
        choice: the index of the candidate that runs. -1 draws one uniformly in each step of
            training, and runs the first in evaluation.

    Example:
        >>> from trainer.layers import FeedForward, Residual, Stack
        >>> candidates = [Residual(FeedForward(hidden_ratio=ratio)) for ratio in (1.0, 2.0)]
        >>> stack = Stack([ChoiceLayer(candidates)], repeats=4)
    """

    candidates: list[Layer]
    choice: Count = SAMPLED

    def check(self) -> None:
        if not self.candidates:
            raise ValueError('candidates must not be empty')
        require_at_least(self, SAMPLED, 'choice')
        if self.choice >= len(self.candidates):
            raise ValueError(f'choice is {self.choice}, of {len(self.candidates)} candidates')

    def forward(self, x: jax.Array, *args: Any) -> jax.Array:
        if self.cache_length is not None:
            raise UserError(f'{self.sym_path}: a ChoiceLayer cannot decode')
        module = current_frame().module
        if module.is_initializing():
            return self._initialized(x, *args)
        result: jax.Array = nn.switch(
            self._index(),
            [self._branch(candidate, args) for candidate in self.candidates],
            module,
            x,
            variables=(PARAMS, NON_TRAINABLE),
        )
        return result

    def run_candidate(self, candidate: Layer, x: jax.Array, args: Any) -> jax.Array:
        """Runs a candidate as a child of this layer."""
        result: jax.Array = candidate(x, *args)
        return result

    def _branch(self, candidate: Layer, args: Any) -> Callable[[nn.Module, jax.Array], jax.Array]:
        keys = current_frame().keys

        def branch(module: nn.Module, x: jax.Array) -> jax.Array:
            # The parameters are inputs of the branch: there this layer has another module.
            result: jax.Array = run_layer(
                module, self, 'run_candidate', (candidate, x, args), {}, keys
            )
            return result

        return branch

    def _index(self) -> jax.Array:
        choice = jnp.asarray(self.choice, jnp.int32)
        if not self.training:
            return jnp.maximum(choice, 0)
        drawn = jax.random.randint(self.rng('dropout'), (), 0, len(self.candidates))
        return jnp.where(choice < 0, drawn, choice)

    def _initialized(self, x: jax.Array, *args: Any) -> jax.Array:
        """Creates the parameters of all candidates."""
        results = [candidate(x, *args) for candidate in self.candidates]
        for index, result in enumerate(results):
            if result.shape != results[0].shape:
                raise UserError(
                    f'{self.sym_path}: candidates must return equal shapes: candidates[{index}] '
                    f'returns {result.shape}, and candidates[0] {results[0].shape}'
                )
        if AUX_LOSS in current_frame().module.variables:
            raise UserError(f'{self.sym_path}: candidates cannot have auxiliary losses')
        return results[0]
