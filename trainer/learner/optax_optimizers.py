"""Optimizers of optax by their names."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax
import optax.contrib
import pyglove as pg

from trainer.learner.optimizers import SGD, AdamW, Lion, Mask, Optimizer
from trainer.learner.usual_rates import adam_rate, lamb_rate, lion_rate, own_rate, sgd_rate
from trainer.symbolic.component import Numbers
from trainer.symbolic.usual_values import UsualValue, union

_contrib: Any = optax.contrib  # Its names are not exported explicitly.
_REFUSED = {
    'lbfgs': 'its line search computes the loss several times in a step',
    'contrib.momo': 'it needs the loss of the step',
    'contrib.momo_adam': 'it needs the loss of the step',
    'contrib.sophia': 'it needs the function of the loss',
    'contrib.dpsgd': 'it needs the gradients of each example',
    'contrib.muon': 'it takes tables and heads for hidden matrices, but not attention: use Muon',
    'contrib.schedule_free': 'it needs another optimizer: see contrib.schedule_free_adamw',
}
_SCHEDULE_FREE = ('contrib.schedule_free_adamw', 'contrib.schedule_free_sgd')
_USES_ALL_AT_ONCE = (
    'noisy_sgd', 'contrib.prodigy', 'contrib.dadapt_adamw', 'contrib.dog', 'contrib.dowg',
    *_SCHEDULE_FREE,
)  # fmt: skip
"""Optimizers that draw random numbers, or use the norm of all parameters. They see scanned layers
as one array. Schedule-free ones treat each element alike."""


_LIKE_ADAM = (
    'adam', 'adamw', 'adamax', 'adamaxw', 'amsgrad', 'nadam', 'nadamw', 'adabelief', 'radam',
    'yogi', 'contrib.adopt', 'contrib.schedule_free_adamw',
)  # fmt: skip
_RATES: dict[str, Callable[[Any], UsualValue]] = {
    **dict.fromkeys(_LIKE_ADAM, adam_rate),
    **dict.fromkeys(('sgd', 'noisy_sgd', 'contrib.schedule_free_sgd'), sgd_rate),
    **dict.fromkeys(('contrib.prodigy', 'contrib.dadapt_adamw'), own_rate),
    'lamb': lamb_rate,
    'lion': lion_rate,
}
_HYPERPARAMETERS = {
    **dict.fromkeys((*_LIKE_ADAM, 'lamb', 'contrib.prodigy'), AdamW.usual),
    **dict.fromkeys(('sgd', 'noisy_sgd'), SGD.usual),
    'lion': Lion.usual,
}
"""Usual values of arguments by the name of the optimizer; `eps` is called `epsilon`."""


class Optax(Optimizer):
    """Any optimizer of optax by its name, such as 'lamb', 'adagrad' or 'contrib.adopt'.

    Each trains as in optax alone. Refused are those that need more than gradients, such as the
    function of the loss. Schedule-free ones are evaluated at their average.

    Attributes:
        name: a function in `optax` that takes a `learning_rate`.
        hyperparameters: its float arguments. They are numbers: traced, never compiled in.
        options: its other arguments.
        vectorize_on_repeat_prefix: optimizes each layer of a scanned run separately. One that
            draws random numbers or uses all parameters at once, such as 'contrib.prodigy', never
            does.

    Example:
        >>> lion = Optax(name='lion', hyperparameters={'b1': 0.95})
    """

    name: str
    hyperparameters: Numbers = {}
    options: dict[str, bool | int | str] = {}
    vectorize_on_repeat_prefix: bool = True

    def usual_values(self, experiment: Any) -> dict[str, UsualValue]:
        stated = super().usual_values(experiment)
        for argument in self.sym_getattr('hyperparameters'):
            field = 'epsilon' if argument == 'eps' else argument
            known = [_HYPERPARAMETERS.get(name, {}) for name in self._names()]
            if all(field in usual for usual in known):
                stated[f'hyperparameters.{argument}'] = union(usual[field] for usual in known)
        return stated

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        rates = [_RATES[name](experiment) for name in self._names() if name in _RATES]
        return union(rates) if rates else None

    def _names(self) -> list[str]:
        """The name, or all candidates where it is a decision."""
        name = self.sym_getattr('name')
        return list(name.candidates) if isinstance(name, pg.hyper.OneOf) else [name]

    def check(self) -> None:
        super().check()
        allowed = inspect.signature(self._factory()).parameters
        for field in ('hyperparameters', 'options'):
            for argument in self.sym_getattr(field):
                if argument == 'learning_rate':
                    raise ValueError("'learning_rate' is a field of the learner")
                if argument not in allowed:
                    raise ValueError(
                        f'optax.{self.name} has no argument {argument!r}; it has {list(allowed)}'
                    )

        if self.has_own_average():
            if self.weight_decay is not None:
                raise ValueError(
                    f'weight_decay would move one of the two points of {self.name}: set '
                    "hyperparameters['weight_decay']"
                )
            if self.hyperparameters.get('b1', 1.0) <= 0:
                raise ValueError(f"hyperparameters['b1'] of {self.name} must be above 0")

    def sees_whole_arrays(self) -> bool:
        return self.vectorize_on_repeat_prefix and self.name not in _USES_ALL_AT_ONCE

    def has_own_average(self) -> bool:
        return self.name in _SCHEDULE_FREE

    def average(self, state: Any, params: Any) -> Any:
        [own] = filter(_is_schedule_free, jax.tree.leaves(state, is_leaf=_is_schedule_free))
        return _contrib.schedule_free_eval_params(own, params)

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        arguments = dict(self.hyperparameters) | dict(self.options)
        factory = self._factory()
        for name in ('mask', 'weight_decay_mask'):  # For its own weight decay.
            if name in inspect.signature(factory).parameters:
                arguments[name] = decay_mask
        return factory(learning_rate=learning_rate, **arguments)

    def _factory(self) -> Callable[..., Any]:
        if not all(part.isidentifier() and part[0] != '_' for part in self.name.split('.')):
            raise ValueError(f'not the name of an optimizer in optax: {self.name!r}')
        found: Any = optax
        for part in self.name.split('.'):
            found = getattr(found, part, None)
        if self.name in _REFUSED:
            raise ValueError(f'optax.{self.name} cannot train here: {_REFUSED[self.name]}')
        if self.name.rpartition('.')[2].startswith('scale_by_'):
            raise ValueError(f'optax.{self.name} is a part of an optimizer: name a whole one')
        takes = inspect.signature(found).parameters if callable(found) else None
        if takes is None or 'learning_rate' not in takes:
            raise ValueError(f'optax has no optimizer {self.name!r} that takes a learning_rate')
        return found


def _is_schedule_free(state: Any) -> bool:
    return isinstance(state, _contrib.ScheduleFreeState)
