"""Executions of several steps."""

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.runs import final_state, measured, without_speed
from tests.factories.tiny import LENGTH, CountingInput, experiment
from tests.trainer.loop.test_train_loop_non_finite import NanAt
from tests.trainer.program.packing.test_lanes import run_lanes
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.layers import Dropout
from trainer.loop.evaluate import evaluate
from trainer.loop.executions import executions
from trainer.loop.report import Interrupted
from trainer.loop.train_loop import run
from trainer.metrics import Metrics, with_nan
from trainer.program.packing.lanes import Lane, Lanes
from trainer.program.packing.place import Alone
from trainer.program.packing.stepper import Stepper
from trainer.program.setup import compiled, localized
from trainer.runtime.metric_writer import read_metrics
from trainer.symbolic.errors import NonFiniteLossError


def several(num_steps: int = 12, **changes: Any) -> Experiment:
    """An experiment whose steps 1-3, 4-6 and so on can be executed at once."""
    changes = {
        'train__steps_per_execution': 3,
        'train__summary_interval_steps': 3,
        'train__evaluation__every': 6,
        'train__checkpoints__every': 6,
        'task__model__dropout': Dropout(0.1),
    } | changes
    return experiment(num_steps, **changes)


class Noting(Alone):
    """A place of runs that notes the sizes of their executions."""

    def __init__(self, can_do_several: bool = True) -> None:
        self.executed: list[int] = []
        self._can_do_several = can_do_several

    def stepper(self, *args: Any) -> Stepper:
        executed, can_do_several = self.executed, self._can_do_several

        class NotingStepper(Stepper):
            @property
            def can_do_several(self) -> bool:
                return can_do_several

            def step(self, batch: Mapping[str, jax.Array], count: int = 1) -> Metrics:
                executed.append(count)
                return super().step(batch, count)

        return NotingStepper(*args)


@given(
    st.integers(0, 9),
    st.integers(1, 60),
    st.integers(1, 12),
    st.lists(st.integers(1, 20), max_size=3),
)
def test_executions_cover_each_step_once_and_are_as_large_as_possible(
    done: int, last: int, size: int, every: list[int]
) -> None:
    found = list(executions(done + 1, last, size, every))
    assert list(itertools.chain.from_iterable(found)) == list(range(done + 1, last + 1))
    for steps in found:
        due = [step for step in range(steps[0], steps[0] + size - 1) if divides(every, step)]
        fits = not due and steps[0] + size - 1 <= last
        assert len(steps) == (size if fits else 1)
        # A run that continues after it divides the rest alike.
        rest = found[found.index(steps) + 1 :]
        assert list(executions(steps[-1] + 1, last, size, every)) == rest


def divides(every: list[int], step: int) -> bool:
    return any(step % interval == 0 for interval in every)


def test_steps_of_an_execution_are_those_of_single_ones(tmp_path: Path) -> None:
    place = Noting()
    found = measured(several(13), tmp_path / 'several', place=place)
    assert place.executed == [3, 3, 3, 3, 1]
    single = several(13, train__steps_per_execution=1)
    wanted = measured(single, tmp_path / 'single')
    for got, expected in zip(found, wanted, strict=True):
        assert without_speed(got) == pytest.approx(without_speed(expected), rel=1e-5)
    states = (final_state(several(), tmp_path / name) for name in ('several', 'single'))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, *states)
    written = (read_metrics(tmp_path / name / 'metrics.jsonl') for name in ('several', 'single'))
    of_several, of_single = ([each['step'] for each in records] for records in written)
    assert of_several == of_single


