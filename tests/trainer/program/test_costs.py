import collections
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pyglove as pg
import pytest

from search_spaces import lm, nas
from tests.factories import tiny_images
from tests.factories.tiny import LENGTH, VOCAB, CountingInput, experiment, model
from trainer.inputs import C4Input
from trainer.layers import (
    BatchNorm,
    Chain,
    Conv2D,
    Dropout,
    GlobalPool,
    Linear,
)
from trainer.learner import Freeze, Learner
from trainer.learner.optimizers import SGD, AdamW
from trainer.loop.train_loop import run
from trainer.mesh import Mesh
from trainer.metrics import Metrics
from trainer.program.costs import (
    device_memory_limit,
    memory_cost,
    static_costs,
    step_cost,
)
from trainer.program.setup import compiled, localized
from trainer.program.step_checks import check_steps
from trainer.symbolic.errors import UserError
from trainer.task import DeviceBatch
from trainer.tasks import LanguageModelTask

D, F = 16, 32
PROJECTIONS = 4 * D * D + 2 * D * F
LOGITS = VOCAB * D
SCORES = 2 * LENGTH * D


def test_of_a_model_that_is_counted_by_hand() -> None:
    norms = 3 * D
    params = PROJECTIONS + LOGITS + norms
    counters = 2  # The step, and the optimizer's own.
    assert static_costs(experiment()) == {
        'num_params': params,
        'flops_per_token': 3 * 2 * (PROJECTIONS + LOGITS + SCORES),
        'state_bytes': 4 * (3 * params + counters),
    }


@pytest.mark.parametrize(
    ('learner', 'copies'),
    [
        (Learner(0.1, optimizer=SGD()), 1),
        (Learner(0.1, optimizer=SGD(momentum=0.9)), 2),
        (Learner(0.1, optimizer=AdamW()), 3),
        (Learner(0.1, optimizer=AdamW(), ema_decay=0.9), 4),
        (Learner(0.1, freeze=Freeze([r'embedding\..*'])), None),
    ],
    ids=['sgd', 'momentum', 'adamw', 'ema', 'partly_frozen'],
)
def test_state_bytes_are_those_of_the_state_that_is_trained(learner: Any, copies: Any) -> None:
    made = experiment(task__learner=learner)
    program, values = compiled(made)
    state = program.init(program.random_key(0), values)
    cost = static_costs(made)
    assert cost['state_bytes'] == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    if copies is not None:
        assert 0 <= cost['state_bytes'] - 4 * copies * cost['num_params'] < 100


def images() -> Any:
    return tiny_images.experiment(Chain([Conv2D(4), BatchNorm(), GlobalPool(), Linear(4)]))


def test_other_variables_of_layers_are_part_of_the_state() -> None:
    made = images()
    program, values = compiled(made)
    state = program.init(program.random_key(0), values)
    assert jax.tree.leaves(state.non_trainable)
    all_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert static_costs(made)['state_bytes'] == all_bytes
    assert [made.task.unit, experiment().task.unit] == ['example', 'token']


@pytest.mark.parametrize(
    'overrides',
    [
        {'train_input__batch_size': 4},
        {'task__learner__microbatches': 2},
        {'task__fprop_dtype': 'bfloat16'},
        {'task__model__dropout': Dropout(0.1)},
        {'task__model__stack__layers[0]__attention__implementation': 'cudnn'},
        {'mesh': Mesh(data=3, fsdp=5, tensor=7)},
        {'train_input': C4Input(batch_size=2, is_training=True, sequence_length=8, split='train')},
    ],
    ids=lambda overrides: next(iter(overrides)).split('__')[-1],
)
def test_costs_do_not_depend_on_unrelated_fields(overrides: dict[str, Any]) -> None:
    assert static_costs(experiment(**overrides)) == static_costs(experiment())


def test_a_scanned_stack_costs_what_an_unrolled_one_does() -> None:
    one, other = (
        experiment(task__model__stack__repeats=3, task__model__stack__scan=scan)
        for scan in ('always', 'never')
    )
    assert static_costs(one) == static_costs(other)
    assert static_costs(one)['flops_per_token'] == 3 * 2 * (3 * (PROJECTIONS + SCORES) + LOGITS)


def test_tying_the_head_saves_parameters_and_no_operations() -> None:
    tied, free = (
        static_costs(experiment(task__model=model(head=h))) for h in (None, Linear(VOCAB))
    )
    assert free['num_params'] == tied['num_params'] + LOGITS
    assert free['flops_per_token'] == tied['flops_per_token']


class CountedTask(LanguageModelTask):
    """Counts the traces of its loss."""

    traces: ClassVar[collections.deque[None]] = collections.deque()  # Not part of its code.

    def measure(self, outputs: jax.Array, batch: DeviceBatch) -> Metrics:
        self.traces.append(None)
        return super().measure(outputs, batch)


def test_experiments_that_differ_in_numbers_are_traced_once() -> None:
    task = CountedTask(model(), Learner(learning_rate=0.01))
    first, counts = static_costs(experiment(task=task)), [len(CountedTask.traces)]
    changes: dict[str, Any] = {'task__learner__learning_rate': 0.5, 'num_steps': 9}
    assert static_costs(experiment(task=task, **changes)) == first
    counts.append(len(CountedTask.traces))
    static_costs(experiment(task=task, task__model__embedding__dims=24))
    assert 0 < counts[0] == counts[1] < len(CountedTask.traces)


