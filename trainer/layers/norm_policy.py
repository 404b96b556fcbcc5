from collections.abc import Callable
from typing import Literal

import jax

from trainer.layers.dropout import Dropout
from trainer.layers.normalization import Normalization

NormPolicy = Literal['pre', 'post', 'post_skip', 'primer_hybrid']
"""Pax's names, for a residual branch f.

'pre': x + f(norm(x)) (Xiong et al. 2020).
'post': x + norm(f(x)), as in Swin Transformer V2 (Liu et al. 2022).
'post_skip': norm(x + f(x)), as in the first transformer (Vaswani et al. 2017).
'primer_hybrid': x + norm_after(f(norm(x))), for Primer (So et al. 2021); `norm_after` is like
    `norm`, with its own parameters.
"""


def residual(
    x: jax.Array,
    branch: Callable[[jax.Array], jax.Array],
    norm: Normalization,
    policy: NormPolicy,
    dropout: Dropout | None = None,
) -> jax.Array:
    """x + dropout(branch(x)), with a normalization as the policy says: an array like `x`.

    Args:
        norm: a child of the running layer. For 'primer_hybrid', the parameters of the second
            normalization are stored under its name with `_after`.
        dropout: applied to the branch, after its normalization.
    """
    y = branch(norm(x) if policy in ('pre', 'primer_hybrid') else x)
    if policy == 'post':
        y = norm(y)
    elif policy == 'primer_hybrid':
        y = norm.call_as(f'{norm.scope_name()}_after', 'forward', y)
    if dropout is not None:
        y = dropout(y)
    return norm(x + y) if policy == 'post_skip' else x + y
