from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.layers import Attention, FeedForward, Positions, Stack, TransformerBlock

X_BTD = jax.random.normal(jax.random.key(0), (8, 32, 16))
POLICIES = ('none', 'everything_saveable', 'dots_saveable', 'dots', 'offload_dots', 'full')


def compiled_gradient(remat: Any, save: Any = (), offload: Any = ()) -> tuple[Any, Any]:
    """The compiled gradient of a scanned stack, and its parameters."""
    block = TransformerBlock(Attention(2), FeedForward(64))
    names = {'save_names': list(save), 'offload_names': list(offload)}
    module = Stack([block], repeats=8, scan='always', remat=remat, **names).module()
    positions = Positions.unpacked((8, 32))
    variables = module.init(jax.random.key(1), X_BTD, positions)

    def loss(variables: Any) -> Any:
        out: Any = module.apply(variables, X_BTD, positions)
        return jnp.mean(out**2)

    return jax.jit(jax.grad(loss)).lower(variables).compile(), variables


def temporary_bytes(program: Any) -> int:
    size: int = program.memory_analysis().temp_size_in_bytes
    return size


@pytest.mark.pax('`Repeat`, rematerialization')
@pytest.mark.slow(reason='Compiles six gradients.')
def test_each_policy_saves_less_memory_and_computes_more() -> None:
    compiled = {remat: compiled_gradient(remat) for remat in POLICIES}
    memory = {remat: temporary_bytes(program) for remat, (program, _) in compiled.items()}
    assert memory['none'] == memory['everything_saveable']
    assert memory['everything_saveable'] > 2 * memory['dots_saveable']
    assert memory['dots_saveable'] > 1.2 * memory['dots'] > 1.2 * 1.5 * memory['full']
    # A CPU has one memory. Elsewhere the offloaded products are on the host.
    assert memory['offload_dots'] <= memory['dots']
    operations = {
        remat: program.cost_analysis()['flops'] for remat, (program, _) in compiled.items()
    }
    assert operations['full'] > operations['dots'] > operations['dots_saveable']
    assert operations['dots_saveable'] > operations['none']
    gradients = [program(variables) for program, variables in compiled.values()]
    for each in gradients[1:]:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), each, gradients[0])


@pytest.mark.pax('`Repeat`, rematerialization')
@pytest.mark.slow
def test_named_values_are_kept_and_not_computed_again() -> None:
    names = ['query', 'key', 'value', 'context']
    saved = [compiled_gradient('full', names[:count])[0] for count in (0, 3, 4)]
    memory = [temporary_bytes(program) for program in saved]
    value = 8 * 8 * 32 * 16 * 4  # Bytes of one value in all layers.
    assert memory[1] - memory[0] == pytest.approx(3 * value, rel=0.2)
    assert memory[2] - memory[1] == pytest.approx(value, rel=0.2)
    operations = [program.cost_analysis()['flops'] for program in saved]
    assert operations[0] > operations[1] > operations[2]


@pytest.mark.slow
def test_offloaded_values_are_not_computed_again() -> None:
    offloaded, variables = compiled_gradient('dots', ['context'], ['query', 'key', 'value', 'up'])
    others = [compiled_gradient(remat)[0] for remat in ('dots', 'full')]
    found = [each.cost_analysis()['flops'] for each in (offloaded, *others)]
    assert found[0] < found[1] < found[2]  # 'dots' computes the context of attention again.
    for one, other in zip(
        *(jax.tree.leaves(each(variables)) for each in (offloaded, others[1])), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_values_that_cannot_be_saved_are_refused() -> None:
    with pytest.raises(ValueError, match='query'):
        Stack([FeedForward(8)], save_names=['quarry'])
    for fields in ({'remat': 'everything_saveable'}, {'remat': 'none'}, {'scan': 'never'}):
        with pytest.raises(ValueError, match=r'save_names must be \[\] where .*, which keeps all'):
            Stack([FeedForward(8)], save_names=['query'], **fields)
    with pytest.raises(ValueError, match="both have 'query': keep it in one place"):
        Stack([FeedForward(8)], save_names=['query'], offload_names=['query'])
    with pytest.raises(ValueError, match=r"offload_names must be \[\] where scan is 'never'"):
        Stack([FeedForward(8)], offload_names=['query'], scan='never')
    with pytest.raises(ValueError, match="remat='offload_dots'"):
        Stack([FeedForward(8)], save_names=['query'], remat='offload_dots')


@pytest.mark.pax('`Repeat`, rematerialization')
@pytest.mark.parametrize('remat', ['full', 'none'])
def test_a_scanned_stack_stores_only_the_inputs_of_its_layers(remat: Any) -> None:
    module = Stack([FeedForward(64)], repeats=8, scan='always', remat=remat).module()
    shape = jax.ShapeDtypeStruct((8, 32, 16), jnp.float32)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), X_BTD, None))

    def loss(variables: Any, x: Any) -> Any:
        out: Any = module.apply(variables, x, None)
        return jnp.mean(out**2)

    program = jax.jit(jax.grad(loss)).lower(variables, shape).compile()
    hidden = 8 * 8 * 32 * 64 * 4  # Bytes of the hidden values of all layers, which 'none' stores.
    assert (temporary_bytes(program) < 2 * hidden) == (remat == 'full')
