from typing import Any

import jax
import numpy as np
import pytest

from tests.conformance.layer_examples import resnet
from tests.factories import tiny_images
from tests.factories.tiny import experiment, model
from trainer.experiment import Experiment
from trainer.layers import Dropout
from trainer.learner import SGD, AdamW, Cosine, GlobalNorm, Learner
from trainer.loop.metric_names import metric_names
from trainer.mesh import Mesh
from trainer.program.setup import check_batch_sizes, check_lengths, compiled, localized
from trainer.symbolic.component import key, numbers
from trainer.symbolic.errors import UserError
from trainer.tasks import LanguageModelTask


def losses(made: Experiment, num_steps: int = 2) -> list[float]:
    """Training losses and the sum of the parameters afterwards."""
    made = localized(made)
    program, values = compiled(made)
    random_key = program.random_key(0)
    state, out = program.init(random_key, values), []
    for _ in range(num_steps):
        batch = program.put(made.train_input.get_next())
        state, metrics = program.train_step(state, batch, random_key, values)
        out.append(float(metrics['loss'].mean))
    return [*out, float(sum(abs(leaf).sum() for leaf in jax.tree.leaves(state.params)))]


def all_numbers(**changes: float) -> Experiment:
    """An experiment in which every number that a task can have is there."""
    learner = Learner(
        0.01,
        Cosine(warmup_steps=2, decay_steps=10, final_factor=0.1),
        AdamW(),
        clipping=GlobalNorm(0.5),
    )
    task = LanguageModelTask(model(dropout=Dropout(0.1)), learner)
    made = experiment(task=task)
    return made.rebind(changes) if changes else made


NUMBERS = sorted(numbers(all_numbers().task))


def test_the_numbers_of_a_language_model_task() -> None:
    assert {path.split('.')[-1] for path in NUMBERS} == {
        'learning_rate', 'warmup_steps', 'decay_steps', 'final_factor', 'b1', 'b2', 'epsilon',
        'weight_decay', 'max_norm', 'rate', 'label_smoothing', 'z_loss_weight',
        'hold_steps',
    }  # fmt: skip


@pytest.mark.pax('learning_rate')
@pytest.mark.parametrize('path', NUMBERS)
@pytest.mark.fast(8)
def test_each_number_changes_the_run_and_compiles_nothing(path: str, compilations: Any) -> None:
    before = losses(all_numbers(), num_steps=4)
    compilations.clear()
    value = numbers(all_numbers().task)[path]
    other = value + 3 if isinstance(value, int) else 0.5 * value + 0.01
    after = losses(all_numbers(**{f'task.{path}': other}), num_steps=4)
    assert after != before
    assert not compilations


@pytest.mark.contract
def test_structure_compiles_anew(compilations: Any) -> None:
    losses(experiment())
    compilations.clear()
    losses(experiment(task__learner__optimizer=SGD()))
    assert compilations


def test_the_step_whose_memory_was_asked_for_is_the_one_that_runs(compilations: Any) -> None:
    made = localized(experiment(task__model__embedding__dims=24))
    program, values = compiled(made)
    state = program.init(program.random_key(0), values)
    batch = program.put(made.train_input.get_next())
    compilations.clear()
    assert program.device_memory_bytes() > 0
    assert len(compilations) == 1
    program.train_step(state, batch, program.random_key(0), values)
    assert program.device_memory_bytes() == compiled(made)[0].device_memory_bytes()
    assert len(compilations) == 1


def test_evaluation_is_compiled_once_for_each_shape(compilations: Any) -> None:
    made = localized(experiment(task__model__embedding__dims=24))
    program, values = compiled(made)
    variables = program.init(program.random_key(0), values).variables
    compilations.clear()
    for size, expected in ((8, 1), (8, 1), (4, 2), (8, 2)):
        data = made.eval_inputs['eval'].clone().rebind(batch_size=size)
        step = program.eval_step(data.element_spec())
        step(variables, program.put(data.get_next()), values)
        assert len(compilations) == expected


def test_experiments_with_equal_tasks_share_the_program() -> None:
    one = compiled(localized(experiment()))[0]
    other = compiled(localized(experiment(num_steps=9, train__random_seed=3)))[0]
    assert one is other


def test_the_unbound_task_is_not_the_callers() -> None:
    made = localized(experiment())
    program, values = compiled(made)
    made.task.learner.rebind(learning_rate=0.0)
    assert program.values(made.task)['learner.learning_rate'] == 0.0
    assert values['learner.learning_rate'] == np.float32(0.01)
    assert key(made.task) == key(experiment().task)