def test_a_run_that_was_interrupted_is_the_undisturbed_one_bit_for_bit(tmp_path: Path) -> None:
    whole = measured(several(), tmp_path / 'whole')
    asked = iter([True, False, True])
    for step in (3, 9):
        with pytest.raises(Interrupted, match=f'at step {step}'):
            measured(several(), tmp_path / 'parts', should_interrupt=lambda: next(asked))
    (last,) = measured(several(), tmp_path / 'parts')
    assert last.resumed_from == 9
    assert without_speed(last) == without_speed(whole[-1])
    states = [final_state(several(), tmp_path / name) for name in ('parts', 'whole')]
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_executions_of_both_sizes_are_compiled_before_the_first(
    tmp_path: Path, compilations: Any, no_programs: None
) -> None:
    counts: list[int] = []
    place = Noting()

    def counted() -> bool:
        counts.append(len(compilations))
        return False

    made = several(8, train__summary_interval_steps=4, train__evaluation__every=8)
    made.rebind({'train.checkpoints': None})
    measured(made, tmp_path, should_interrupt=counted, place=place)
    assert place.executed == [3, 1, 3, 1]
    assert 0 < counts[0] == counts[2]


def test_a_loss_that_is_not_finite_has_its_step_within_an_execution(tmp_path: Path) -> None:
    data = NanAt(batch_size=8, is_training=True)
    with pytest.raises(NonFiniteLossError, match='at step 5'):
        measured(several(train_input=data), tmp_path)


def test_a_place_for_single_steps_executes_them_alone(tmp_path: Path) -> None:
    place = Noting(can_do_several=False)
    measured(several(6), tmp_path, place=place)
    assert place.executed == [1] * 6


def test_a_first_execution_of_several_steps_counts_without_its_compilation(
    tmp_path: Path, no_programs: None
) -> None:
    changes = {'train__evaluation__every': 3, 'train__checkpoints__every': 3}
    made = several(3, **changes)
    (report,) = measured(made, tmp_path)
    program, _ = compiled(localized(made))
    assert 0 < report.metrics['spent_seconds'] < program.compile_seconds
    steps = report.metrics['train/steps_per_second']
    assert report.metrics['train/tokens_per_second'] == pytest.approx(8 * LENGTH * steps)


def test_trials_that_train_as_one_program_do_single_steps(
    tmp_path: Path,
) -> None:
    def work(index: int, lane: Lane) -> dict[str, float]:
        made = several(6, train__random_seed=index)
        (report,) = run(made, tmp_path / f'lane-{index}', place=lane)
        return without_speed(report)

    found = run_lanes(Lanes(2, 'always'), work)
    for index, metrics in enumerate(found):
        (alone,) = measured(several(6, train__random_seed=index), tmp_path / f'alone-{index}')
        assert metrics == pytest.approx(without_speed(alone), rel=1e-4)


class Scored(CountingInput):
    """Needs the scores of all examples of a set."""

    def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        ids = jax.ShapeDtypeStruct((self.batch_size,), jnp.int32)
        return super().element_spec() | {'example_ids': ids}

    def get_next(self) -> Batch:
        batch = super().get_next()
        return batch | {'example_ids': np.arange(8, dtype=np.int32) + 8 * self._batch}

    @property
    def wants_scores(self) -> bool:
        return True

    def score_metrics(self, scores: Mapping[int, float]) -> dict[str, float]:
        return {f'score_{number}': score for number, score in scores.items()}


class Grouped:
    """A program that notes the numbers of batches in a group."""

    def __init__(self, program: Any) -> None:
        self._program, self.groups = program, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def put(self, *batches: Any) -> Any:
        self.groups.append(len(batches))
        return self._program.put(*batches)


def test_batches_are_evaluated_several_at_a_time() -> None:
    made = localized(several(eval_inputs={'eval': Scored(batch_size=8, num_eval_batches=7)}))
    compiled_program, values = compiled(made)
    program: Any = Grouped(compiled_program)
    state = program.init(program.random_key(0), values)
    found = with_nan(evaluate(made, program, state, values))
    assert program.groups == [3, 3, 1]
    assert found.pop('eval_steps_per_second') > 0
    assert 'eval/score_63' in found
    made.rebind({'train.steps_per_execution': 1})
    wanted = evaluate(made, program, state, values)
    del wanted['eval_steps_per_second']
    assert found == pytest.approx(wanted, rel=1e-5)
