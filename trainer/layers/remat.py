from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

Remat = Literal['full', 'dots', 'dots_saveable', 'everything_saveable', 'offload_dots', 'none']
"""Rules by which the backward pass computes activations again: see `Stack.remat`."""

Named = Literal['query', 'key', 'value', 'context', 'output', 'gate', 'up', 'down']
"""Values that layers name with `jax.ad_checkpoint.checkpoint_name`."""

Rule = Callable[..., Any]

_HOST = 'device', 'pinned_host'
_RULES: dict[str, Rule] = {
    'full': jax.checkpoint_policies.nothing_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    'dots_saveable': jax.checkpoint_policies.dots_saveable,
    'everything_saveable': jax.checkpoint_policies.everything_saveable,
    'offload_dots': jax.checkpoint_policies.offload_dot_with_no_batch_dims(*_HOST),
}


def check_remat(
    remat: str, save_names: Sequence[str], offload_names: Sequence[str], is_scanned: bool
) -> None:
    """Raises ValueError if named values of layers cannot be kept."""
    for field, names in (('save_names', save_names), ('offload_names', offload_names)):
        if names and remat in ('none', 'everything_saveable'):
            raise ValueError(f'{field} must be [] where remat is {remat!r}, which keeps all')
        if names and not is_scanned:
            raise ValueError(f"{field} must be [] where scan is 'never', which keeps all")
    if save_names and remat == 'offload_dots':
        raise ValueError("save_names keeps values on the device, and remat='offload_dots' none")
    if both := sorted({*save_names} & {*offload_names}):
        raise ValueError(
            f'save_names and offload_names both have {both[0]!r}: keep it in one place'
        )


def remat_policy(remat: str, save_names: Sequence[str], offload_names: Sequence[str]) -> Rule:
    """The policy of `jax.checkpoint` for a rule, and for values with names.

    Args:
        remat: any rule but 'none', which checkpoints nothing.
        save_names: values to keep on the device.
        offload_names: values to keep in the memory of the host.
    """
    rule, names = _RULES[remat], {*save_names, *offload_names}
    if not names:
        return rule
    named = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(save_names),
        names_which_can_be_offloaded=list(offload_names),
        offload_src=_HOST[0],
        offload_dst=_HOST[1],
    )

    def policy(primitive: Any, *args: Any, **params: Any) -> Any:
        is_named = primitive.name == 'name' and params['name'] in names
        return (named if is_named else rule)(primitive, *args, **params)

    return policy
