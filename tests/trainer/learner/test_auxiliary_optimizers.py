"""Auxiliary optimizers."""

import re
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.conformance.optimizer_suite import MASK, PARAMS
from tests.factories.parts import GRADIENTS, stepped
from tests.factories.tiny import experiment
from trainer.learner import (
    SGD,
    Adafactor,
    AdamW,
    AuxiliaryOptimizer,
    Constant,
    Freeze,
    GlobalNorm,
    Learner,
    LinearSchedule,
    Lion,
)
from trainer.program.setup import compiled, localized
from trainer.symbolic.component import key, numbers
from trainer.symbolic.errors import UserError


def alone(learner: Learner, name: str) -> Any:
    """The parameters of one part, trained without the others."""
    parts = ({name: tree[name]} for tree in (PARAMS, GRADIENTS, MASK))
    return stepped(learner, 3, *parts)[0].params[name]


def several(**fields: Any) -> Learner:
    table = AuxiliaryOptimizer(
        patterns=['embedding.*'],
        learning_rate=0.3,
        schedule=LinearSchedule(decay_steps=4),
        optimizer=Lion(),
    )
    fields = {'clipping': None} | fields
    return Learner(0.1, auxiliary_optimizers={'table': table}, **fields)


def test_each_parameter_has_its_own_optimizer() -> None:
    state, metrics = stepped(several(), 3)
    stack = alone(Learner(0.1, clipping=None), 'stack')
    decay = LinearSchedule(decay_steps=4)
    embedding = alone(Learner(0.3, decay, optimizer=Lion(), clipping=None), 'embedding')
    wanted = {'embedding': embedding, 'stack': stack}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), dict(state.params), wanted
    )
    assert metrics['learning_rate'].value() == pytest.approx(0.1)
    assert metrics['learning_rate/table'].value() == pytest.approx(0.15)
    assert set(state.opt_state) == {'main', 'table'}


@pytest.mark.pax('apply_separate_scaling')
def test_clipping_is_global_or_per_parameter() -> None:
    plain: dict[str, Any] = {'optimizer': SGD(), 'clipping': GlobalNorm(1.0)}
    learner = several(**plain)
    learner.rebind({'auxiliary_optimizers.table.optimizer': SGD()})
    together, _ = stepped(learner)
    apart, _ = stepped(learner.clone(override={'clipping.per_optimizer': True}))
    for state, norms in (
        (together, {name: optax.tree.norm(GRADIENTS) for name in PARAMS}),
        (apart, {name: optax.tree.norm(GRADIENTS[name]) for name in PARAMS}),
    ):
        for name, rate in (('embedding', 0.3), ('stack', 0.1)):
            moved = jax.tree.map(np.subtract, PARAMS[name], state.params[name])
            wanted = rate * optax.tree.norm(GRADIENTS[name]) / norms[name]
            np.testing.assert_allclose(optax.tree.norm(moved), wanted, rtol=1e-4)


def test_their_numbers_are_traced() -> None:
    learner, other = several(), several()
    other.rebind({'auxiliary_optimizers.table.learning_rate': 0.7})
    assert key(learner) == key(other)
    assert numbers(other)['auxiliary_optimizers.table.learning_rate'] == 0.7


def test_no_parameter_may_be_left_to_the_main_optimizer() -> None:
    learner = Learner(
        0.1, auxiliary_optimizers={'all': AuxiliaryOptimizer(['.*'], 0.1, optimizer=SGD())}
    )
    state, _ = stepped(learner)
    assert set(state.opt_state) == {'all'}


@pytest.mark.parametrize(
    ('patterns', 'fields', 'message'),
    [
        (['embedding.*', 'stack.*'], {}, 'embedding.table also belongs to task.learner.'),
        ([r'stack\.layers_1.*'], {}, 'it matches stack.layers_1.kernel but not stack.layers_0'),
        (['nothing'], {}, "[0]: no trained parameter is called 'nothing'"),
        (
            ['stack.*'],
            {'freeze': Freeze(['stack.*'])},
            "[0]: no trained parameter is called 'stack.*'",
        ),
    ],
)
def test_patterns_that_do_not_fit_are_refused(
    patterns: list[str], fields: dict[str, Any], message: str
) -> None:
    learner = several(**fields)
    learner.rebind({'auxiliary_optimizers.other': AuxiliaryOptimizer(patterns, 0.1)})
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        learner.init(PARAMS, MASK)
    assert str(caught.value).startswith('task.learner.auxiliary_optimizers.other.patterns')


@pytest.mark.parametrize(
    'make',
    [
        lambda: AuxiliaryOptimizer([], 0.1),
        lambda: AuxiliaryOptimizer(['a'], -0.1),
        lambda: Learner(0.1, auxiliary_optimizers={'main': AuxiliaryOptimizer(['a'], 0.1)}),
    ],
)
def test_impossible_values_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match='must'):
        make()


@pytest.mark.pax('Learner', 'MultiOptimizerLearner')
def test_a_model_is_trained_by_several_optimizers() -> None:
    norms = AuxiliaryOptimizer(['.*norm.*'], 0.0, Constant(), AdamW())
    table = AuxiliaryOptimizer(['embedding.*'], 0.01, optimizer=Adafactor())
    made = localized(
        experiment(task__learner__auxiliary_optimizers={'norms': norms, 'table': table})
    )
    program, values = compiled(made)
    key = program.random_key(0)
    state = program.init(key, values)
    before = jax.device_get(state.params)
    batch = program.put(made.train_input.get_next())
    state, metrics = program.train_step(state, batch, key, values)
    same = jax.tree.map(np.array_equal, before, jax.device_get(state.params))
    assert same['final_norm']['scale'] and not same['embedding']['table']
    assert {'learning_rate', 'learning_rate/norms', 'learning_rate/table'} <= set(metrics)