def test_checks_on_a_mesh_of_one_device_trace_for_the_costs() -> None:
    made = experiment(
        task=CountedTask(model(), Learner(learning_rate=0.01)), task__model__embedding__dims=40
    )
    check_steps(made)
    count = len(CountedTask.traces)
    static_costs(made)
    assert len(CountedTask.traces) == count > 0


@pytest.mark.pax('DatasetInputSpecsProvider', 'model_analysis')
def test_nothing_is_compiled_read_or_allocated(compilations: list[str]) -> None:
    class Unread(CountingInput):
        element_spec = CountingInput.element_spec

        def get_next(self) -> Any:
            raise AssertionError('data was read')

    before = len(jax.live_arrays())
    static_costs(
        experiment(
            train_input=Unread(batch_size=2, is_training=True),
            task__model__embedding__dims=40,
            task__model__dropout=Dropout(0.1),
        )
    )
    assert not compilations
    assert len(jax.live_arrays()) <= before


@pytest.mark.parametrize('make', [lm.C4Small, lm.StdlibTunable, nas.StdlibNas])
def test_of_the_experiments_that_are_there(make: Any) -> None:
    made = make()
    if not pg.is_deterministic(made):
        made = pg.materialize(made, pg.dna_spec(made).first_dna())
    cost = static_costs(made)
    # Six operations a parameter and token, and the products of attention.
    assert 6 <= cost['flops_per_token'] / cost['num_params'] < 9


@pytest.mark.slow
def test_memory_is_that_of_the_compiled_step_and_is_compiled_once(tmp_path: Path) -> None:
    # A width of its own: other tests share what they compile.
    made = experiment(num_steps=2, task__model__embedding__dims=20)
    made.task.model.stack.layers[0].attention.rebind(position='none')
    bytes_needed = memory_cost(made)['device_memory_bytes']
    program, _ = compiled(localized(made))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.abstract_state))
    assert bytes_needed > state  # Besides the state there are gradients and activations.
    step = program.train_step
    (measurement,) = run(made, tmp_path)
    assert measurement.metrics['device_memory_bytes'] == bytes_needed
    assert program.train_step is step
    assert measurement.metrics.items() >= static_costs(made).items()


@pytest.mark.slow
def test_a_larger_batch_needs_more_memory() -> None:
    one, other = (memory_cost(experiment(train_input__batch_size=size)) for size in (8, 64))
    assert one['device_memory_bytes'] < other['device_memory_bytes']


def test_memory_of_a_mesh_that_does_not_fit_cannot_be_asked() -> None:
    with pytest.raises(UserError, match=r'^mesh: '):
        memory_cost(experiment(mesh=Mesh(data=7)))


def test_a_step_is_timed_with_the_program_that_trains(
    tmp_path: Path, compilations: list[str]
) -> None:
    # A width of its own: other tests share what they compile.
    made = experiment(num_steps=2, task__model__embedding__dims=28)
    made.task.model.stack.layers[0].attention.rebind(position='none')
    before = len(jax.live_arrays())
    found = step_cost(made)
    assert found.keys() == {'step_seconds'}
    assert 0 < found['step_seconds'] < 60
    assert len(jax.live_arrays()) <= before  # The state is gone.
    program, _ = compiled(localized(made))
    step = program.train_step
    compilations.clear()
    step_cost(made)
    assert not compilations
    (measurement,) = run(made, tmp_path)
    assert program.train_step is step
    assert measurement.metrics['device_memory_bytes'] == program.device_memory_bytes()
    assert 'step_seconds' not in measurement.metrics  # It is measured on request.


@pytest.mark.contract
def test_step_seconds_are_the_median_after_the_warm_up() -> None:
    made = experiment()
    train_step, batches = compiled(made)[0].train_step, []
    # The first ones, a hiccup in between, and three that a sleep makes alike.
    naps = iter([0.4, 0.3, 0.02, 0.5, 0.02, 0.02, 0.0])

    def slow(state: Any, batch: Any, *more: Any) -> Any:
        batches.append(batch)
        time.sleep(next(naps))
        return train_step(state, batch, *more)

    assert 0.02 <= step_cost(made, slow)['step_seconds'] < 0.3
    assert next(naps, None) is None
    spec = made.train_input.padded_spec()
    for batch in batches:
        assert {name: (x.shape, x.dtype) for name, x in batch.items()} == {
            name: (s.shape, s.dtype) for name, s in spec.items()
        }
        assert np.all(np.asarray(batch['weights']) == 1)
        for name in ('ids', 'labels'):
            ids = np.asarray(batch[name])
            assert 0 <= ids.min() < ids.max() < VOCAB


def test_a_step_on_images_is_timed() -> None:
    assert step_cost(images())['step_seconds'] > 0


def test_a_cpu_does_not_say_how_much_there_is() -> None:
    assert jax.default_backend() != 'cpu' or device_memory_limit() is None
