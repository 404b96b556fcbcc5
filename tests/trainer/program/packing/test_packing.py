"""Runs that train as one program have the numbers of the runs alone."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.factories.tiny import experiment
from trainer.experiment import Experiment
from trainer.layers import Experts, LoRA
from trainer.learner import Muon
from trainer.program.packing import packing
from trainer.program.packing.packing import Pack, PackedRun
from trainer.program.packing.stepper import Stepper
from trainer.program.setup import compiled, localized
from trainer.state import frozen_of


def begun(
    rate: float, row: int = 0, seed: int | None = None, **changes: Any
) -> tuple[Experiment, PackedRun]:
    """A run with a learning rate, for a row of a pack; its seed is the row by default."""
    made = experiment()
    made.rebind({'task.learner.learning_rate': rate} | changes)
    made = localized(made)
    program, values = compiled(made)
    random_key = program.random_key(row if seed is None else seed)
    return made, PackedRun(row, program, program.init(random_key, values), random_key, values)


def batch(made: Experiment, stepper: Stepper) -> Any:
    return stepper.program.put(made.train_input.get_next())


def losses_alone(rate: float, seed: int, steps: int, **changes: Any) -> list[float]:
    made, run = begun(rate, seed, **changes)
    return [float(Stepper.step(run, batch(made, run))['loss'].mean) for _ in range(steps)]


def pack_of(run: Stepper, count: int, **limits: Any) -> Pack:
    return Pack(run.program, count, 'always', **limits)


def step(pack: Pack, runs: list[tuple[Experiment, Any]]) -> list[float]:
    found = pack.step([run for _, run in runs], [batch(*each) for each in runs])
    return [float(metrics['loss'].mean) for metrics in found]


def test_rows_have_the_losses_and_parameters_of_runs_alone() -> None:
    rates = [0.001, 0.01, 0.1]
    runs = [begun(rate, row) for row, rate in enumerate(rates)]
    pack = pack_of(runs[0][1], 3)
    found = np.array([step(pack, runs) for _ in range(4)]).T
    for row, rate in enumerate(rates):
        assert runs[row][1].pack is pack
        np.testing.assert_allclose(found[row], losses_alone(rate, row, 4), rtol=1e-4)
        assert runs[row][1].state.step == 4


def test_rows_of_muon_and_experts_have_the_losses_of_runs_alone() -> None:
    # Each row has its own matrices and groups of tokens, and so has each layer of a scanned run.
    changes: dict[str, Any] = {
        'task.learner.optimizer': Muon(),
        'task.model.stack.repeats': 2,
        'task.model.stack.scan': 'always',
        'task.model.stack.layers[0].feed_forward': Experts(4, 16),
    }
    runs = [begun(rate, row, **changes) for row, rate in enumerate((0.01, 0.1))]
    pack = pack_of(runs[0][1], 2)
    found = np.array([step(pack, runs) for _ in range(3)]).T
    for row, rate in enumerate((0.01, 0.1)):
        assert runs[row][1].pack is pack
        np.testing.assert_allclose(found[row], losses_alone(rate, row, 3, **changes), rtol=1e-4)


def test_a_row_that_is_refilled_or_never_filled_changes_no_other_and_compiles_nothing(
    compilations: Any,
) -> None:
    runs = [begun(0.01, 0), begun(0.02, 1)]
    pack = pack_of(runs[0][1], 4)
    first = [step(pack, runs) for _ in range(2)]
    pack.remove(runs[1][1])
    runs[1] = begun(0.05, 1)
    compilations.clear()
    second = [step(pack, runs) for _ in range(2)]
    assert not compilations
    alone = losses_alone(0.01, 0, 4)
    np.testing.assert_allclose([of_step[0] for of_step in first + second], alone, rtol=1e-4)
    np.testing.assert_allclose(
        [of_step[1] for of_step in second], losses_alone(0.05, 1, 2), rtol=1e-4
    )


def test_a_row_that_diverges_changes_no_other() -> None:
    runs = [begun(1e38, 0), begun(0.01, 1)]
    pack = pack_of(runs[0][1], 2)
    found = np.array([step(pack, runs) for _ in range(4)]).T
    assert not np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1], losses_alone(0.01, 1, 4), rtol=1e-4)


def test_a_run_goes_on_alone_and_comes_back() -> None:
    runs = [begun(0.01, 0), begun(0.02, 1)]
    pack = pack_of(runs[0][1], 2)
    found = [step(pack, each)[0] for each in (runs, runs[:1], runs, runs[:1])]
    np.testing.assert_allclose(found, losses_alone(0.01, 0, 4), rtol=1e-4)


def test_runs_train_apart_where_a_device_has_too_little_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [begun(0.01, 0), begun(0.02, 1)]
    pack = pack_of(runs[0][1], 2, memory_limit=1000)
    assert pack.wants_company
    step(pack, runs)
    assert runs[0][1].pack is None
    assert 'Give a smaller --pack' in caplog.text
    assert not pack.wants_company


class Unpackable:
    """A program whose steps have no batched form."""

    def __init__(self, program: Any, error: type[Exception]) -> None:
        self._program, self._error = program, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def packed_step(self, count: int) -> Any:
        raise self._error('cannot reshape')


@pytest.mark.parametrize('error', [TypeError, jax.errors.JaxRuntimeError])
def test_runs_train_apart_where_their_steps_do_not_pack(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    runs = [begun(0.01, 0), begun(0.02, 1)]
    program: Any = Unpackable(runs[0][1].program, error)
    pack = Pack(program, 2, 'always')
    np.testing.assert_allclose(step(pack, runs)[0], losses_alone(0.01, 0, 1)[0], rtol=1e-4)
    assert 'no packed step' in caplog.text and 'cannot reshape' in caplog.text
    assert not pack.wants_company


@pytest.mark.parametrize(('platform', 'is_tried'), [('cpu', False), ('gpu', True)])
def test_packing_is_tried_earlier_on_a_gpu(platform: str, is_tried: bool) -> None:
    program, clock = begun(0.01)[1].program, [0.0]
    _ = program.train_step  # Compiles.
    pack = Pack(program, 2, 'measured', packing.PATIENCE[platform], lambda: clock[0])
    clock[0] = 20 * program.compile_seconds
    assert pack.wants_company == is_tried


class Clocked:
    """A program whose steps take seconds of a clock."""

    def __init__(self, program: Any, together: float, apart: float) -> None:
        self.seconds = 0.0
        self._program, self._together, self._apart = program, together, apart

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def packed_step(self, count: int) -> Any:
        return self._timed(self._program.packed_step(count), self._together)

    def train_steps(self, count: int) -> Any:
        return self._timed(self._program.train_steps(count), self._apart)

    def _timed(self, step: Any, seconds: float) -> Any:
        def timed(*args: Any) -> Any:
            self.seconds += seconds
            return step(*args)

        return timed


@pytest.mark.parametrize('faster', ['together', 'apart'])
def test_measured_steps_decide(faster: str) -> None:
    runs = [begun(0.01, 0), begun(0.02, 1)]
    program: Any = Clocked(runs[0][1].program, 1.0 if faster == 'together' else 3.0, 1.0)
    for _, run in runs:
        run.program = program
    pack = Pack(program, 2, 'measured', clock=lambda: program.seconds)
    step(pack, runs)
    assert runs[0][1].pack is None  # The compilation is not worth it yet.
    program.seconds += 1e6
    kinds = []
    for _ in range(10):
        step(pack, runs)
        kinds.append(runs[0][1].pack is pack)
    # Where they are slower together, they get their states back at once.
    assert kinds == [False] * 4 + [True] * 3 + [faster == 'together'] * 3


ADAPTERS: dict[str, Any] = {'task.adapters': LoRA(2), 'task.model.stack.repeats': 2}


@pytest.mark.slow
def test_rows_of_adapters_share_one_copy_of_the_frozen_parameters() -> None:
    rates = [0.001, 0.01, 0.1, 0.03]
    runs = [begun(rate, row, seed=0, **ADAPTERS) for row, rate in enumerate(rates)]
    # The parameters of another seed are others, so this run trains by itself.
    other = begun(0.05, 4, seed=1, **ADAPTERS)
    pack = pack_of(runs[0][1], 5)
    found = np.array([step(pack, [*runs, other]) for _ in range(3)]).T
    assert [run.pack is pack for _, run in (*runs, other)] == [True] * 4 + [False]
    for row, rate in enumerate(rates):
        alone = losses_alone(rate, 0, 3, **ADAPTERS)
        np.testing.assert_allclose(found[row], alone, rtol=1e-4)
    np.testing.assert_allclose(found[4], losses_alone(0.05, 1, 3, **ADAPTERS), rtol=1e-4)
    # A run that leaves has parameters of its own: its next step may reuse their memory.
    runs[0][1].take_state()
    Stepper.step(runs[0][1], batch(*runs[0]))
    assert np.isfinite(step(pack, [runs[1]])).all()


@pytest.mark.slow
def test_packed_adapters_need_the_memory_of_one_frozen_model() -> None:
    wide: dict[str, Any] = {
        **ADAPTERS,
        'task.model.embedding.dims': 256,
        'task.model.embedding.vocab_size': 512,
    }
    _, run = begun(0.01, **wide)
    frozen = sum(x.nbytes for x in frozen_of(run.state).values())
    steps: list[Any] = [run.program.train_step, run.program.packed_step(4)]
    alone, packed = (step.memory_analysis().argument_size_in_bytes for step in steps)
    print(f'frozen: {frozen}; arguments of a step alone: {alone}, of four together: {packed}')
    assert packed - frozen < 4.1 * (alone - frozen) < frozen
