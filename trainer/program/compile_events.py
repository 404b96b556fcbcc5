"""Compilations that JAX reports, for the wall clock of the thread that compiles."""

import functools

from jax import monitoring

from trainer.runtime import wall_clock

_COMPILES, _CACHE_HIT = '/jax/core/compile/', '/jax/compilation_cache/cache_hits'
_HAS_COMPILED = f'{_COMPILES}backend_compile_duration'


@functools.cache
def listen() -> None:
    """Listens to JAX from now on, once. Events without a clock are dropped.

    Tracing and lowering are compilation, too. A small operation outside of a program is a program.
    """
    monitoring.register_event_duration_secs_listener(_on_duration)
    monitoring.register_event_listener(_on_event)


def _on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
    clock = wall_clock.current()
    if clock is None or not event.startswith(_COMPILES):
        return
    clock.compiled(duration_secs)
    if event == _HAS_COMPILED:
        clock.count(wall_clock.CACHE_MISSES)


def _on_event(event: str, **kwargs: str | int) -> None:
    clock = wall_clock.current()
    if clock is not None and event == _CACHE_HIT:
        clock.count(wall_clock.CACHE_HITS)
        # Its event above is still to come.
        clock.count(wall_clock.CACHE_MISSES, -1)
