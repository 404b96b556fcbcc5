import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trainer.program import compile_events
from trainer.program.compilations import Compilations
from trainer.runtime.wall_clock import CACHE_MISSES, COMPILATION, OTHER, measuring

SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)


def lower(factor: float) -> Callable[[], Any]:
    return lambda: jax.jit(lambda x: x * factor).lower(SHAPE)


def untraceable() -> Any:
    raise ValueError('a shape does not fit')


def test_programs_that_were_begun_are_compiled_once(compilations: list[str]) -> None:
    made, x = Compilations(), jnp.arange(3.0)
    compilations.clear()
    made.begin({'double': lower(2.0), 'triple': lower(3.0)})
    made.begin({'triple': lower(30.0)})
    made.end()
    assert len(compilations) == 2
    assert made.of('double', untraceable)(x).tolist() == [0.0, 2.0, 4.0]
    assert made.of('triple', untraceable)(x).tolist() == [0.0, 3.0, 6.0]
    assert made.of('ten', lower(10.0))(x).tolist() == [0.0, 10.0, 20.0]
    assert len(compilations) == 3
    assert made.seconds.keys() == {'double', 'triple', 'ten'}


def test_a_program_that_cannot_be_traced_raises_where_it_is_used() -> None:
    made = Compilations()
    made.begin({'wrong': untraceable, 'double': lower(2.0)})
    made.end()
    with pytest.raises(ValueError, match='a shape does not fit'):
        made.of('wrong', untraceable)
    assert made.seconds.keys() == {'double'}


def test_the_clock_counts_programs_that_threads_have_compiled() -> None:
    compile_events.listen()
    new, made = float(time.time_ns() % 10**9), Compilations()
    with measuring() as clock, clock.phase(OTHER):
        made.begin({'one': lower(new), 'two': lower(2 * new)})
        made.end()
        profile = clock.take()
    assert profile[CACHE_MISSES] == 2
    assert profile[COMPILATION] > 0
