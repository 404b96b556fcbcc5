"""Lanes take turns in their order, whatever their threads do."""

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.trainer.program.packing.test_packing import batch, begun, losses_alone
from trainer.program.packing.lanes import Lane, Lanes
from trainer.runtime.throughput import Throughput
from trainer.runtime.wall_clock import EVALUATION, STEPS, measuring, phase


def run_lanes(lanes: Lanes, work: Callable[[int, Lane], Any]) -> list[Any]:
    def in_lane(index: int) -> Any:
        with lanes.lane(index) as lane:
            return work(index, lane)

    with concurrent.futures.ThreadPoolExecutor(lanes.count) as pool:
        futures = [pool.submit(in_lane, index) for index in range(lanes.count)]
        return [each.exception() or each.result() for each in futures]


def test_turns_go_in_order_and_lanes_leave_at_different_times() -> None:
    seen = []

    def work(index: int, lane: Lane) -> None:
        for turn in range(index + 1):
            time.sleep(0.01 * (3 - index))
            seen.append((turn, index))
            lane.wait(0.0)

    run_lanes(Lanes(3, 'always'), work)
    assert seen == sorted(seen)


def test_runs_of_several_programs_step_together_and_one_after_another() -> None:
    heads = 'task.model.stack.layers[0].attention.num_heads'
    changes = [{}, {}, {heads: 1}, {}]
    packs = []

    def work(index: int, lane: Lane) -> list[float]:
        found = []
        for _ in range(2):  # Trials.
            made, given = begun(0.01 * (index + 1), index, **changes[index])
            run = lane.stepper(given.program, given.state, given.random_key, given.values)
            assert not run.can_do_several
            for _ in range(2 + index):
                found.append(float(run.step(batch(made, run))['loss'].mean))
                packs.append((index, run.pack is not None))
        return found

    found = run_lanes(Lanes(4, 'always'), work)
    assert {index for index, is_packed in packs if is_packed} == {0, 1, 3}
    for index in (0, 1, 3):
        alone = losses_alone(0.01 * (index + 1), index, 2 + index)
        assert found[index] == pytest.approx(alone * 2, rel=1e-4)


def looks_beside_steps(lanes: Lanes, waits: list[float], steps: int, pause: float) -> list[int]:
    """The steps of lane 0 before each time at which lane 1, without a run, looks for one."""
    seen = []

    def work(index: int, lane: Lane) -> None:
        if index == 1:
            for seconds in waits:
                lane.wait(seconds)
                seen.append('looks')
            return
        made, given = begun(0.01, index)
        run = lane.stepper(given.program, given.state, given.random_key, given.values)
        for _ in range(steps):
            run.step(batch(made, run))
            seen.append('step')
            time.sleep(pause)

    run_lanes(lanes, work)
    return [seen[:at].count('step') for at, each in enumerate(seen) if each == 'looks']


def test_a_lane_without_a_run_looks_for_one_every_16_steps_of_the_others() -> None:
    # The 16th step is done before lane 1 looks, and noted after that.
    assert looks_beside_steps(Lanes(2, 'always'), [1e-3] * 2, 40, 0.0) == [15, 31]


def test_a_lane_without_a_run_of_its_own_looks_in_time_where_others_share_the_study() -> None:
    (steps,) = looks_beside_steps(Lanes(2, 'always', is_shared=True), [0.05], 4, 0.03)
    assert 1 <= steps < 4


def test_lanes_train_one_after_another_until_packing_is_worth_a_try() -> None:
    seen: list[tuple[int, bool]] = []

    def work(index: int, lane: Lane) -> None:
        for _ in range(2):  # Trials.
            made, given = begun(0.01 * (index + 1), index)
            run = lane.stepper(given.program, given.state, given.random_key, given.values)
            for _ in range(12):
                run.step(batch(made, run))
                seen.append((index, run.pack is not None))
            lane.give_way()

    run_lanes(Lanes(2, 'measured', patience=1e9), work)
    assert [index for index, _ in seen] == [0] * 12 + [1] * 12 + [0] * 12 + [1] * 12
    assert not any(is_packed for _, is_packed in seen)
    seen.clear()
    run_lanes(Lanes(2, 'measured', patience=1e-9), work)
    assert [index for index, _ in seen[:4]] == [0, 1, 0, 1]
    assert any(is_packed for _, is_packed in seen)


def test_an_error_of_a_step_is_raised_in_the_lanes_of_its_runs() -> None:
    def work(index: int, lane: Lane) -> str:
        made, given = begun(0.01, index)
        run = lane.stepper(given.program, given.state, given.random_key, given.values)
        if index < 2:
            run.random_key = None  # type: ignore[assignment]
            with pytest.raises(TypeError):
                run.step(batch(made, run))
        return 'ended'

    assert run_lanes(Lanes(3, 'always'), work) == ['ended'] * 3


def test_a_lane_without_a_run_holds_no_state() -> None:
    def work(index: int, lane: Lane) -> bool:
        made, given = begun(0.01, index)
        run = lane.stepper(given.program, given.state, given.random_key, given.values)
        run.step(batch(made, run))
        was_packed = run.pack is not None
        lane.wait(0.0)
        return was_packed and run.pack is None

    assert run_lanes(Lanes(2, 'always'), work) == [True, True]


def test_an_error_of_one_lane_stops_no_other() -> None:
    def work(index: int, lane: Lane) -> int:
        lane.wait(0.0)
        if index == 1:
            raise RuntimeError('only this one')
        lane.wait(0.0)
        return index

    first, failed, last = run_lanes(Lanes(3, 'always'), work)
    assert (first, last) == (0, 2)
    assert isinstance(failed, RuntimeError)


def test_the_clocks_of_lanes_add_up_to_the_wall_clock() -> None:
    times = []

    def work(index: int, lane: Lane) -> float:
        clock = lane.clock()
        times.append(time.perf_counter())
        began = clock.read()
        lane.wait(0.0)
        for _ in range(index + 1):
            time.sleep(0.1)
            lane.wait(0.0)
        times.append(time.perf_counter())
        return clock.read() - began

    shares = run_lanes(Lanes(3, 'always'), work)
    assert sum(shares) == pytest.approx(max(times) - min(times), rel=0.1)


def test_lanes_share_the_time_of_steps_and_no_other() -> None:
    lanes = Lanes(2, 'always')

    def work(index: int, lane: Lane) -> tuple[dict[str, float], float]:
        made, given = begun(0.01, index)
        with measuring(lane.clock()) as clock:
            run = lane.stepper(given.program, given.state, given.random_key, given.values)
            run.step(batch(made, run))  # It compiles.
            clock.take()
            throughput = Throughput()
            for _ in range(3):
                with phase(STEPS):
                    run.step(batch(made, run))
                throughput.count()
                if index == 0:
                    with throughput.paused(), phase(EVALUATION):
                        time.sleep(0.2)
            return clock.take(), throughput.total_seconds()

    (first, spent), (second, spent_beside) = run_lanes(lanes, work)
    assert first[EVALUATION] == pytest.approx(0.6, abs=0.1) and EVALUATION not in second
    assert spent == pytest.approx(first[STEPS], abs=0.1)
    assert spent_beside == pytest.approx(second[STEPS], abs=0.1)
