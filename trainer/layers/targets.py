"""Targets: regular expressions for whole names of kernels, layer by layer."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from trainer.layers.periods import names
from trainer.symbolic.errors import UserError, nearest


def check_targets(component: Any, does: str) -> None:
    """Raises ValueError unless `targets` of a component are regular expressions.

    Args:
        does: the verb for the component's effect on kernels, such as 'adapt'.
    """
    if not component.targets:
        raise ValueError(f'targets must not be empty; leave them out to {does} all kernels')
    for index, pattern in enumerate(component.targets):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f'targets[{index}] is not a regular expression: {pattern!r} ({error})'
            ) from error


def fits(targets: Sequence[str], path: Sequence[str], field: str) -> bool:
    """True if targets match a kernel, of all layers of a scanned run.

    Args:
        path: of the kernel, as stored.
        field: the path of the component with the targets.

    Raises:
        UserError: only some layers of the run match a target.

    Example:
        >>> fits(['.*up'], ('stack', 'layers_0x2', 'ffn', 'up'), 'task.precision')
        True
    """
    each = names(path)
    inside = [name for name in each if any(re.fullmatch(p, name) for p in targets)]
    if inside and len(inside) < len(each):
        outside = next(name for name in each if name not in inside)
        raise UserError(
            f'{field}.targets: they match {inside[0]} but not {outside}, which are '
            f"scanned together as {'.'.join(path)}: set scan='never' in that stack"
        )
    return bool(inside)


def require_matches(
    targets: Sequence[str], known: Sequence[str], every: Collection[str], field: str
) -> None:
    """Raises UserError unless each target matches one of the known kernels.

    Args:
        known: names of the kernels that targets may match.
        every: names of all parameters.
        field: the path of the component with the targets.
    """
    for index, pattern in enumerate(targets):
        if any(re.fullmatch(pattern, name) for name in known):
            continue
        others = [name for name in every if re.fullmatch(pattern, name)]
        reason = f'no kernel is called {pattern!r}. '
        if others:
            reason += f'It matches {others[0]}, which is no kernel inside the model'
        else:
            near = nearest(pattern.replace('\\', ''), every)
            reason += near or f'There are {", ".join((list(known) or list(every))[-3:])} …'
        raise UserError(f'{field}.targets[{index}]: {reason}')
