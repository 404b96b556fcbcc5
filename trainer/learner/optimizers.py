"""Optimizers: symbolic objects around optax, their hyperparameters traced."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from trainer.component import Component, Number, Numbers, OptionalNumber

Mask = Any
"""A tree like the parameters with True where weight decay applies."""


class Optimizer(Component):
    """Turns gradients into updates.

    Attributes:
        weight_decay: fraction of each parameter that a step takes away per unit of learning rate,
            decoupled from the gradient (Loshchilov & Hutter 2019). Parameters whose layer says
            so, such as biases and the scales of norms, are exempt. None leaves it out.
    """

    weight_decay: OptionalNumber = None

    def check(self) -> None:
        if self.weight_decay is not None and self.weight_decay < 0:
            raise ValueError(f'weight_decay must not be negative: {self.weight_decay}')

    def make(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        """The transformation for one step; made anew, with traced numbers, inside that step."""
        decay: tuple[optax.GradientTransformation, ...] = ()
        if self.weight_decay is not None:
            decay = (optax.masked(_decoupled_decay(self.weight_decay, learning_rate), decay_mask),)
        return optax.chain(self.direction(learning_rate, decay_mask), *decay)

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        """The updates without weight decay, to be added to the parameters."""
        raise NotImplementedError(type(self).__name__)


def _decoupled_decay(
    weight_decay: jax.Array | float, learning_rate: jax.Array
) -> optax.GradientTransformation:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        factor = learning_rate * weight_decay
        return jax.tree.map(lambda u, p: u - (factor * p).astype(u.dtype), updates, params), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


class AdamW(Optimizer):
    """Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019).

    Attributes:
        b1: decay of the first moment.
        b2: decay of the second moment.
        epsilon: added to the root of the second moment.
    """

    b1: Number = 0.9
    b2: Number = 0.95
    epsilon: Number = 1e-8
    weight_decay: OptionalNumber = 0.1

    def check(self) -> None:
        super().check()
        for name in ('b1', 'b2'):
            if not 0 <= self.sym_getattr(name) < 1:
                raise ValueError(f'{name} must lie in [0, 1): {self.sym_getattr(name)}')
        if self.epsilon <= 0:
            raise ValueError(f'epsilon must be positive: {self.epsilon}')

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon)
        return optax.chain(adam, optax.scale(-learning_rate))


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum where asked (Sutskever et al. 2013).

    Attributes:
        momentum: decay of the running sum of gradients; None keeps no sum.
    """

    momentum: OptionalNumber = None

    def check(self) -> None:
        super().check()
        if self.momentum is not None and not 0 <= self.momentum < 1:
            raise ValueError(f'momentum must lie in [0, 1): {self.momentum}')

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        descend = optax.scale(-learning_rate)
        if self.momentum is None:
            return descend
        return optax.chain(optax.trace(self.momentum), descend)


class Optax(Optimizer):
    """Any optimizer of optax by its name, such as 'lion', 'adafactor' or 'contrib.muon'.

    Attributes:
        name: a function in `optax` that takes a `learning_rate`.
        hyperparameters: its float arguments. They are numbers: traced, never compiled in.
        options: its other arguments.

    Example:
        >>> lion = Optax(name='lion', hyperparameters={'b1': 0.95})
    """

    name: str
    hyperparameters: Numbers = {}
    options: dict[str, bool | int | str] = {}

    def check(self) -> None:
        super().check()
        allowed = inspect.signature(self._factory()).parameters
        for field in ('hyperparameters', 'options'):
            for argument in self.sym_getattr(field):
                if argument == 'learning_rate':
                    raise ValueError("'learning_rate' belongs to the learner, not here")
                if argument not in allowed:
                    raise ValueError(
                        f'optax.{self.name} has no argument {argument!r}; it has {list(allowed)}'
                    )

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        arguments = dict(self.hyperparameters) | dict(self.options)
        factory = self._factory()
        if 'mask' in inspect.signature(factory).parameters:  # That of its own weight decay.
            arguments['mask'] = decay_mask
        return factory(learning_rate=learning_rate, **arguments)

    def _factory(self) -> Callable[..., Any]:
        if not all(part.isidentifier() and part[0] != '_' for part in self.name.split('.')):
            raise ValueError(f'not the name of an optimizer in optax: {self.name!r}')
        found: Any = optax
        for part in self.name.split('.'):
            found = getattr(found, part, None)
        takes = inspect.signature(found).parameters if callable(found) else None
        if takes is None or 'learning_rate' not in takes:
            raise ValueError(f'optax has no optimizer {self.name!r} that takes a learning_rate')
        return found
