"""Inheritance by another architecture: the same function where that is possible, else slices."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from tests.factories import tiny
from tests.servers.processes import on_devices
from tests.trainer.warm_start.test_warm_start_rules import written
from trainer.experiment import Experiment
from trainer.layers import (
    LSTM,
    RGLRU,
    Attention,
    DepthwiseConv1D,
    Experts,
    FeedForward,
    GatedDeltaNet,
    GatedFeedForward,
    Gaussian,
    Identity,
    LatentAttention,
    Layer,
    LayerNorm,
    Mamba2,
    RelativeBias,
    Residual,
    Stack,
    TransformerBlock,
)
from trainer.layers.base import PARAMS
from trainer.program.setup import compiled, localized
from trainer.state import TrainState
from trainer.symbolic.errors import UserError
from trainer.warm_start.inheritance import Recipe, head_orders, matching_blocks, recipes
from trainer.warm_start.warm_start import WarmStartLoader, warm_start_sources
from trainer.warm_start_rules import FILE, Inheritance

IDS = np.arange(16).reshape(2, 8) % tiny.VOCAB


def stacked(*layers: Layer, scan: str = 'never', **fields: Any) -> Experiment:
    stack = Stack([layer.clone(deep=True) for layer in layers], scan=scan)
    return tiny.experiment(task__model__stack=stack, **fields)


def attention(heads: int, shared: int | None = None, **fields: Any) -> Residual:
    return Residual(Attention(heads, head_dim=8, num_kv_heads=shared), **fields)


def mixed_attention(heads: int) -> Residual:
    names = ('query_convolution', 'key_convolution', 'value_convolution')
    return attention(heads).rebind({f'layer.{name}': DepthwiseConv1D(2) for name in names})


def sinking(heads: int, shared: int) -> Residual:
    return attention(heads, shared).rebind({'layer.sinks': True})


def biased_attention(heads: int) -> Residual:
    position = RelativeBias(8, max_distance=6, init=Gaussian(1.0))
    return attention(heads, 2).rebind({'layer.position': position})


def combined(heads: int, shared: int) -> Residual:
    fields = {'combine_qkv': True, 'bias': ['query', 'key'], 'sinks': True}
    return attention(heads, shared).rebind({f'layer.{name}': of for name, of in fields.items()})


def deltanet(heads: int) -> Residual:
    return Residual(GatedDeltaNet(heads, head_dim=4, value_dim=4))


def latent(heads: int, **fields: Any) -> Residual:
    return Residual(LatentAttention(heads, 6, head_dim=4, **fields))


def plain(width: int, **fields: Any) -> Residual:
    return Residual(FeedForward(width, bias='zeros'), **fields)


def gated(width: int) -> Residual:
    return Residual(GatedFeedForward(width))


def experts(width: int) -> Residual:
    return Residual(Experts(4, width))


def inherited(
    parent: Experiment, child: Experiment, directory: Path, seed: int = 5
) -> tuple[TrainState, TrainState]:
    """The state of the parent, and that of the child that begins with it."""
    before = written(parent, directory / 'checkpoints')
    child = child.clone(deep=True)
    child.rebind({'train.init_from_checkpoint': Inheritance(str(directory / 'checkpoints'))})
    program, values = compiled(localized(child))
    loader = WarmStartLoader(child, warm_start_sources(child, '/nowhere'), program)
    state = loader.load(program.random_key(seed), values)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, program.abstract_state
    )
    loader.write_provenance(epath.Path(directory))
    return before, jax.device_get(state)


def logits(made: Experiment, state: TrainState) -> Any:
    model = made.task.model
    return np.asarray(model.module().apply({PARAMS: state.params}, IDS))


PRESERVING = {
    'wider feed-forward': ([plain(8)], [plain(12)]),
    'wider gated feed-forward': ([gated(8)], [gated(24)]),
    'more heads': ([attention(2)], [attention(4)]),
    'more heads of shared keys': ([attention(2, 1)], [attention(4, 1)]),
    'more keys': ([attention(4, 1)], [attention(4, 2)]),
    'more heads and keys': ([attention(2, 1)], [attention(4, 2)]),
    'more heads of several keys': ([attention(2, 2)], [attention(4, 2)]),
    'more heads with convolutions': ([mixed_attention(2)], [mixed_attention(4)]),
    'more heads with sinks': ([sinking(2, 1)], [sinking(4, 2)]),
    'more heads with a learned bias': ([biased_attention(2)], [biased_attention(4)]),
    'more heads of one kernel': ([combined(4, 2)], [combined(6, 3)]),
    'more taps': ([Residual(DepthwiseConv1D(3))], [Residual(DepthwiseConv1D(5))]),
    'a deeper stack': ([plain(8)] * 2, [plain(8)] * 4),
    'a block inserted': ([attention(2), plain(8)], [attention(2), gated(8), plain(8)]),
    'a block in place of none': ([Identity(), plain(8)], [attention(2), plain(8)]),
    'a new convolution': ([plain(8)], [plain(8), Residual(DepthwiseConv1D(3))]),
    'a new block that normalizes last': ([plain(8)], [plain(8), plain(8, norm_policy='post')]),
    'a new block that normalizes twice': (
        [plain(8)],
        [plain(8), attention(2, norm_policy='primer_hybrid', norm=LayerNorm())],
    ),
    'wider experts': ([experts(4)], [experts(8)]),
    'new experts': ([plain(8)], [plain(8), experts(4)]),
    'wider rg-lru': ([Residual(RGLRU(2, width=8))], [Residual(RGLRU(2, width=12))]),
    'more heads of rg-lru': ([Residual(RGLRU(2, width=8))], [Residual(RGLRU(4, width=16))]),
    'more state of mamba-2': ([Residual(Mamba2(4, 4))], [Residual(Mamba2(4, 6))]),
    'more heads of deltanet': ([deltanet(2)], [deltanet(4)]),
    'more heads of latent attention': ([latent(2)], [latent(4)]),
    'latent attention in place of none': ([Identity(), plain(8)], [latent(2), plain(8)]),
    'a deltanet inserted': ([attention(2)], [attention(2), deltanet(2)]),
    'wider lstm': ([Residual(LSTM(6))], [Residual(LSTM(9))]),
    'a mixer in place of none': ([Identity(), plain(8)], [Residual(Mamba2(4, 4)), plain(8)]),
    'whole blocks': (
        [TransformerBlock(Attention(2), FeedForward(8))],
        [TransformerBlock(Attention(2), FeedForward(16))] * 2,
    ),
    'wider scanned blocks, and more of them': (
        [TransformerBlock(Attention(2), FeedForward(8))] * 2,
        [TransformerBlock(Attention(2), FeedForward(16))] * 3,
    ),
}


@pytest.mark.parametrize('case', PRESERVING)
@pytest.mark.slow
def test_a_larger_child_computes_the_function_of_its_parent(case: str, tmp_path: Path) -> None:
    there, here = PRESERVING[case]
    # Scanned blocks stay so, others become so.
    scan = 'always' if 'scanned' in case else 'never'
    parent, child = stacked(*there, scan=scan), stacked(*here, scan='always')
    before, after = inherited(parent, child, tmp_path)
    expected = logits(parent, before)
    np.testing.assert_allclose(logits(child, after), expected, atol=2e-4 * np.abs(expected).max())


def test_another_number_of_experts_is_a_new_layer() -> None:
    def shapes(number: int) -> dict[str, tuple[int, ...]]:
        up, down = (number, 16, 8), (number, 8, 16)
        kernels = {'up': up, 'gate': up, 'down': down, 'router.kernel': (16, number)}
        return {f'stack.layers_0.layer.{name}': shape for name, shape in kernels.items()}

    branches: Any = {'stack.layers_0.layer': None}
    same, other = (recipes(shapes(number), shapes(4), branches) for number in (4, 8))
    assert all(recipe.source == name for name, recipe in same.items())
    # The rest of the experts would be chosen otherwise, so the branch begins with zero.
    down = 'stack.layers_0.layer.down'
    assert other == dict.fromkeys(other, Recipe(None)) | {down: Recipe(None, 0.0)}


def test_one_kernel_with_other_queries_for_each_key_is_a_new_layer() -> None:
    def shapes(shared: int, heads: int) -> dict[str, tuple[int, ...]]:
        output = (shared * heads, 8, 16)
        return {'mixer.qkv': (shared + 2, 16, heads, 8), 'mixer.output': output}

    found = recipes(shapes(2, 3), shapes(2, 2), {'mixer': None})
    # Queries of a key stay with it: of three keys, the second one is new.
    assert found['mixer.qkv'].heads == (2, (0, -1, 1))
    assert found['mixer.output'].heads == (0, (0, 1, -1, -1, 2, 3))
    other = recipes(shapes(2, 2), shapes(1, 2), {'mixer': None})
    assert other == {'mixer.qkv': Recipe(None), 'mixer.output': Recipe(None, 0.0)}


@pytest.mark.slow
def test_new_units_differ_and_have_gradients(tmp_path: Path) -> None:
    parent, child = stacked(plain(4)), stacked(plain(8))
    _, state = inherited(parent, child, tmp_path)
    weights = state.params['stack']['layers_0']['layer']
    assert len({column.tobytes() for column in weights['up'].T}) == 8
    assert np.all(weights['down'][4:] == 0)

    def loss(params: Any) -> jax.Array:
        logits_BTV: Any = child.task.model.module().apply({PARAMS: params}, IDS)
        return jax.numpy.sum(logits_BTV[..., 0])

    gradients = jax.grad(loss)(state.params)['stack']['layers_0']['layer']['down'][4:]
    assert np.all(np.any(gradients != 0, axis=1))


@pytest.mark.slow
def test_narrower_layers_keep_first_units_and_spread_heads(tmp_path: Path) -> None:
    parent, child = stacked(gated(8), attention(4)), stacked(gated(5), attention(2))
    before, after = inherited(parent, child, tmp_path)
    old, new = before.params['stack'], after.params['stack']
    for name in ('gate', 'up'):
        np.testing.assert_array_equal(
            new['layers_0']['layer'][name], old['layers_0']['layer'][name][:, :5]
        )
    np.testing.assert_array_equal(
        new['layers_0']['layer']['down'], old['layers_0']['layer']['down'][:5]
    )
    np.testing.assert_array_equal(
        new['layers_1']['layer']['query'], old['layers_1']['layer']['query'][:, ::2]
    )


@pytest.mark.slow
def test_a_seed_decides_the_new_units(tmp_path: Path) -> None:
    parent, child = stacked(plain(4)), stacked(plain(8))
    found = [
        inherited(parent, child, tmp_path / str(i), seed)[1].params['stack']['layers_0']['layer']
        for i, seed in enumerate([1, 1, 2])
    ]
    np.testing.assert_array_equal(found[0]['up'], found[1]['up'])
    np.testing.assert_array_equal(found[0]['up'][:, :4], found[2]['up'][:, :4])
    assert np.all(found[0]['up'][:, 4:] != found[2]['up'][:, 4:])


@pytest.mark.slow
def test_another_width_of_the_model_keeps_slices(tmp_path: Path) -> None:
    parent = stacked(plain(8))
    child = stacked(plain(8), task__model__embedding__dims=24)
    before, after = inherited(parent, child, tmp_path)
    np.testing.assert_array_equal(
        after.params['embedding']['table'][:, :16], before.params['embedding']['table']
    )
    assert np.all(np.isfinite(logits(child, after)))


_SHARDED = """
from pathlib import Path
import jax
import numpy as np
from tests.trainer.warm_start.test_inheritance import attention, inherited, plain, stacked
from trainer.mesh import Mesh

