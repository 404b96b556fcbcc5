"""Optimizers: symbolic objects around optax with traced hyperparameters."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pyglove as pg
from flax.traverse_util import unflatten_dict

from trainer.learner.clipping import clip_rms
from trainer.learner.norms import own_axes
from trainer.learner.paths import keys, leaves
from trainer.learner.per_layer import per_layer_transform
from trainer.learner.usual_rates import adafactor_rate, adam_rate, lion_rate, sgd_rate
from trainer.symbolic import recipes
from trainer.symbolic.component import (
    Component,
    Number,
    OptionalNumber,
    require_above_zero,
    require_fraction,
    require_not_negative,
)
from trainer.symbolic.usual_values import UsualValue, choice, union

Mask = Any
"""A tree like the parameters, True where weight decay applies."""

Matrices = Any
"""A tree like the parameters, with `MatrixAxes` of each hidden matrix; None for others."""


class Rate(NamedTuple):
    """Factors of the learning rate of a parameter.

    Attributes:
        elementwise: of an optimizer whose updates have the same size in each element.
        orthogonal: of an optimizer whose updates are orthogonal matrices, of Adam's size.
        per_head: the same where each head of attention is a matrix of its own.
    """

    elementwise: float
    orthogonal: float
    per_head: float


Rates = Any
"""A tree like the parameters, with a `Rate` for each."""

_REGULARIZERS = ('weight_decay', 'l1_regularizer_weight', 'l2_regularizer_weight')


class Optimizer(Component):
    """Turns gradients into updates.

    At most one of the three weights is set; None leaves it out. Layers exempt some parameters from
    all of them, such as biases and the scales of norms.

    Attributes:
        weight_decay: fraction of each parameter that a step subtracts per unit of learning rate,
            decoupled from the gradient (Loshchilov & Hutter 2019).
        l1_regularizer_weight: adds this times sign(parameter) to the gradient, after clipping.
        l2_regularizer_weight: adds this times the parameter to the gradient, after clipping.
        skip_lp_1d_vectors: exempts all vectors from the L1 and L2 regularizers.
        weight_decay_on_all: exempts no parameter from `weight_decay`, as Pax's Adam does.
    """

    weight_decay: OptionalNumber = None
    l1_regularizer_weight: OptionalNumber = None
    l2_regularizer_weight: OptionalNumber = None
    skip_lp_1d_vectors: bool = False
    weight_decay_on_all: bool = False

    def check(self) -> None:
        given = {name: self.sym_getattr(name) for name in _REGULARIZERS}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) > 1:
            raise ValueError(
                f'only one of {" and ".join(given)} must be given: set the other to None'
            )
        require_not_negative(self, *_REGULARIZERS)

    def make(
        self,
        learning_rate: jax.Array,
        decay_mask: Mask,
        rates: Rates | None = None,
        matrices: Matrices | None = None,
    ) -> optax.GradientTransformation:
        """Builds the transformation with traced numbers; called inside each compiled step.

        Args:
            learning_rate: of this step.
            decay_mask: True where weight decay applies.
            rates: factors of the learning rate by parameter, which leave weight decay alone.
            matrices: the axes of hidden matrices, for an optimizer that treats them differently.
        """
        parts = [self.at_rates(learning_rate, decay_mask, rates, matrices)]
        if self._regularizer() is not None:
            parts.insert(0, optax.stateless(lambda g, p: self._regularized(g, p, decay_mask)))
        if self.weight_decay is not None:
            factor = learning_rate * self.weight_decay
            on_all = self.weight_decay_on_all
            decays = jax.tree.map(lambda applies: applies or on_all, decay_mask)
            parts.append(optax.stateless(lambda u, p: _decayed(u, p, decays, factor)))
        return optax.chain(*parts)

    def at_rates(
        self,
        learning_rate: jax.Array,
        decay_mask: Mask,
        rates: Rates | None,
        matrices: Matrices | None,
    ) -> optax.GradientTransformation:
        """`direction` at the rate of each parameter, and in each layer of a scanned run."""
        if self.sees_whole_arrays():
            direction = per_layer_transform(
                lambda mask: self.direction(learning_rate, mask), decay_mask
            )
        else:
            direction = self.direction(learning_rate, decay_mask)
        if rates is None:
            return direction
        factors = {path: rate.elementwise for path, rate in leaves(rates).items()}
        return multiplied(direction, unflatten_dict(factors))

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        """The transformation without weight decay; parameters are added to its updates."""
        raise NotImplementedError(type(self).__name__)

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        """The usual peak learning rate; None if it is unknown.

        Args:
            experiment: the whole experiment, as in `usual_values`; None for a general one.
        """
        return None

    def sees_whole_arrays(self) -> bool:
        """True if `direction` depends on the norm or the shape of arrays.

        It is then applied to each layer of a scanned run separately.
        """
        return False

    def is_scale_invariant(self) -> bool:
        """True if updates stay the same where all gradients are multiplied by a constant."""
        return False

    def has_own_average(self) -> bool:
        """True if other parameters than the trained ones are evaluated: see `average`."""
        return False

    def average(self, state: Any, params: Any) -> Any:
        """The parameters to evaluate, from the optimizer's state and the trained parameters."""
        raise NotImplementedError(type(self).__name__)

    def _regularizer(self) -> Callable[[jax.Array], jax.Array] | None:
        l1, l2 = self.l1_regularizer_weight, self.l2_regularizer_weight
        if l1 is not None:
            return lambda param: l1 * jnp.sign(param)
        if l2 is not None:
            return lambda param: l2 * param
        return None

    def _regularized(self, gradients: Any, params: Any, mask: Mask) -> Any:
        regularizer = self._regularizer()

        def of(path: Any, gradient: jax.Array, param: jax.Array, applies: bool) -> jax.Array:
            is_vector = len(own_axes(keys(path), param)) <= 1
            if regularizer is None or not applies or (self.skip_lp_1d_vectors and is_vector):
                return gradient
            return gradient + regularizer(param)

        return jax.tree_util.tree_map_with_path(of, gradients, params, mask)


