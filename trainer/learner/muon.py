import math
from typing import Any

import jax
import optax
import optax.contrib
from flax.traverse_util import unflatten_dict

from trainer.learner.optimizers import AdamW, Mask, Matrices, Rates, multiplied
from trainer.learner.paths import leaves
from trainer.symbolic.component import (
    Number,
    require_above_zero,
    require_fraction,
    require_positive,
)
from trainer.symbolic.errors import UserError
from trainer.symbolic.usual_values import UsualValue, choice

_contrib: Any = optax.contrib  # Its names are not exported explicitly.


class Muon(AdamW):
    """Orthogonalizes the momentum of hidden matrices (Jordan et al. 2024). AdamW has the rest.

    A hidden matrix is a kernel of a layer that names its axes of inputs and outputs. Each layer of
    a scanned run, each expert and each head of attention is a matrix of its own. The rest is
    tables, vectors, kernels that make the outputs of the model, kernels of routers, and kernels of
    flax modules, whose axes are unknown. A router classifies tokens, and classifiers do better
    with AdamW: an orthogonal update moves the scores of all experts equally, also of those without
    a token.

    An update has the size of an update of AdamW (Liu et al. 2025), so that the learning rate and
    the weight decay of AdamW fit. The fields of AdamW are those of the rest, except `mu_dtype` and
    the regularizers, which are for all parameters.

    Attributes:
        momentum: decay of the average of the gradients of a hidden matrix.
        nesterov: orthogonalizes the average as it will be after one more equal gradient.
        iterations: steps of the iteration of Newton and Schulz. Five are usual. The sixth one also
            lifts small singular values of gradients at the beginning of training.
        per_head: orthogonalizes each head of attention by itself; False takes all heads of a
            projection for one matrix. Its smallest singular values need about ten iterations.
        rms: root mean square of the update of a hidden matrix, before the learning rate.

    Example:
        >>> Muon(weight_decay=0.1, momentum=0.9).iterations
        6
    """

    momentum: Number = 0.95
    nesterov: bool = True
    iterations: int = 6
    per_head: bool = True
    rms: Number = 0.2

    usual = {
        'momentum': UsualValue(0.95, 0.9, 0.96, 'Jordan et al. 2024, Liu et al. 2025'),
        'nesterov': choice(True, 'Jordan et al. 2024'),
        'iterations': UsualValue(5, 5, 6, 'Jordan et al. 2024, Liu et al. 2025'),
        'rms': UsualValue(0.2, 0.2, 0.4, 'Liu et al. 2025, section 2.2'),
    }

    def check(self) -> None:
        super().check()
        require_fraction(self, 'momentum')
        require_positive(self, 'iterations')
        require_above_zero(self, 'rms')

    def at_rates(
        self,
        learning_rate: jax.Array,
        decay_mask: Mask,
        rates: Rates | None,
        matrices: Matrices | None,
    ) -> optax.GradientTransformation:
        axes = {
            path: each.of_head() if self.per_head else each
            for path, each in leaves(matrices or {}).items()
            if each is not None
        }
        if not axes:
            raise UserError(
                f'{self.sym_path or "optimizer"}: Muon finds no hidden matrix in its parameters: '
                'use AdamW for them. Kernels need axes of inputs and outputs, as `Layer.param` '
                'gives them by default'
            )
        of = {
            path: optax.MaskedNode()
            if path not in axes
            else _contrib.MuonDimensionNumbers(axes[path].inputs, axes[path].outputs)
            for path in leaves(decay_mask)
        }
        numbers = unflatten_dict(of)
        orthogonal = optax.chain(
            _contrib.scale_by_muon(
                beta=self.momentum,
                nesterov=self.nesterov,
                ns_steps=self.iterations,
                mu_dtype=self.mu_dtype,
                weight_dimension_numbers=numbers,
            ),
            optax.stateless(lambda updates, _: jax.tree.map(sized, updates, numbers)),
            optax.scale(-learning_rate * self.rms),
        )
        others = self.direction(learning_rate, decay_mask)
        kinds = unflatten_dict({path: 'matrix' if path in axes else 'other' for path in of})
        made = optax.partition({'matrix': orthogonal, 'other': others}, kinds)
        if rates is None:
            return made
        kind = 'per_head' if self.per_head else 'orthogonal'
        factors = {
            path: getattr(rate, kind if path in axes else 'elementwise')
            for path, rate in leaves(rates).items()
        }
        return multiplied(made, unflatten_dict(factors))


def sized(update: jax.Array, axes: Any) -> jax.Array:
    """An orthogonal matrix with the root mean square 1.

    Args:
        update: an orthogonal matrix, whose singular values are 1, or several of them.
        axes: its axes of inputs, and of outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> float(jnp.mean(sized(jnp.eye(4), ((0,), (1,))) ** 2))
        1.0
    """
    sides = [math.prod(update.shape[axis] for axis in each) for each in axes]
    return math.sqrt(max(sides)) * update
