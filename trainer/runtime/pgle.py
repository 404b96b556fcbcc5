"""Profile-guided latency estimation: XLA schedules a step by the measured time of its parts.

JAX runs a function a few times (`jax_pgle_profiling_runs`) under its profiler. Then it compiles the
function again, with communication and computation overlapped by the profile. The compilation cache
keeps the result. Functions that are compiled ahead of time are left out. The profiler must be that
of GPUs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from trainer.symbolic.errors import UserError

FLAG = '--pgle'


def enable() -> None:
    """Enables it from now on; raises UserError if there is no GPU."""
    platform = jax.default_backend()
    if platform != 'gpu':
        raise UserError(f'{FLAG}: this needs a GPU, and JAX runs on a {platform}: leave it out')
    jax.config.update('jax_enable_pgle', True)


def is_enabled() -> bool:
    """True if it is enabled, here or by $JAX_ENABLE_PGLE."""
    return bool(jax.config.jax_enable_pgle)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class CompiledWhenCalled:
    """Stands for a lowered program, where JAX profiles a function and compiles it at its calls."""

    function: Callable[..., Any]

    def compile(self) -> Callable[..., Any]:
        """Returns the function."""
        return self.function