def usual_rate(optimizer: Any, experiment: Any) -> UsualValue | None:
    """The usual learning rate of an optimizer, or of all candidates where it is a decision."""
    kinds = optimizer.candidates if isinstance(optimizer, pg.hyper.OneOf) else [optimizer]
    rates = [kind.usual_rate(experiment) for kind in kinds if isinstance(kind, Optimizer)]
    known = [rate for rate in rates if rate is not None]
    return union(known) if known else None


def multiplied(
    direction: optax.GradientTransformation, factors: Any
) -> optax.GradientTransformation:
    """Multiplies the updates of each parameter by its factor."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = direction.update(updates, state, params)
        return jax.tree.map(lambda u, rate: u if rate == 1 else rate * u, updates, factors), state

    return optax.GradientTransformation(direction.init, update)


def _decayed(updates: Any, params: Any, mask: Mask, factor: jax.Array) -> Any:
    return jax.tree.map(
        lambda u, p, applies: u - (factor * p).astype(u.dtype) if applies else u,
        updates,
        params,
        mask,
    )


class AdamW(Optimizer):
    """Adam (Kingma & Ba 2015) with decoupled weight decay (Loshchilov & Hutter 2019).

    Attributes:
        b1: decay of the first moment.
        b2: decay of the second moment.
        epsilon: added to the root of the second moment.
        epsilon_root: added to the second moment under the root; None adds nothing.
        clip_threshold: scales the update of each parameter of each layer down to this root mean
            square, before the learning rate (Shazeer & Stern 2018, section 6); None leaves it out.
        mu_dtype: storage dtype of the first moment.
    """

    b1: Number = 0.9
    b2: Number = 0.95
    epsilon: Number = 1e-8
    weight_decay: OptionalNumber = 0.1
    epsilon_root: OptionalNumber = None
    clip_threshold: OptionalNumber = None
    mu_dtype: Literal['float32', 'bfloat16'] = 'float32'

    usual = {
        'b1': recipes.B1,
        'b2': recipes.B2,
        'epsilon': recipes.EPSILON,
        'weight_decay': UsualValue(0.1, 0.03, 0.2, 'GPT-3, LLaMA, ViT; 0.05: DeiT, MAE'),
        'l1_regularizer_weight': recipes.NO_PENALTY,
        'l2_regularizer_weight': recipes.NO_PENALTY,
        'clip_threshold': UsualValue(1.0, 0.5, 2.0, 'Shazeer & Stern 2018'),
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'b1', 'b2')
        require_above_zero(self, 'epsilon', 'epsilon_root', 'clip_threshold')

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        return adam_rate(experiment)

    def is_scale_invariant(self) -> bool:
        return True

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        root = 0.0 if self.epsilon_root is None else self.epsilon_root
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon, root, mu_dtype=self.mu_dtype)
        descend = optax.scale(-learning_rate)
        most = self.clip_threshold
        if most is None:
            return optax.chain(adam, descend)
        clip = optax.stateless(lambda u, _: clip_rms(u, most))
        return optax.chain(adam, clip, descend)


class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum (Sutskever et al. 2013).

    Attributes:
        momentum: decay of the running sum of gradients; None keeps no sum.
        nesterov: uses Nesterov momentum.
    """

    momentum: OptionalNumber = None
    nesterov: bool = False

    usual = {
        'momentum': recipes.MOMENTUM,
        'nesterov': choice(True, 'Sutskever et al. 2013'),
        'l2_regularizer_weight': recipes.L2,
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'momentum')
        if self.nesterov and self.momentum is None:
            raise ValueError('momentum must be given for nesterov')

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        return sgd_rate(experiment)

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        descend = optax.scale(-learning_rate)
        if self.momentum is None:
            return descend
        return optax.chain(optax.trace(self.momentum, nesterov=self.nesterov), descend)


