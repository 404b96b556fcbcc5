"""Profile-guided latency estimation: XLA schedules a step by how long its parts have taken.

JAX runs a function a few times (`jax_pgle_profiling_runs`) under its profiler and compiles it again
with what it has seen, so that communication overlaps computation better. What came of it is kept in
the compilation cache. JAX does so for functions that it compiles when they are called, not for
those that were compiled ahead of time, and the profiler that it needs is that of GPUs.
"""

import jax

from trainer.symbolic.errors import UserError

FLAG = '--pgle'


def enable() -> None:
    """Has JAX do so from now on.

    Raises:
        UserError: there is no GPU.
    """
    platform = jax.default_backend()
    if platform != 'gpu':
        raise UserError(f'{FLAG}: JAX does this on GPUs, and here is a {platform}: leave it out')
    jax.config.update('jax_enable_pgle', True)


def is_enabled() -> bool:
    """Whether JAX does so, be it that $JAX_ENABLE_PGLE says it."""
    return bool(jax.config.jax_enable_pgle)  # type: ignore[attr-defined]
