"""The implementation of attention, up to the call of its kernel: no GPU is there to run it."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.factories.parts import apply, init
from tests.servers.processes import on_devices
from trainer.layers import Attention, Positions
from trainer.layers.base import ForwardContext, forward_context
from trainer.layers.cross_attention import CrossAttention, Memory
from trainer.symbolic.errors import UserError

_X_BTD = jnp.ones((1, 8, 16))
_KERNEL = jax.nn.dot_product_attention

Calls = list[dict[str, Any]]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """Arguments of the calls of the kernel in bfloat16, as on a GPU; XLA's computes."""
    calls = []

    def kernel(query: Any, *args: Any, implementation: str | None, **given: Any) -> Any:
        calls.append(given | {'implementation': implementation, 'dtype': str(query.dtype)})
        return _KERNEL(query, *args, **given)

    monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)
    monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
    with forward_context(ForwardContext(dtype=jnp.bfloat16)):
        yield calls


def fused(**fields: Any) -> Attention:
    return Attention(2, implementation='cudnn', **fields)


@pytest.mark.pax('Fused attention of')
def test_cudnn_attends_in_bfloat16_once_parameters_are_initialized(on_a_gpu: Calls) -> None:
    with forward_context(ForwardContext()):
        variables = init(fused(), _X_BTD)
    apply(fused(), variables, _X_BTD.astype(jnp.bfloat16))
    kernels = [(each['implementation'], each['dtype']) for each in on_a_gpu]
    assert kernels == [(None, 'float32'), ('cudnn', 'bfloat16')]


def test_cudnn_has_the_window_and_no_mask(on_a_gpu: Calls) -> None:
    x_BTD = jax.random.normal(jax.random.key(0), (2, 12, 16), jnp.bfloat16)
    variables = init(Attention(2), x_BTD)
    given, expected = (
        apply(layer, variables, x_BTD)
        for layer in (fused(window=4), Attention(2, window=4, implementation='xla'))
    )
    assert on_a_gpu[-2]['mask'] is None and on_a_gpu[-2]['local_window_size'] == (3, 0)
    np.testing.assert_allclose(given, expected, atol=2e-2)


def test_cudnn_has_masks_of_all_queries_and_keys(on_a_gpu: Calls) -> None:
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]])
    positions = Positions(jnp.arange(8)[None], segments)
    variables = init(fused(), _X_BTD)
    apply(fused(), variables, _X_BTD.astype(jnp.bfloat16), positions)
    assert on_a_gpu[-1]['mask'].shape == (1, 1, 8, 8)
    layer = CrossAttention(2, implementation='cudnn')
    memory = Memory(_X_BTD.astype(jnp.bfloat16), jnp.ones((1, 8), int))
    rows = _X_BTD[:, :4].astype(jnp.bfloat16), Positions.unpacked((1, 4)), memory
    apply(layer, init(layer, *rows), *rows)
    assert on_a_gpu[-1]['mask'].shape == (1, 1, 4, 8)


@pytest.mark.parametrize(
    ('shape', 'dtype', 'message'),
    [
        ((1, 8, 16), 'float32', r"only in bfloat16: set task\.fprop_dtype='bfloat16'"),
        ((1, 8, 24), 'bfloat16', 'heads of a multiple of 8 up to 256, and these are 12 wide'),
        ((1, 7, 16), 'bfloat16', 'trains on sequences of even length, and one has 7 positions'),
    ],
)
def test_cudnn_refuses_shapes_and_dtypes_without_a_kernel(
    shape: tuple[int, ...], dtype: str, message: str, on_a_gpu: Calls
) -> None:
    x_BTD = jnp.ones(shape, dtype)
    with (
        forward_context(ForwardContext(training=True, dtype=jnp.dtype(dtype))),
        pytest.raises(UserError, match=message),
    ):
        apply(fused(), init(fused(), x_BTD), x_BTD)


def test_cudnn_is_refused_without_a_gpu() -> None:
    with pytest.raises(UserError, match=r"implementation='cudnn' needs a GPU.*a cpu: use 'auto'"):
        apply(fused(), init(fused(), _X_BTD), _X_BTD)


_SCRIPT = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from tests.factories.parts import init, meshes_of_sequences
from trainer.layers import Attention, Positions
from trainer.layers.base import ForwardContext, forward_context
from trainer.symbolic.errors import UserError

kernel, shapes = jax.nn.dot_product_attention, []

def on_cpu(query, *args, implementation, mask, **given):
    shapes.append(None if implementation is None else mask.shape)
    return kernel(query, *args, mask=mask, **given)

x = jax.random.normal(jax.random.key(0), (4, 8, 32))
segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0]] * 2)
positions = Positions.unpacked((4, 8))._replace(segment_BT=segments)
variables = init(Attention(4, num_kv_heads=2), x)
jax.nn.dot_product_attention, jax.default_backend = on_cpu, lambda: 'gpu'
out = {'masks': shapes}
for name, made in meshes_of_sequences().items():

    @jax.jit
    def forward(params):
        layer = Attention(4, num_kv_heads=2, implementation='cudnn').module()
        with forward_context(ForwardContext(mesh=made, dtype=jnp.bfloat16)):
            return layer.apply({'params': params}, x, positions)

    out[name] = np.asarray(forward(variables['params']), np.float32).tolist()
odd = Attention(6, head_dim=8, implementation='cudnn').module()
with forward_context(ForwardContext(mesh=made, dtype=jnp.bfloat16, training=True)):
    given = jax.eval_shape(odd.init, jax.random.key(0), x)
    try:
        jax.eval_shape(odd.apply, given, x)
    except UserError as error:
        out['refused'] = str(error)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_cudnn_has_whole_rows_of_a_part_of_the_heads_on_a_mesh_that_shards_positions() -> None:
    out = json.loads(on_devices(_SCRIPT))
    assert out['refused'].endswith(
        'divides heads over mesh.tensor × mesh.sequence, but its 6 heads do not divide over 4 '
        "devices: use 'auto', which divides positions, or another mesh"
    )
    assert out['masks'][:3] == [[4, 1, 8, 8]] * 3
    for name in ('positions', 'mixed'):
        np.testing.assert_allclose(out[name], out['one device'], atol=1e-2)