class Lion(Optimizer):
    """The sign of a momentum (Chen et al. 2023).

    It needs a third to a tenth of AdamW's learning rate, and three to ten times its weight decay.

    Attributes:
        b1: share of the momentum in the update.
        b2: decay of the momentum.
        mu_dtype: storage dtype of the momentum.
    """

    b1: Number = 0.9
    b2: Number = 0.99
    mu_dtype: Literal['float32', 'bfloat16'] = 'float32'

    usual = {
        'b1': UsualValue(0.9, 0.9, 0.95, 'Chen et al. 2023 (Lion)'),
        'b2': UsualValue(0.99, 0.98, 0.99, 'Chen et al. 2023 (Lion)'),
        'weight_decay': UsualValue(0.5, 0.1, 1.0, 'Chen et al. 2023 (Lion): 3 to 10 times AdamW'),
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'b1', 'b2')

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        return lion_rate(experiment)

    def is_scale_invariant(self) -> bool:
        return True

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        lion = optax.scale_by_lion(self.b1, self.b2, mu_dtype=self.mu_dtype)
        return optax.chain(lion, optax.scale(-learning_rate))


class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018): second moments of matrices as rows times columns.

    Attributes:
        decay_rate: the decay of the second moments is 1 - step^-decay_rate.
        epsilon: added to squares of gradients.
        clipping_threshold: scales the update of each parameter of each layer down to this root
            mean square; None leaves it out.
        multiply_by_parameter_scale: makes the learning rate relative to the root mean square of
            each parameter of each layer.
        momentum: decay of an average of updates; None keeps none.
        momentum_dtype: its storage dtype.
        factored: factors second moments; False stores them in full.
        min_dim_size_to_factor: stores them in full where the second largest dimension is smaller.
    """

    decay_rate: Number = 0.8
    epsilon: Number = 1e-30
    clipping_threshold: OptionalNumber = 1.0
    multiply_by_parameter_scale: bool = True
    momentum: OptionalNumber = None
    momentum_dtype: Literal['float32', 'bfloat16'] = 'float32'
    factored: bool = True
    min_dim_size_to_factor: int = 128

    usual = {
        'decay_rate': UsualValue(0.8, 0.75, 0.85, 'Shazeer & Stern 2018, T5'),
        'clipping_threshold': UsualValue(1.0, 0.9, 1.1, 'Shazeer & Stern 2018'),
        'momentum': UsualValue(0.9, 0.88, 0.92, 'Shazeer & Stern 2018'),
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'momentum')
        require_above_zero(
            self, 'decay_rate', 'epsilon', 'clipping_threshold', 'min_dim_size_to_factor'
        )

    def usual_rate(self, experiment: Any) -> UsualValue | None:
        return adafactor_rate(experiment, self.multiply_by_parameter_scale)

    def sees_whole_arrays(self) -> bool:
        return True

    def direction(self, learning_rate: jax.Array, decay_mask: Mask) -> optax.GradientTransformation:
        parts = [
            optax.scale_by_factored_rms(
                self.factored,
                self.decay_rate,
                min_dim_size_to_factor=self.min_dim_size_to_factor,
                epsilon=self.epsilon,
            )
        ]
        if self.clipping_threshold is not None:
            parts.append(optax.clip_by_block_rms(self.clipping_threshold))
        parts.append(optax.scale(learning_rate))
        if self.multiply_by_parameter_scale:
            parts.append(optax.scale_by_param_block_rms())
        if self.momentum is not None:
            parts.append(
                optax.ema(self.momentum, debias=False, accumulator_dtype=self.momentum_dtype)
            )
        return optax.chain(*parts, optax.scale(-1.0))
