"""Frozen parameters have no updates, no state and no cost."""

import re
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.conformance.optimizer_suite import PARAMS
from tests.factories.parts import GRADIENTS, stepped
from tests.factories.tiny import experiment
from trainer.checkpoints.checkpoint import CheckpointStore
from trainer.checkpoints.manifest import Progress
from trainer.checkpoints.retention import RetentionPolicy
from trainer.experiment import Checkpoints
from trainer.layers.stack import per_layer
from trainer.learner import SGD, Freeze, Learner, TrainOnly
from trainer.learner.paths import leaves
from trainer.program.program import Program
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def paths(tree: Any) -> str:
    found = jax.tree_util.tree_leaves_with_path(tree)
    return ' '.join(jax.tree_util.keystr(path) for path, _ in found)


@pytest.mark.pax('bprop_variable_exclusion')
def test_frozen_parameters_stay_and_have_no_state() -> None:
    learner = Learner(0.1, freeze=Freeze(['embedding.*']), ema_decay=0.5)
    state, metrics = stepped(learner, count=3)
    assert_equal(state.params['embedding'], PARAMS['embedding'])
    assert_equal(state.ema_params['embedding'], PARAMS['embedding'])
    layers, before = state.params['stack']['layers_0x3'], PARAMS['stack']['layers_0x3']
    for name in before:
        assert (layers[name] != before[name]).any()
        assert (state.ema_params['stack']['layers_0x3'][name] != before[name]).any()
    assert 'stack' in paths(state.opt_state) and 'embedding' not in paths(state.opt_state)
    # The norm is that of the other gradients.
    norm = optax.tree.norm(GRADIENTS['stack'])
    np.testing.assert_allclose(metrics['gradient_norm'].value(), norm, rtol=1e-6)


def test_train_only_freezes_the_others() -> None:
    included = stepped(Learner(0.1, freeze=TrainOnly([r'stack\..*'])))
    excluded = stepped(Learner(0.1, freeze=Freeze([r'embedding\.table'])))
    assert_equal(included, excluded)


def test_all_layers_of_a_scanned_run_can_be_named_one_by_one() -> None:
    each = [rf'stack\.layers_{i}\.kernel' for i in range(3)]
    one, _ = stepped(Learner(0.1, freeze=Freeze(each)))
    all_, _ = stepped(Learner(0.1, freeze=Freeze([r'stack\.layers_[012]\.kernel'])))
    assert_equal(one, all_)
    assert_equal(
        one.params['stack']['layers_0x3']['kernel'], PARAMS['stack']['layers_0x3']['kernel']
    )


@pytest.mark.parametrize(
    ('kind', 'patterns', 'message'),
    [
        (Freeze, ['embedding'], r'[0]: no trained parameter is called'),
        (
            Freeze,
            ['embedding'],
            r"matches whole paths: try 'embedding.*'. There",
        ),
        (Freeze, ['.*', r'stack\.kernel'], r'[1]: no trained parameter'),
        (TrainOnly, ['embeding.table'], 'Did you mean embedding.table?'),
        (Freeze, ['.*'], 'it leaves no parameter to train'),
        (
            TrainOnly,
            [r'stack\.layers_[01].*'],
            'it matches stack.layers_0.kernel but not stack.layers_2.kernel, which are scanned '
            "together as stack.layers_0x3.kernel: set scan='never'",
        ),
    ],
)
def test_invalid_patterns_are_refused(
    kind: type[Freeze], patterns: list[str], message: str
) -> None:
    learner = Learner(0.1, freeze=kind(patterns))
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        learner.trained(PARAMS)
    assert str(caught.value).startswith('task.learner.freeze')


def test_impossible_fields_are_refused() -> None:
    with pytest.raises(ValueError, match='patterns must not be empty'):
        Freeze([])
    with pytest.raises(ValueError, match=r'patterns\[0\] is not a regular expression'):
        Freeze(['layers_['])


def trained(scan: str = 'never', count: int = 2, **fields: Any) -> tuple[Program, TrainState, Any]:
    """The program of the tiny model, its state before some steps and after them."""
    fields = {f'task__learner__{name}': value for name, value in fields.items()}
    stack: dict[str, Any] = {'task__model__stack__repeats': 3, 'task__model__stack__scan': scan}
    made = localized(experiment(**stack, **fields))
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    before = jax.device_get(state)
    for _ in range(count):
        batch = program.put(made.train_input.get_next())
        state, _ = program.train_step(state, batch, key, values)
    return program, before, state


@pytest.mark.slow
def test_a_model_is_trained_in_part(tmp_path: Any) -> None:
    fields: dict[str, Any] = {
        'freeze': Freeze([r'stack\.layers_[01]\..*', 'embedding.*']),
        'microbatches': 2,
        'ema_decay': 0.5,
    }
    program, before, state = trained(**fields)
    for path, leaf in leaves(before.params).items():
        frozen = path[0] == 'embedding' or path[1] in ('layers_0', 'layers_1')
        for after in (leaves(state.params)[path], leaves(state.ema_params)[path]):
            assert np.array_equal(leaf, after) == frozen, path
    assert 'layers_2' in paths(state.opt_state) and 'layers_1' not in paths(state.opt_state)
    checkpoints = CheckpointStore(tmp_path, RetentionPolicy(Checkpoints()))
    checkpoints.save(2, state, Progress())
    checkpoints.wait()
    restored = checkpoints.restore(program.abstract_state)
    checkpoints.close()
    assert restored is not None
    assert_equal(jax.device_get(restored.state), jax.device_get(state))


@pytest.mark.slow
def test_scanned_layers_are_frozen_as_others() -> None:
    patterns = [r'stack\..*\.(query|up)']
    runs = [trained(scan, freeze=TrainOnly(patterns)) for scan in ('never', 'always')]
    states = [per_layer(jax.device_get(state.params)) for _, _, state in runs]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *states)


@pytest.mark.slow
def test_frozen_parameters_cost_nothing() -> None:
    whole, _, _ = trained(count=0)
    head, _, state = trained(count=0, freeze=TrainOnly(['final_norm.*']))
    steps: list[Any] = [whole.train_step, head.train_step]
    flops = [step.cost_analysis()['flops'] for step in steps]
    # The backward pass is two thirds of the work, and nearly all of it is left out.
    assert flops[1] < 0.45 * flops[0]
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) == 2 * 16 + 1


def test_the_program_refuses_patterns_by_their_path() -> None:
    with pytest.raises(UserError, match=r'^task\.learner\.freeze\.patterns\[0\]: no tra'):
        trained(freeze=Freeze(['stak.*']))


def test_frozen_parameters_have_no_weight_decay() -> None:
    learner = Learner(0.1, optimizer=SGD(weight_decay=1.0), freeze=Freeze(['embed.*']))
    state, _ = stepped(learner, gradients=jax.tree.map(np.zeros_like, PARAMS))
    assert_equal(state.params['embedding'], PARAMS['embedding'])
    assert (
        state.params['stack']['layers_0x3']['kernel'] != PARAMS['stack']['layers_0x3']['kernel']
    ).all()