def edited(name: str) -> type[LanguageModelTask]:
    """A task whose cell of a notebook was edited, and run again: the class has the same name."""

    class Edited(LanguageModelTask):
        def measure(self, outputs: Any, batch: Any) -> Any:
            found = super().measure(outputs, batch)
            return found | {name: found['loss']}

    return Edited


def test_an_edited_class_of_the_same_name_is_another_program() -> None:
    programs = []
    for name in ('before', 'after'):
        made = localized(experiment(task=edited(name)(model(), Learner(0.01))))
        program, values = compiled(made)
        programs.append(program)
        state = program.init(program.random_key(0), values)
        batch = program.put(made.train_input.get_next())
        assert name in program.train_step(state, batch, program.random_key(0), values)[1]
        assert f'train/{name}' in metric_names(made)[0]
    same = localized(experiment(task=edited('after')(model(), Learner(0.01))))
    assert compiled(same)[0] is programs[1] is not programs[0]


@pytest.mark.pax('stochastic_gradient', 'ShardedStaticAccumulator')
@pytest.mark.parametrize('parts', [2, 8])
@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_whole_batch(parts: int) -> None:
    whole = losses(experiment(), num_steps=3)
    parted = losses(experiment(task__learner__microbatches=parts), num_steps=3)
    np.testing.assert_allclose(parted, whole, rtol=1e-5)


def test_microbatches_must_divide_the_batch() -> None:
    with pytest.raises(UserError, match=r'in 3 task.learner.microbatches over the 1 devices'):
        losses(experiment(task__learner__microbatches=3))


@pytest.mark.pax('bfloat16 in the')
def test_bfloat16_trains_float32_parameters() -> None:
    made = localized(experiment(task__fprop_dtype='bfloat16'))
    program, values = compiled(made)
    state = program.init(program.random_key(0), values)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.params)} == {'float32'}
    close = losses(made)[:2], losses(experiment())[:2]
    np.testing.assert_allclose(*close, rtol=0.02)
    assert close[0] != close[1]


@pytest.mark.pax('Seeds, the step', 'Dropout')
def test_dropout_changes_from_step_to_step_and_repeats_by_seed() -> None:
    made = experiment(task__model__dropout=Dropout(0.5), task__learner__learning_rate=0.0)
    made = localized(made)
    program, values = compiled(made)
    batch = program.put(made.train_input.get_next())

    def loss(seed: int, num_steps: int) -> float:
        random_key = program.random_key(seed)
        state = program.init(program.random_key(0), values)
        for _ in range(num_steps):
            state, metrics = program.train_step(state, batch, random_key, values)
        return float(metrics['loss'].mean)

    assert loss(1, 1) == loss(1, 1)
    assert len({loss(1, 1), loss(1, 2), loss(2, 1)}) == 3


def test_a_batch_that_does_not_divide_is_refused_by_its_path() -> None:
    made = experiment()
    check_batch_sizes(made, Mesh(data=4).abstract())
    with pytest.raises(UserError, match=r'train_input.batch_size: 8 examples do not divide'):
        check_batch_sizes(made, Mesh(data=3).abstract())
    made.rebind({'train_input.batch_size': 9})
    with pytest.raises(UserError, match=r'eval_inputs.eval.batch_size: 8 .* a multiple of 3'):
        check_batch_sizes(made, Mesh(data=3).abstract())


def test_positions_that_do_not_divide_are_refused_by_their_path() -> None:
    made = experiment()
    check_lengths(made, Mesh(data=1, sequence=1).abstract())
    check_lengths(made, Mesh(data=1, sequence=4).abstract())
    with pytest.raises(UserError, match=r"^train_input: 8 positions of 'ids' .* 3 devices of mesh"):
        check_lengths(made, Mesh(data=1, sequence=3).abstract())
    with pytest.raises(UserError, match=r'^mesh.sequence: no feature of train_input has positions'):
        check_lengths(tiny_images.experiment(resnet()), Mesh(data=1, sequence=2).abstract())


def test_initial_weights_are_drawn_from_the_seed() -> None:
    program, values = compiled(localized(experiment()))

    def drawn(seed: int) -> Any:
        params = program.init(program.random_key(seed), values).params
        return np.asarray(params['embedding']['table'])

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert not np.array_equal(drawn(1), drawn(2))
