from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from trainer.layers.base import AUX_LOSS, NON_TRAINABLE, PARAMS, Layer, current_frame, run_layer
from trainer.layers.branch import taken
from trainer.symbolic.component import Count, require_at_least
from trainer.symbolic.errors import UserError

SAMPLED = -1
"""A choice that is drawn."""


class ChoiceLayer(Layer):
    """Several layers, one of which runs: a choice block of a supernet (Guo et al. 2019).

    It has the parameters of all candidates. The choice is traced: all choices share one compiled
    program, and only the layer that runs takes time.

    Attributes:
        candidates: layers with results of equal shapes. The auxiliary loss of the one that runs
            counts. Summaries are not logged, since not all of them exist in each step.
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
        losses: list[Any] = []
        result, aux_loss = nn.switch(
            self._index(),
            [self._branch(candidate, args, losses) for candidate in self.candidates],
            module,
            x,
            variables=(PARAMS, NON_TRAINABLE, AUX_LOSS),
        )
        if losses:
            self.add_aux_loss('of_choice', aux_loss)
        return cast(jax.Array, result)

    def run_candidate(self, candidate: Layer, x: jax.Array, args: Any) -> jax.Array:
        """Runs a candidate as a child of this layer; positions go only to one that takes them."""
        result: jax.Array = candidate(x, *taken(candidate, x, args))
        return result

    def _branch(
        self, candidate: Layer, args: Any, losses: list[Any]
    ) -> Callable[[nn.Module, jax.Array], Any]:
        """Runs a candidate and sums its auxiliary losses, whose shapes `losses` collects."""
        keys = current_frame().keys

        def run(module: nn.Module, x: jax.Array) -> Any:
            # The parameters are inputs of the branch: there this layer has another module.
            return run_layer(module, self, 'run_candidate', (candidate, x, args), {}, keys)

        def branch(module: nn.Module, x: jax.Array) -> Any:
            result, found = _with_aux_losses(run, module, x)
            losses.extend(jax.typeof(loss) for loss in found)
            return result, sum(map(jnp.sum, found), jnp.zeros(()))

        return branch

    def _index(self) -> jax.Array:
        choice = jnp.asarray(self.choice, jnp.int32)
        if not self.training:
            return jnp.maximum(choice, 0)
        drawn = jax.random.randint(self.rng('dropout'), (), 0, len(self.candidates))
        return jnp.where(choice < 0, drawn, choice)

    def _initialized(self, x: jax.Array, *args: Any) -> jax.Array:
        """Creates the parameters of all candidates."""
        results = [self.run_candidate(candidate, x, args) for candidate in self.candidates]
        for index, result in enumerate(results):
            if result.shape != results[0].shape:
                raise UserError(
                    f'{self.sym_path}: candidates must return equal shapes: candidates[{index}] '
                    f'returns {result.shape}, and candidates[0] {results[0].shape}'
                )
        return results[0]


def _with_aux_losses(run: Callable[..., Any], module: nn.Module, x: jax.Array) -> Any:
    """Runs a candidate, and returns its auxiliary losses, in place of storing them.

    All branches then store equal variables, as a `switch` needs.
    """
    before: list[Any] = []
    found: list[Any] = []

    def hide(variables: Any) -> Any:
        before.append(variables)
        return {}

    def take(variables: Any) -> Any:
        found.append(variables)
        return before.pop(0)

    mapped = nn.map_variables(run, AUX_LOSS, hide, take, mutable=True)
    return mapped(module, x), jax.tree.leaves(found)
