from typing import Any

import pytest

from search_spaces.spmd import SyntheticLm
from tests.factories.tiny import LENGTH, experiment
from trainer.experiment import Experiment
from trainer.inspect import layout
from trainer.layers import Attention, FeedForward, Stack, TransformerBlock
from trainer.learner import Learner
from trainer.mesh import Mesh
from trainer.program.costs import memory_cost
from trainer.program.residuals import residual_bytes
from trainer.tasks import LanguageModelTask

_ROWS, _DIMS, _FLOAT = 8, 16, 4
_LAYER_INPUT = _ROWS * LENGTH * _DIMS * _FLOAT


def near(expected: float) -> Any:
    """Each layer also keeps its random key, 8 bytes."""
    return pytest.approx(expected, rel=0.01)


def kept(made: Experiment) -> int:
    found = residual_bytes(made.task, made.train_input.element_spec(), made.mesh.abstract())
    assert found is not None
    return found


def deep(repeats: int = 4, mesh: Mesh | None = None, **stack: Any) -> Experiment:
    block = TransformerBlock(Attention(2), FeedForward(32))
    made = experiment(task__model__stack=Stack([block], repeats=repeats, scan='always', **stack))
    return made if mesh is None else made.rebind({'mesh': mesh})


def test_a_scanned_layer_keeps_its_input_and_named_values() -> None:
    four = kept(deep(4))
    assert kept(deep(6)) - four == near(2 * _LAYER_INPUT)
    assert kept(deep(4, save_names=['context', 'output'])) - four == near(8 * _LAYER_INPUT)
    assert kept(deep(4, remat='none')) > kept(deep(4, remat='dots')) > four


@pytest.mark.parametrize(
    ('mesh', 'parts'), [(Mesh(data=2, fsdp=2), 4), (Mesh(data=2, sequence=4), 8)]
)
def test_kept_values_are_divided_over_the_devices(mesh: Mesh, parts: int) -> None:
    more, fewer = (kept(deep(each, mesh, save_names=['context'])) for each in (6, 4))
    assert more - fewer == near(4 * _LAYER_INPUT / parts)


def test_microbatches_keep_less_at_a_time() -> None:
    made = deep(4)
    whole = kept(made)
    assert kept(made.rebind({'task.learner.microbatches': 2})) == pytest.approx(whole / 2, rel=0.1)


class TwoSteps(LanguageModelTask):
    """A task with a step of its own."""

    def train_step(self, step: Any) -> Any:
        return step.minimize()


def test_a_step_of_a_task_has_no_estimate() -> None:
    made = deep()
    task = TwoSteps(made.task.model.clone(deep=True), Learner(1e-3))
    assert residual_bytes(task, made.train_input.element_spec(), made.mesh.abstract()) is None


@pytest.mark.slow
def test_without_rematerialization_nearly_all_temporary_memory_is_kept() -> None:
    made = SyntheticLm(
        num_layers=8,
        model_dims=128,
        num_heads=4,
        dims_per_head=32,
        vocab_size=512,
        max_seq_len=256,
        percore_batch_size=4,
        fprop_dtype='float32',
    ).made()
    made.rebind({'task.model.stack.remat': 'none'})
    needed = memory_cost(made)['device_memory_bytes'] - layout(made).state_bytes
    assert 0.8 < kept(made) / needed < 1.1
