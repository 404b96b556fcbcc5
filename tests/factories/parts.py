"""Single layers, and steps of a learner without a model."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.conformance.optimizer_suite import MASK, PARAMS, gradients_of
from trainer.layers import Layer, Positions
from trainer.layers.base import CACHE, ForwardContext, forward_context
from trainer.learner import Learner
from trainer.mesh import Arrangement, Mesh
from trainer.metrics import Metrics, WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import bind, numbers


def init(layer: Layer, *args: Any) -> Any:
    """New variables, without their metadata."""
    return nn.meta.unbox(layer.module().init({'params': jax.random.key(0)}, *args))


def apply(layer: Layer, variables: Any, *args: Any) -> Any:
    """The result in evaluation."""
    return layer.module().apply(variables, *args)


def new_params(layer: Layer, *args: Any) -> Any:
    """New parameters, without their metadata."""
    boxed = jax.jit(layer.module().init)({'params': jax.random.key(0)}, *args)
    return nn.meta.unbox(boxed['params'])


def applied(layer: Layer, params: Any, *args: Any, **fields: Any) -> Any:
    """The result of a layer with these parameters; `fields` are those of `ForwardContext`."""
    with forward_context(ForwardContext(**fields)):
        rngs = {'dropout': jax.random.key(1)}
        return jax.jit(layer.module().apply)({'params': params}, *args, rngs=rngs)


def meshes_of_sequences() -> dict[str, Arrangement]:
    """Meshes of one device, and of eight that share the positions of a sequence."""
    eight = {
        'positions': Mesh(data=2, sequence=4),
        'mixed': Mesh(data=2, sequence=2, tensor=2),
    }
    one = Mesh(data=1).make(jax.devices()[:1])
    return {'one device': one} | {name: each.make(jax.devices()) for name, each in eight.items()}


def on_meshes_of_sequences(layer: Layer, variables: Any, *args: Any) -> dict[str, list[Any]]:
    """Results and gradients on each of these meshes, flat, as JSON has them."""
    out = {}
    for name, mesh in meshes_of_sequences().items():

        def loss(params: Any, mesh: Arrangement = mesh) -> Any:
            with forward_context(ForwardContext(mesh=mesh)):
                y: Any = layer.module().apply({'params': params}, *args)
            return jnp.sum(jnp.sin(y)), y

        graded = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, y), gradients = graded(variables['params'])
        out[name] = [np.asarray(each).ravel().tolist() for each in jax.tree.leaves((y, gradients))]
    return out


def rotated(x_BTNH: np.ndarray, index_BT: np.ndarray, wavelength: float) -> np.ndarray:
    """Rotary positions (Su et al. 2021): pair i turns by position * wavelength^(-2i / H)."""
    dims = x_BTNH.shape[-1]
    return turned(x_BTNH, index_BT, [wavelength ** (-2 * i / dims) for i in range(dims // 2)])


def turned(
    x_BTNH: np.ndarray, index_BT: np.ndarray, frequencies: Sequence[float], scale: float = 1.0
) -> np.ndarray:
    """Complex numbers that turn by position * frequency, one feature and token at a time.

    Features i and i + half are one number, where the half is as long as the frequencies. The
    features that are left over stay as they are.
    """
    half, out = len(frequencies), np.array(x_BTNH, np.float64)
    for b, t, i in np.ndindex(*index_BT.shape, half):
        pair_N = scale * (x_BTNH[b, t, :, i] + 1j * x_BTNH[b, t, :, i + half])
        pair_N = pair_N * np.exp(1j * index_BT[b, t] * frequencies[i])
        out[b, t, :, i], out[b, t, :, i + half] = pair_N.real, pair_N.imag
    return out


def token_by_token(layer: Layer, variables: Any, x_BTD: jax.Array, lengths: list[int]) -> Any:
    """The results of incremental decoding: whole prompts first, then one position per call.

    Args:
        layer: any that takes positions and keeps the shape.
        variables: its own.
        x_BTD: the sequences.
        lengths: how long the prompt of each is. A shorter one is filled up with what is not there.
    """
    examples, length, _ = x_BTD.shape
    rows, longest, lengths_B = np.arange(examples), max(lengths), np.array(lengths)

    def extend(cache: Any, x: Any, positions: Positions) -> Any:
        with forward_context(ForwardContext(cache_length=length)):
            given = variables | ({} if cache is None else {CACHE: cache})
            out, left = layer.module().apply(given, x, positions, mutable=[CACHE])
        return left[CACHE], out

    extend_jit = jax.jit(extend)
    is_prompt_BP1 = (np.arange(longest) < lengths_B[:, None])[:, :, None]
    prompts_BPD = jnp.where(is_prompt_BP1, x_BTD[:, :longest], 9.0)
    positions = Positions.unpacked(prompts_BPD.shape[:2])
    cache, out = extend_jit(None, prompts_BPD, positions._replace(lengths_B=jnp.asarray(lengths_B)))
    written = np.zeros(x_BTD.shape, out.dtype)
    written[:, :longest] = out
    for step in range(length - min(lengths)):
        at_B = np.minimum(lengths_B + step, length - 1)
        cache, out = extend_jit(cache, x_BTD[rows, at_B][:, None], Positions(at_B[:, None]))
        goes_on = lengths_B + step < length
        written[rows[goes_on], at_B[goes_on]] = out[goes_on, 0]
    return written


GRADIENTS = gradients_of(PARAMS)


def stepped(
    learner: Learner,
    count: int = 1,
    params: Any = PARAMS,
    gradients: Any = GRADIENTS,
    mask: Any = MASK,
    matrices: Any = None,
) -> tuple[TrainState, Metrics]:
    """The state after some steps with the same gradients, and the metrics of the last."""

    @jax.jit
    def step(state: TrainState, values: Any) -> tuple[TrainState, Metrics]:
        bound = bind(learner, values)
        loss = WeightedScalar(jnp.ones(()), jnp.ones(()))
        given = state, bound.trained(gradients), loss, mask
        update = bound.update(*given, matrices=matrices)
        return update.state({}), update.metrics

    opt_state = jax.jit(lambda params: learner.init(params, mask, matrices))(params)
    ema_params = learner.init_ema(params)
    state = TrainState(jnp.zeros((), jnp.int32), params, {}, opt_state, ema_params)
    for _ in range(count):
        state, metrics = step(state, numbers(learner))
    return state, metrics
