"""The layers of a stack in the stages of a pipeline: their parameters, keys, losses and context."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax

from trainer.layers.base import AUX_LOSS, PARAMS, SUMMARIES, Keys, Layer, current_frame
from trainer.layers.context import current_context, forward_context
from trainer.layers.pipeline import Schedule
from trainer.layers.scanned import ScannedLayer
from trainer.layers.stages import through_stages
from trainer.symbolic.errors import UserError


def pipelined(
    schedule: Schedule,
    layers: Mapping[str, Layer],
    own: Any,
    x: jax.Array,
    args: Any,
    remat: Callable[[Any], Any] | None,
) -> jax.Array:
    """Applies scanned layers of the running stack in stages, as `nn.scan` of `ScanStep` does.

    Stages are no transformation of flax: its `vmap` would store parameters by stage. The stack
    reads its own parameters, and the layers run as functions of them.

    Args:
        layers: one layer of each part of a period, by the name of the part.
        own: numbers and keys of all layers, as `ScanStep` takes them.
        args: other arguments of each layer. The first axis of their arrays is the examples.
        remat: transforms the function of a layer, so that its backward pass computes parts again.
    """
    module, context = current_frame().module, current_context()
    mesh = context.mesh
    assert mesh is not None
    for array in jax.tree.leaves(args):
        if array.shape[:1] != x.shape[:1]:
            raise UserError(
                f'{current_frame().layer.sym_path}.pipeline: the layers have an argument of shape '
                f'{list(array.shape)}, whose first axis must be the {len(x)} examples: each '
                'microbatch has a part of it'
            )
    stored = module.variables.get(PARAMS, {})
    params = {name: stored.get(name, {}) for name in layers}
    if not jax.tree.leaves(params):
        raise UserError(f'{current_frame().layer.sym_path}.pipeline: the layers have no parameters')
    made = [name for name in (AUX_LOSS, SUMMARIES) if module.is_mutable_collection(name)]
    labels = None if context.label_weights is None else context.label_weights()

    def run_layers(params: Any, own: Any, x: jax.Array, given: Any, microbatch: Any) -> Any:
        args, example_weights, labels = given
        inside = dataclasses.replace(
            context,
            mesh=mesh.inside_shard_map(),
            example_weights=example_weights,
            label_weights=lambda: labels,
        )
        left: dict[str, Any] = {}
        with forward_context(inside):
            for (name, layer), (values, keys) in zip(layers.items(), own, strict=True):
                # The path is that of the scanned layer: adapters are chosen by it.
                scope: Any = flax.core.Scope(
                    {PARAMS: params[name]}, mutable=made, path=(*module.path, name)
                )
                scanned = ScannedLayer(layer=layer, parent=scope)
                x = scanned(x, (values, [_of_microbatch(each, microbatch) for each in keys]), *args)
                left[name] = dict(scope.mutable_variables())
        return x, left

    given = args, context.example_weights, labels
    x, means = through_stages(
        run_layers, remat or (lambda layer: layer), params, own, x, given, schedule, mesh
    )
    for name, left in means.items():
        for collection, values in left.items():
            module.put_variable(collection, name, values)
    return x


def _of_microbatch(keys: Keys, microbatch: jax.Array) -> Keys:
    """Keys of a layer for a microbatch, which has a dropout of its own."""
    return {stream: jax.random.fold_in(key, microbatch) for stream, key in keys.items()}
