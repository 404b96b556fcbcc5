"""Steps of a learner without a model."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.conformance.optimizer_suite import MASK, PARAMS, gradients_of
from trainer.learner import Learner
from trainer.metrics import Metrics, WeightedScalar
from trainer.state import TrainState
from trainer.symbolic.component import bind, numbers

GRADIENTS = gradients_of(PARAMS)


def stepped(
    learner: Learner,
    count: int = 1,
    params: Any = PARAMS,
    gradients: Any = GRADIENTS,
    mask: Any = MASK,
) -> tuple[TrainState, Metrics]:
    """The state after some steps with the same gradients, and the metrics of the last."""

    @jax.jit
    def step(state: TrainState, values: Any) -> tuple[TrainState, Metrics]:
        bound = bind(learner, values)
        loss = WeightedScalar(jnp.ones(()), jnp.ones(()))
        update = bound.update(state, bound.trained(gradients), loss, mask)
        return update.state({}), update.metrics

    opt_state = jax.jit(lambda params: learner.init(params, mask))(params)
    ema_params = learner.init_ema(params)
    state = TrainState(jnp.zeros((), jnp.int32), params, {}, opt_state, ema_params)
    for _ in range(count):
        state, metrics = step(state, numbers(learner))
    return state, metrics
