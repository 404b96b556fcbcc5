"""Clocks that divide the time among phases."""

import time

import jax
import jax.numpy as jnp
import pytest

from trainer.program import compile_events
from trainer.runtime import wall_clock
from trainer.runtime.wall_clock import (
    CACHE_HITS,
    CACHE_MISSES,
    COMPILATION,
    EVALUATION,
    IDLE,
    INPUT,
    LOST,
    OTHER,
    START_UP,
    STEPS,
    WallClock,
    measuring,
)


class Time:
    """A clock that passes by hand."""

    now = 100.0

    def __call__(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> WallClock:
        return WallClock(read=lambda: self.now)


@pytest.fixture
def wait() -> Time:
    return Time()


def test_a_phase_leaves_out_those_inside_it(wait: Time) -> None:
    clock = wait.clock()
    wait(1)
    with clock.phase(EVALUATION):
        wait(2)
        with clock.phase(INPUT):
            wait(4)
            with clock.phase(EVALUATION):
                wait(8)
        wait(16)
    assert clock.pending() == {OTHER: 1, EVALUATION: 26, INPUT: 4}
    assert wall_clock.total_seconds(clock.pending()) == 31


def test_an_exception_ends_its_phases(wait: Time) -> None:
    clock = wait.clock()
    with pytest.raises(ValueError, match='broken'), clock.phase(STEPS), clock.phase(INPUT):
        wait(1)
        raise ValueError('broken')
    wait(2)
    assert clock.name == OTHER
    assert clock.take() == {INPUT: 1, OTHER: 2}


def test_a_profile_begins_anew_after_each_take(wait: Time) -> None:
    clock = wait.clock()
    with clock.phase(STEPS):
        wait(1)
        clock.count(CACHE_HITS, 3)
        assert clock.take() == {STEPS: 1, CACHE_HITS: 3}
        wait(2)
        assert clock.take() == {STEPS: 2}


def test_compilations_inside_one_another_count_once(wait: Time) -> None:
    clock = wait.clock()
    with clock.phase(STEPS):
        wait(1)
        wait(2)  # An outer compilation begins, and an inner one after it.
        wait(4)
        clock.compiled(4)
        wait(8)
        clock.compiled(14)
        wait(16)
        clock.compiled(16)
    assert clock.pending() == {STEPS: 1, COMPILATION: 30}


def test_a_compilation_takes_nothing_from_an_earlier_phase(wait: Time) -> None:
    clock = wait.clock()
    wait(1)
    with clock.phase(STEPS):
        wait(1)
        clock.compiled(1.5)  # Its clock is another one.
        with clock.phase(COMPILATION):
            wait(1)
            clock.compiled(1)
    assert clock.pending() == {OTHER: 1, COMPILATION: 2}


def test_a_search_inside_a_trial_has_its_own_clock() -> None:
    with measuring() as first, measuring() as search:
        assert search is first  # The command's clock, which starts the search.
        with search.phase(STEPS), measuring() as inner:
            assert inner is not search
            assert inner.name == START_UP
        assert wall_clock.current() is search
    assert wall_clock.current() is None


def test_phases_without_a_clock_do_nothing() -> None:
    with wall_clock.phase(STEPS):
        assert wall_clock.during(IDLE)(lambda: 3)() == 3


def test_the_clock_of_a_command_has_the_start_of_its_process() -> None:
    began = time.perf_counter()
    found = wall_clock.of_process().take()
    assert found[START_UP] > time.perf_counter() - began + 0.1  # Pytest is older than the test.


def test_compiled_programs_are_counted() -> None:
    compile_events.listen()
    new = float(time.time_ns() % 10**9)  # No earlier run has left the program in the cache.
    ones = jnp.ones(3)
    profiles = []
    with measuring() as clock, clock.phase(STEPS):
        for _ in range(2):
            clock.take()
            jax.jit(lambda x: x * new)(ones).block_until_ready()
            profiles.append(clock.take())
            jax.clear_caches()
    first, second = profiles
    assert (first[CACHE_MISSES], CACHE_HITS in first) == (1, False)
    assert (second[CACHE_HITS], CACHE_MISSES in second) == (1, False)
    assert 0 < second[COMPILATION] < wall_clock.total_seconds(second)


def test_goodput_is_the_share_of_steps_that_a_checkpoint_or_the_end_has_kept(wait: Time) -> None:
    lost = wait.clock()
    wait(5)  # Imports.
    with lost.phase(STEPS):
        wait(30)
        with lost.phase(INPUT):
            wait(10)
    lost.keep()
    with lost.phase(STEPS):
        wait(20)
    assert lost.unkept == 20
    assert wall_clock.goodput(lost.whole) == 50 / 65  # So far, nothing is lost.
    clock = wait.clock()
    clock.before = wall_clock.after_loss(lost.whole, lost.unkept, silent=5)
    with clock.phase(STEPS):
        wait(30)
    assert clock.whole == {STEPS: 60, INPUT: 10, LOST: 25, OTHER: 5}
    assert wall_clock.goodput(clock.whole) == 60 / 100
    assert 'Goodput: 60%' in wall_clock.profile_text(clock.whole, 'Wall clock')
    clock.take()
    assert clock.unkept == 0


def test_the_time_of_nothing_has_no_goodput(wait: Time) -> None:
    clock = wait.clock()
    assert wall_clock.goodput(clock.whole) is None
    wait(1)
    assert wall_clock.goodput(clock.whole) is None
