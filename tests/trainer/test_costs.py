from pathlib import Path
from typing import Any

import jax
import pyglove as pg
import pytest

from search_spaces import lm, nas
from tests.trainer.tiny import LENGTH, VOCAB, CountingInput, experiment, model
from trainer import costs
from trainer.costs import device_memory_limit, memory_cost, static_costs
from trainer.errors import UserError
from trainer.inputs import C4Input
from trainer.layers import Attention, Dropout, Linear
from trainer.loop import run
from trainer.mesh import Mesh
from trainer.setup import compiled, localized

D, F = 16, 32
PROJECTIONS = 4 * D * D + 2 * D * F
LOGITS = VOCAB * D
SCORES = 2 * LENGTH * D


def test_of_a_model_that_is_counted_by_hand() -> None:
    norms = 3 * D
    assert static_costs(experiment()) == {
        'num_params': PROJECTIONS + LOGITS + norms,
        'flops_per_token': 3 * 2 * (PROJECTIONS + LOGITS + SCORES),
    }


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
def test_what_they_do_not_depend_on(overrides: dict[str, Any]) -> None:
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


def test_what_differs_in_numbers_only_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError('traced again')

    first = static_costs(experiment())
    monkeypatch.setattr(costs, '_traced', never)
    assert static_costs(experiment(task__learner__learning_rate=0.5, num_steps=9)) == first
    with pytest.raises(AssertionError):
        static_costs(experiment(task__model__embedding__dims=24))


def test_nothing_is_compiled_read_or_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unread(CountingInput):
        def get_next(self) -> Any:
            raise AssertionError('data was read')

    events: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        events.append(event)

    before = len(jax.live_arrays())
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        static_costs(
            experiment(
                train_input=Unread(batch_size=2, is_training=True),
                task__model__embedding__dims=40,
                task__model__dropout=Dropout(0.1),
            )
        )
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in events if 'backend_compile' in event]
    assert len(jax.live_arrays()) <= before


@pytest.mark.parametrize('make', [lm.C4Small, lm.StdlibTunable, nas.StdlibNas])
def test_of_the_experiments_that_are_there(make: Any) -> None:
    made = make()
    if not pg.is_deterministic(made):
        made = pg.materialize(made, pg.dna_spec(made).first_dna())
    cost = static_costs(made)
    # Six operations a parameter and token, and the products of attention.
    assert 6 <= cost['flops_per_token'] / cost['num_params'] < 9


def test_a_model_that_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UserError, match='3 heads do not divide the width 16'):
        static_costs(experiment(task__model__stack__layers=[lm_block(3)]))


def lm_block(heads: int) -> Any:
    block = model().stack.layers[0].clone(deep=True)
    return block.rebind(attention=Attention(heads))


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


def test_a_larger_batch_needs_more_memory() -> None:
    one, other = (memory_cost(experiment(train_input__batch_size=size)) for size in (8, 64))
    assert one['device_memory_bytes'] < other['device_memory_bytes']


def test_memory_of_a_mesh_that_does_not_fit_cannot_be_asked() -> None:
    with pytest.raises(UserError, match=r'^mesh: '):
        memory_cost(experiment(mesh=Mesh(data=7)))


def test_a_cpu_does_not_say_how_much_there_is() -> None:
    assert jax.default_backend() != 'cpu' or device_memory_limit() is None
