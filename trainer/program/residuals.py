"""Memory of the activations that a forward pass keeps for its backward pass, from a trace."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.extend import core
from jax.sharding import NamedSharding

from trainer.layers.base import PARAMS
from trainer.layers.stack import Stack
from trainer.mesh import Arrangement
from trainer.program.costs import divisible
from trainer.program.step_functions import ElementSpec, abstract_metrics
from trainer.symbolic.component import components
from trainer.task import Task

_Shape: TypeAlias = tuple[int, ...]
_Spec: TypeAlias = tuple[Any, ...]


def residual_bytes(task: Task, element_spec: ElementSpec, mesh: Arrangement) -> int | None:
    """Estimates the bytes of activations that a device keeps from the forward to the backward pass.

    The loss is traced, and nothing is compiled. The devices of the mesh need not exist. A kept
    array is divided like the activation of the same shape that a layer has constrained, or else by
    the sizes of its dimensions. A stage of a pipeline keeps those of its own layers. The memory in
    which each pass works is not included, and XLA may compute some of these arrays again.

    Args:
        element_spec: shapes of a batch; with `learner.microbatches`, one of these is traced.
        mesh: divides the activations.

    Returns:
        Bytes; None for a task that has its own step or compares models, whose losses differ.

    Raises:
        UserError: the parts of the model do not fit together, or an activation the mesh.
    """
    whole: Any = dict(element_spec)
    if task.has_own_step or task.compares(whole):
        return None
    spec = divisible(_microbatch(element_spec, task.learner.microbatches), mesh)
    noted = _Noted(mesh)
    metrics, state, (variables, batch, *rest) = abstract_metrics(task, spec, noted)

    def kept(trained: Any, variables: Any, *given: Any) -> Any:
        def loss(trained: Any) -> jax.Array:
            params = unflatten_dict(flatten_dict(variables[PARAMS]) | flatten_dict(trained))
            return metrics({**variables, PARAMS: params}, *given)['loss'].total

        return jax.tree.leaves(jax.vjp(loss, trained)[1])

    trained = task.learner.trained(state.params)
    jaxpr = jax.make_jaxpr(kept)(trained, variables, batch, *rest).jaxpr
    stages = mesh.parts('layers')[0] if _has_pipeline(task) else 1
    return sum(noted.size(x.shape, stages) * x.dtype.itemsize for x in _computed(jaxpr))


def _has_pipeline(task: Task) -> bool:
    stacks = [each for each in components(task.model) if isinstance(each, Stack)]
    return any(stack.pipeline is not None for stack in stacks)


def _microbatch(element_spec: ElementSpec, count: int) -> ElementSpec:
    return {
        name: each.update(shape=(-(-each.shape[0] // count), *each.shape[1:]))
        for name, each in element_spec.items()
    }


def _computed(jaxpr: Any) -> list[Any]:
    """The results that are no arguments, each once."""
    made = {each for equation in jaxpr.eqns for each in equation.outvars}
    results = {each for each in jaxpr.outvars if not isinstance(each, core.Literal)}
    return [each.aval for each in results & made]


class _Noted(Arrangement):
    """An arrangement that collects the specs of activations by shape, and by size of dimension."""

    def __init__(self, mesh: Arrangement) -> None:
        vars(self).update(vars(mesh))
        self._specs: dict[_Shape, _Spec] = {}
        self._by_size: dict[int, Any] = {}

    def activation_sharding(
        self, axes: Sequence[str | None], shape: _Shape, what: str
    ) -> NamedSharding:
        found = super().activation_sharding(axes, shape, what)
        spec = tuple(found.spec)
        self._specs.setdefault(tuple(shape), spec)
        for size, at in zip(shape, spec, strict=True):
            self._by_size.setdefault(size, at)
        return found

    def size(self, shape: _Shape, stages: int) -> int:
        """Number of elements on one device. Arrays of scanned layers have further dimensions."""
        for start in range(len(shape) - 1):
            if (spec := self._specs.get(shape[start:])) is not None:
                stacked = math.prod(shape[:start])
                return stacked // (stages if start else 1) * self._shard(shape[start:], spec)
        seen, places = set[Any](), list[Any]()
        for size in shape:
            at = self._by_size.get(size)
            places.append(None if at in seen else at)
            seen.add(at)
        return self._shard(shape, places)

    def _shard(self, shape: _Shape, spec: Sequence[Any]) -> int:
        sizes = zip(shape, spec, strict=True)
        return math.prod(-(-size // self._parts(at)) for size, at in sizes)

    def _parts(self, axes: Any) -> int:
        names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
        return math.prod(self.shape[name] for name in names)
