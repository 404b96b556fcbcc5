"""The state that a training step changes, and its sharding."""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from trainer.layers.base import NON_TRAINABLE, PARAMS
from trainer.layers.lora import adapters_of
from trainer.layers.parameters import ParameterBox
from trainer.mesh import Arrangement
from trainer.symbolic.errors import UserError

REFERENCE = 'reference'
"""Parameters of the reference model among variables, and its outputs in a batch."""


@flax.struct.dataclass
class TrainState:
    """The state of training; everything else is a function of the experiment.

    Attributes:
        step: number of optimizer steps, int32 scalar.
        params: the parameters, in `task.param_dtype`, by the path of their layers.
        non_trainable: other variables of layers, float32, such as running means.
        opt_state: the state of the optimizer.
        ema_params: averages of the parameters over steps, in the same tree, float32; {} without
            averages. A model with adapters has averages of them alone.
        reference_params: the trained parameters as the run began with them, for a task that
            compares its model with them; {} for others.
    """

    step: jax.Array
    params: Any
    non_trainable: Any
    opt_state: Any
    ema_params: Any
    reference_params: Any = flax.struct.field(default_factory=dict)

    @property
    def variables(self) -> dict[str, Any]:
        """Variables for evaluation and decoding, with the averaged parameters if there are any."""
        params = unflatten_dict(flatten_dict(self.params) | flatten_dict(self.ema_params))
        reference = {REFERENCE: self.reference_params} if self.reference_params else {}
        return {PARAMS: params, NON_TRAINABLE: self.non_trainable, **reference}


def without_frozen(state: TrainState) -> TrainState:
    """The same without the frozen parameters beside adapters; all of it if there are none."""
    return dataclasses.replace(state, params=adapters_of(state.params))


def frozen_of(state: TrainState) -> dict[Any, Any]:
    """The frozen parameters beside adapters, by path."""
    trained = flatten_dict(adapters_of(state.params))
    return {path: x for path, x in flatten_dict(state.params).items() if path not in trained}


def with_frozen(state: TrainState, frozen: dict[Any, Any]) -> TrainState:
    """The state of which `without_frozen` and `frozen_of` are the parts."""
    params = unflatten_dict(frozen | flatten_dict(state.params))
    return dataclasses.replace(state, params=params)


def _is_box(value: Any) -> bool:
    return isinstance(value, ParameterBox)


def decay_mask(boxed_params: Any) -> Any:
    """A tree like the unboxed parameters, True where weight decay applies."""
    return jax.tree.map(lambda box: box.decay, boxed_params, is_leaf=_is_box)


def matrices(boxed_params: Any) -> Any:
    """A tree like the unboxed parameters, with `MatrixAxes` of hidden matrices; None for others."""
    return jax.tree.map(lambda box: box.matrix_axes, boxed_params, is_leaf=_is_box)


def unboxed(boxed_params: Any) -> Any:
    """Removes the metadata of parameters."""
    return nn.meta.unbox(boxed_params)


def params_shardings(boxed_params: Any, mesh: Arrangement) -> Any:
    """Shardings of the parameters, by the logical axes in their metadata.

    Raises:
        UserError: an axis has no rule, or a dimension does not divide evenly. The message has the
            path of the parameter.
    """
    uneven: list[UserError] = []

    def of(path: Any, box: ParameterBox) -> NamedSharding | None:
        name = 'parameter ' + '.'.join(str(part.key) for part in path)
        try:
            return mesh.sharding(box.names, box.value.shape, name)
        except UserError as error:
            uneven.append(error)
            return None

    found = jax.tree_util.tree_map_with_path(of, boxed_params, is_leaf=_is_box)
    if len(uneven) > 1:
        raise UserError(f'{uneven[0]} ({len(uneven) - 1} more parameters do not fit)')
    if uneven:
        raise uneven[0]
    return found


def state_shardings(abstract: TrainState, params: Any, mesh: Arrangement) -> Any:
    """Shardings of a train state, for any optimizer.

    A leaf of the optimizer state with the path and the shape of a parameter (a moment) is sharded
    like that parameter. All others (counters, factored moments) are replicated.
    """
    shapes = dict(jax.tree_util.tree_leaves_with_path(abstract.params))
    of_param = dict(jax.tree_util.tree_leaves_with_path(params))
    replicated: Any = mesh.placed(PartitionSpec())

    def of_leaf(path: Any, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        for start in range(len(path)):
            param = shapes.get(path[start:])
            if param is not None and param.shape == leaf.shape:
                return of_param[path[start:]]
        return replicated

    opt_state = jax.tree_util.tree_map_with_path(of_leaf, abstract.opt_state)
    return TrainState(
        step=replicated,
        params=params,
        non_trainable=jax.tree.map(lambda _: replicated, abstract.non_trainable),
        opt_state=opt_state,
        ema_params=jax.tree_util.tree_map_with_path(
            lambda path, _: of_param[path], abstract.ema_params
        ),
        reference_params=jax.tree_util.tree_map_with_path(
            lambda path, _: of_param[path], abstract.reference_params
        ),
    )
