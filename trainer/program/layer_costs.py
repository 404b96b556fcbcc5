import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax

from trainer.experiment import Experiment
from trainer.layers.base import Layer, LayerModule
from trainer.layers.stack import Stack
from trainer.program.costs import abstract_loss, training_flops
from trainer.program.flops import flops_by_scope
from trainer.task import Task

Path: TypeAlias = tuple[str, ...]

_SCOPE = 'layer:'
_SCOPES = re.compile(rf'{_SCOPE}([\w.]*)')


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """Cost of one layer.

    Attributes:
        place: path of the field of the model that contains it: 'embedding'; '' for the model
            itself.
        index: its index, if the field is a list of layers; repeated layers of a stack continue the
            count.
        is_complete: False if layers inside this one have costs of their own.
        num_params: number of parameters, frozen ones included.
        flops_per_token: operations of training on a token, forward and backward.
    """

    place: str
    index: int | None
    layer: Layer
    is_complete: bool
    num_params: int
    flops_per_token: float


@dataclasses.dataclass(frozen=True)
class _Part:
    """A listed layer and the location of its parameters.

    Attributes:
        scope: prefix of the names of its parameters.
        of: number of scanned layers with parameters at this scope.
        times: number of applications of each, by itself and by layers that share it.
        is_shared: True if it has the parameters of the layer before it.
    """

    scope: Path
    place: str
    index: int | None
    layer: Layer
    is_complete: bool
    of: int = 1
    times: int = 1
    is_shared: bool = False


def layer_costs(experiment: Experiment) -> list[LayerCost]:
    """Computes the cost of each layer of a model, in the order in which they run.

    The list contains the layers of the model. A stack, or a layer that contains one, is replaced
    by its layers. A parameter belongs to the layer that owns it. Operations belong to the layer
    whose method runs them: logits that share the table of the embedding count for the embedding.
    The costs of the model itself come first.

    The model is traced: nothing is compiled, and no data is read.

    Returns:
        Costs, which add up to `trainer.program.costs.static_costs`.

    Raises:
        UserError: the model does not fit together.
    """
    task = experiment.task
    loss, state, args = abstract_loss(task, experiment.train_input.element_spec())
    ran: dict[Path, Layer] = {}
    operations = flops_by_scope(_watched(loss, ran), _SCOPES, *args)
    parts = list(_parts((), ran, task))
    by_path = {tuple(filter(None, scope.split('.'))): n for scope, n in operations.items()}
    flops = _divided(by_path, parts)
    params = _divided(_sizes(state.params), parts)
    num_tokens = task.num_tokens(args[1])
    found = [
        LayerCost(
            part.place,
            part.index,
            part.layer,
            part.is_complete,
            0 if part.is_shared else params[part.scope] // part.of,
            training_flops(flops[part.scope] // (part.of * part.times), num_tokens),
        )
        for part in parts
    ]
    return [each for each in found if each.is_complete or each.num_params or each.flops_per_token]


def _watched(function: Callable[..., Any], ran: dict[Path, Layer]) -> Callable[..., Any]:
    """Wraps a function: each layer becomes a scope, and `ran` collects the layers by path."""

    def intercept(run: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if context.method_name != '__call__':
            return run(*args, **kwargs)
        if isinstance(module, LayerModule):
            ran.setdefault(module.path, module.layer)
        with jax.named_scope(_SCOPE + '.'.join(module.path)):
            return run(*args, **kwargs)

    def watched(*args: Any) -> Any:
        with nn.intercept_methods(intercept):
            return function(*args)

    return watched


def _parts(path: Path, ran: Mapping[Path, Layer], task: Task) -> Iterator[_Part]:
    # The layers that ran have tracers in place of numbers.
    layer = (ran[path].sym_path - task.sym_path).query(task)
    if isinstance(layer, Stack):
        yield from _parts_of_stack(path, layer)
        return
    inside = [other for other in ran if other != path and other[: len(path)] == path]
    is_complete = bool(path) and not any(isinstance(ran[other], Stack) for other in inside)
    below = [] if is_complete else [other for other in inside if len(other) == len(path) + 1]
    yield _Part(path, *_place(path, layer), layer, not below)
    for lower in below:
        yield from _parts(lower, ran, task)


def _parts_of_stack(path: Path, stack: Stack) -> Iterator[_Part]:
    found: dict[int, _Part] = {}
    for stored in stack.storage():
        scope, of = (*path, stored.name), len(stored.layers)
        for first, time in itertools.product(stored.indices, range(stored.times)):
            index = first + time
            layer = stack.layers[index % len(stack.layers)]
            found[index] = _Part(
                scope, '.'.join(path), index, layer, True, of, stored.times, is_shared=time > 0
            )
    yield from (found[index] for index in sorted(found))


def _place(path: Path, layer: Layer) -> tuple[str, int | None]:
    if path and path[-1] == layer.scope_name() and isinstance(layer.sym_path.key, int):
        index = layer.sym_path.key
        return '.'.join((*path[:-1], path[-1].removesuffix(f'_{index}'))), index
    return '.'.join(path), None


def _divided(amounts: Mapping[Path, int], parts: Sequence[_Part]) -> Counter[Path]:
    """Sums amounts by the scope of the innermost part that contains them."""
    scopes = {part.scope for part in parts}
    found: Counter[Path] = Counter()
    for path, amount in amounts.items():
        owner = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in scopes), ())
        found[owner] += amount
    return found


def _sizes(params: Any) -> dict[Path, int]:
    return {
        tuple(str(part.key) for part in path): leaf.size
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