parent, child = stacked(plain(7), attention(2)), stacked(plain(8), attention(4))
found = []
for name, mesh in (('alone', Mesh(data=8)), ('sharded', Mesh(data=2, fsdp=2, tensor=2))):
    parent.rebind({'mesh': Mesh(data=8)})
    child.rebind({'mesh': mesh})
    found.append(inherited(parent, child, Path(DIRECTORY) / name)[1])
jax.tree.map(np.testing.assert_array_equal, *found)
print('equal')
"""


@pytest.mark.slow
def test_a_sharded_child_inherits_what_an_unsharded_one_inherits(tmp_path: Path) -> None:
    assert 'equal' in on_devices(f'DIRECTORY = {str(tmp_path)!r}\n{_SHARDED}')


@pytest.mark.slow
def test_provenance_names_the_inherited_block(tmp_path: Path) -> None:
    inherited(stacked(attention(2), plain(8)), stacked(attention(2), gated(8), plain(12)), tmp_path)
    arrays = json.loads((tmp_path / FILE).read_text())['arrays']
    assert arrays['params.stack.layers_2.layer.up']['name'] == 'params.stack.layers_1.layer.up'
    assert arrays['params.stack.layers_1.layer.up'] is None


def test_models_with_nothing_in_common_are_refused() -> None:
    from trainer.warm_start.inheritance_plan import inherited as plan

    with pytest.raises(UserError, match='no array in common'):
        plan({'params.a.kernel': (2, 2)}, {'params.b.kernel': (2, 2)}, {})


def test_blocks_match_by_position_then_by_content() -> None:
    attends, feeds = {'layer.query': (32, 32), 'norm.scale': (32,)}, {'layer.up': (32, 32)}
    mixes = {'layer.kernel': (32, 32), 'norm.scale': (32,)}
    assert matching_blocks([attends, feeds, mixes], [attends, mixes, feeds]) == [0, 2, 1]
    assert matching_blocks([attends, mixes], [attends, attends]) == [0, None]
    assert matching_blocks([attends], []) == [None]
    wide = {'layer.query': (32, 64), 'norm.scale': (32,)}
    assert matching_blocks([wide, attends], [attends, attends]) == [0, 1]


@pytest.mark.parametrize('old', [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize('new', [(4, 1), (4, 2), (4, 4), (8, 2), (8, 4)])
def test_each_query_head_reads_the_keys_that_it_read(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    queries, shared = head_orders(old, new)
    kept = [head for head in queries if head >= 0]
    assert len(kept) == len(set(kept))
    if new[1] >= old[1] and new[0] >= old[0]:
        assert sorted(kept) == list(range(old[0]))
        for slot, head in enumerate(queries):
            if head >= 0:
                assert shared[slot * new[1] // new[0]] == head * old[1] // old[0]


def test_a_layer_with_a_gate_is_a_new_one() -> None:
    there = {'ff.up': (4, 8), 'ff.down': (8, 4), 'norm.scale': (4,)}
    found = recipes(there | {'ff.gate': (4, 8)}, there, {'ff': None})
    assert {name for name, each in found.items() if each.source} == {'norm.scale'}
    assert found['ff.down'].fill == 0.0


def test_image_kernels_of_another_size_have_the_same_center() -> None:
    small, large = np.ones((3, 3, 2, 2)), np.zeros((5, 5, 2, 2))
    padded = np.pad(small, [(1, 1), (1, 1), (0, 0), (0, 0)])
    np.testing.assert_array_equal(Recipe('kernel').apply(large, small), padded)
    np.testing.assert_array_equal(Recipe('kernel').apply(np.zeros_like(small), padded), small)


def test_running_statistics_belong_to_the_block_of_the_parameters() -> None:
    from trainer.warm_start.inheritance_plan import inherited as plan

    def shapes(*kernels: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for index, kernel in enumerate(kernels):
            found[f'params.layers_{index}.conv.kernel'] = (*kernel, 8, 8)
            found[f'params.layers_{index}.norm.scale'] = (8,)
            found[f'non_trainable.layers_{index}.norm.mean'] = (8,)
        return found

    arrays = plan(shapes((3, 3), (5, 5), (1, 1)), shapes((3, 3), (1, 1)), {}).arrays
    sources = {name: layers[0] and layers[0].name for name, _, layers in arrays}
    of_params = [sources[f'params.layers_{index}.norm.scale'] for index in range(3)]
    of_statistics = [sources[f'non_trainable.layers_{index}.norm.mean'] for index in range(3)]
    blocks = [each and each.split('.')[1] for each in of_params]
    assert blocks == [each and each.split('.')[1] for each in of_statistics]
    assert None in blocks and len(set(blocks)) == 3
