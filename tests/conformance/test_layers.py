"""The contract of layers."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance.layer_examples import EXAMPLES, X_BTD, Example
from tests.search_spaces.golden import all_components
from trainer.layers import (
    Alibi,
    AttentionPosition,
    FutureTokens,
    Layer,
    Positions,
    RelativeBias,
    Rotary,
    Router,
    SharedWithPrevious,
    check_mixer,
    per_layer,
    stacked,
)
from trainer.layers.base import NON_TRAINABLE, PARAMS, ForwardContext, forward_context
from trainer.layers.branch import takes_positions
from trainer.layers.parameters import ParameterBox
from trainer.mesh import Mesh
from trainer.symbolic.errors import UserError

# Models of layers that stand here by themselves, too.
_COMPOSED = (
    'attention of normalized heads',
    'attention of one kernel',
    'attention with a cap',
    'attention with a learned bias',
    'attention with convolutions',
    'attention with sinks',
    'attention with slopes',
    'attention with turned halves',
    'bottleneck block',
    'chain',
    'decoder block',
    'encoder',
    'encoder-decoder',
    'experts with places',
    'gated deltanet',
    'inverted bottleneck',
    'inverted bottleneck with a stride',
    'latent attention',
    'local attention',
    'lstm',
    'mamba-2',
    'mlp',
    'nnx',
    'primer residual',
    'resnet',
    'shared layers',
    'stack',
    'text classifier',
    'text classifier with a pooler',
    'transformer block',
    'transformer with caps',
    'vision transformer',
)
_MARKS = dict.fromkeys(_COMPOSED, pytest.mark.slow) | dict.fromkeys(
    ('attention', 'basic block', 'embedding', 'linen', 'transformer'), pytest.mark.contract
)
every = pytest.mark.parametrize(
    'name', [pytest.param(name, marks=_MARKS.get(name, ())) for name in EXAMPLES]
)


class Passes(NamedTuple):
    """Results of an example, all compiled together.

    Attributes:
        boxed: new variables with their metadata.
        whole: the result for the batch, in evaluation.
        changed: the same, where all examples but the first are others.
        gradients: of a training step.
        state: what is not trained, after it.
        narrow: the result of it where layers compute in bfloat16.
    """

    boxed: Any
    whole: Any
    changed: Any
    gradients: Any
    state: Any
    narrow: Any


def others(arg: Any) -> Any:
    """Arguments in which the first example stays, and others take the place of the rest."""
    if isinstance(arg, int):
        return arg
    change = (lambda x: (x + 1) % 6) if jnp.issubdtype(arg.dtype, jnp.integer) else jnp.cos
    return jnp.concatenate([arg[:1], change(arg[1:])])


def is_narrowed(x: Any) -> Any:
    return x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x


# Each layer is compiled once and run once.
jit = functools.partial(
    jax.jit,
    compiler_options={
        'xla_backend_optimization_level': 0,
        'xla_llvm_disable_expensive_passes': True,
    },
)


@functools.cache
def passes(name: str) -> Passes:
    example = EXAMPLES[name]
    module, positional = example.layer.module(), [a for a in example.args if isinstance(a, int)]
    arrays = tuple(arg for arg in example.args if not isinstance(arg, int))
    boxed = jit(lambda *arrays: module.init(jax.random.key(0), *arrays, *positional))(*arrays)

    def run(variables: Any, arrays: Any, training: bool = False, dtype: Any = jnp.float32) -> Any:
        rngs = {'dropout': jax.random.key(1)} if training else {}
        with forward_context(ForwardContext(training=training, dtype=dtype)):
            mutable = [NON_TRAINABLE] if training else []
            return module.apply(variables, *arrays, *positional, rngs=rngs, mutable=mutable)

    def loss(params: Any, variables: Any, arrays: Any) -> Any:
        out, left = run(variables | {PARAMS: params}, arrays, training=True)
        return jnp.sum(out * jax.random.normal(jax.random.key(2), out.shape)), left

    @jit
    def all_passes(variables: Any, arrays: Any) -> Any:
        gradients, left = jax.grad(loss, has_aux=True)(variables[PARAMS], variables, arrays)
        narrow, _ = run(variables, jax.tree.map(is_narrowed, arrays), True, jnp.bfloat16)
        whole, _ = run(variables, arrays)
        changed, _ = run(variables, jax.tree.map(others, arrays))
        return whole, changed, gradients, left, narrow

    variables = {PARAMS: {}} | nn.meta.unbox(boxed)
    whole, changed, gradients, left, narrow = all_passes(variables, arrays)
    return Passes(boxed, whole, changed, gradients, left.get(NON_TRAINABLE, {}), narrow)


def boxes(name: str) -> list[ParameterBox]:
    is_box = lambda value: isinstance(value, ParameterBox)  # noqa: E731
    return jax.tree.leaves(passes(name).boxed.get(PARAMS, {}), is_leaf=is_box)


@pytest.mark.pax('Chains, adapters, n-grams')
def test_every_layer_of_the_package_is_here() -> None:
    there = {cls for cls in all_components() if issubclass(cls, Layer)} - {Layer}
    used = {type(example.layer) for example in EXAMPLES.values()}
    # They are no layers by themselves: parts of 'shared layers' and of 'experts'.
    used |= {SharedWithPrevious, Router}
    used.add(FutureTokens)  # It returns no array: a model adds its loss.
    used |= {AttentionPosition, Alibi, RelativeBias, Rotary}  # Attention calls their methods.
    tested = {base for cls in used for base in cls.__mro__}
    assert not {cls.__name__ for cls in there - tested}


@pytest.mark.pax('… mesh shapes, axis', 'WeightHParams', 'skip_lp_regularization')
@pytest.mark.pax('Collections of weights')
@every
def test_parameters_are_float32_and_lie_on_a_mesh_by_their_axes(name: str) -> None:
    mesh = Mesh(data=1).make(jax.devices()[:1])
    for box in boxes(name):
        assert box.value.dtype == jnp.float32
        assert len(box.names) == box.value.ndim
        mesh.sharding(box.names, box.value.shape, name)
        assert not box.decay or box.value.ndim > 1


@pytest.mark.pax('Evaluate: seed, `apply_mutable_list`', 'What all layers')
@every
def test_an_example_does_not_depend_on_its_neighbours(name: str) -> None:
    found = passes(name)
    np.testing.assert_allclose(found.whole[0], found.changed[0], rtol=1e-5, atol=1e-5)
    assert np.isfinite(found.whole).all()
    assert not np.allclose(found.whole[1], found.changed[1], atol=1e-5)


@every
def test_every_parameter_has_a_gradient(name: str) -> None:
    for path, gradient in jax.tree_util.tree_leaves_with_path(passes(name).gradients):
        assert np.isfinite(gradient).all(), path
        assert np.any(gradient != 0), path


@every
def test_training_changes_state_in_its_shape(name: str) -> None:
    found = passes(name)
    before = nn.meta.unbox(found.boxed.get(NON_TRAINABLE, {}))
    assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, found.state)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(found.state), strict=True):
        assert np.isfinite(new).all()
        assert np.any(new != old)


@pytest.mark.pax('Common fields: `dtype`')
@every
def test_results_have_the_dtype_that_layers_compute_in(name: str) -> None:
    wanted = jnp.float32 if EXAMPLES[name].is_float32 else jnp.bfloat16
    assert passes(name).narrow.dtype == wanted
    wide = passes(name).whole
    assert passes(name).narrow.shape == wide.shape


@every
def test_the_view_by_layer_goes_both_ways(name: str) -> None:
    example: Example = EXAMPLES[name]
    params = nn.meta.unbox(passes(name).boxed.get(PARAMS, {}))
    again = stacked(per_layer(params), example.layer)
    structures: Any = [jax.tree.structure(each) for each in (again, params)]
    assert structures[0] == structures[1]
    jax.tree.map(np.testing.assert_array_equal, again, params)


_MIXERS = [
    name
    for name, example in EXAMPLES.items()
    if len(example.args) == 1
    and example.args[0] is X_BTD
    and takes_positions(example.layer)
    and not example.layer.is_pointwise
]


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=() if n == 'attention' else pytest.mark.slow) for n in _MIXERS]
)
def test_layers_of_sequences_keep_the_contract_of_a_mixer(name: str) -> None:
    check_mixer(EXAMPLES[name].layer, X_BTD)


class Wrong(Layer):
    """A mixer with a fault."""

    fault: str

    def forward(self, x_BTD: jax.Array, positions: Positions | None = None) -> jax.Array:
        dims = x_BTD.shape[-1]
        y_BTD = self.product('btd,df->btf', x_BTD, self.param('up', (dims, dims), (None, None)))
        match self.fault:
            case 'became':
                return y_BTD[..., :1]
            case 'an example depends on the others':
                return y_BTD - y_BTD.mean(0)
            case 'a position depends on later ones':
                return y_BTD[:, ::-1]
            case 'segments of a packed row see each other':
                return jnp.cumsum(y_BTD, 1)
            case 'up has no gradient':
                return jax.lax.stop_gradient(y_BTD)
            case 'bfloat16 became float32':
                return y_BTD.astype(jnp.float32)
        return y_BTD


@pytest.mark.parametrize(
    'fault',
    [
        'became',
        'an example depends on the others',
        'a position depends on later ones',
        'segments of a packed row see each other',
        'up has no gradient',
        'bfloat16 became float32',
    ],
)
def test_a_fault_of_a_mixer_is_found(fault: str) -> None:
    check_mixer(Wrong('none'), X_BTD)
    with pytest.raises(UserError, match=f'^Wrong: .*{fault}'):
        check_mixer(Wrong(fault), X_BTD)
