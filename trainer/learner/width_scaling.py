"""Width scaling: the maximal update parametrization (muP) of transformers.

Yang et al. 2022, Tensor Programs V, table 3, for optimizers whose updates do not depend on the
scale of gradients. All its multipliers are moved into initial values and learning rates, by the
symmetry of section J.2.1 there. So parameters mean the same with it and without: checkpoints,
evaluation and decoding know nothing of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax.traverse_util import unflatten_dict

from trainer.layers.adapter import FlaxAdapter
from trainer.layers.base import PARAMS, Layer
from trainer.layers.embedding import Embedding
from trainer.layers.parameters import ParameterBox
from trainer.layers.stack import Stack
from trainer.layers.transformer import TransformerLm
from trainer.learner.optimizers import Rate
from trainer.learner.paths import Path, leaves, names
from trainer.symbolic.component import Component, components
from trainer.symbolic.errors import UserError
from trainer.symbolic.overrides import replaced

_FIELD = 'task.learner.width_scaling'
_MODEL = 'task.model.'
_QUERIES = 'query', 'query_bias', 'rotary_query'
_SAME = 1e-9


class Factor(NamedTuple):
    """The difference between a parameter with width scaling and without.

    Attributes:
        init: multiplies its initial values.
        rate: multiplies its learning rate.
        shift: is added to its initial values.
    """

    init: float = 1.0
    rate: float = 1.0
    shift: float = 0.0


class WidthFactors:
    """The factors of all parameters of a model, by path."""

    def __init__(self, by_path: Mapping[Path, Factor], orthogonal: Mapping[Path, Sequence[float]]):
        self._by_path, self._orthogonal = dict(by_path), dict(orthogonal)

    def by_name(self) -> dict[str, Factor]:
        """The factors by the names of the parameters, layer by layer."""
        return {name: factor for path, factor in self._by_path.items() for name in names(path)}

    def rates(self) -> Any:
        """A `Rate` for each parameter, in a tree like the parameters."""
        return unflatten_dict(
            {
                path: Rate(factor.rate, *self._orthogonal.get(path, (factor.rate, factor.rate)))
                for path, factor in self._by_path.items()
            }
        )

    def scaled(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Variables with scaled initial values, in the same boxes."""
        boxes = leaves(variables[PARAMS])
        scaled = {path: _scaled(box, self._by_path[path]) for path, box in boxes.items()}
        return {**variables, PARAMS: unflatten_dict(scaled)}


class WidthScaling(Component):
    """Makes the best learning rate and initialization independent of the width of the model.

    Both stay as in the base: the same model with other widths, such as a tuned one. At the widths
    of the base, nothing changes. A hidden matrix has a learning rate in inverse
    proportion to its inputs; logits and attention weights grow no faster than in the base. Weight
    decay stays unchanged. It is for the optimizers `AdamW`, `Lion` and `Muon`, and for models of
    layers whose parameters have axes: a `TransformerLm`, or an own one with a head. Modules of
    flax are refused.

    Attributes:
        base: the widths of the base, value by path: `{'task.model.embedding.dims': 64}`.

    Example:
        >>> scaling = WidthScaling(base={'task.model.embedding.dims': 64})
    """

    base: dict[str, Any]

    def check(self) -> None:
        if not self.base:
            raise ValueError("base must have the widths of the base: {'task.model.….dims': 64}")
        for path in self.base:
            if not path.startswith(_MODEL):
                raise ValueError(f'base: {path} is no path in the model, {_MODEL}…')

    def base_of(self, task: Any) -> Any:
        """The task with the widths of the base.

        Raises:
            UserError: a path in `base` does not exist, or its value is illegal.
        """
        widths = {path.removeprefix('task.'): value for path, value in self.base.items()}
        return replaced(task, widths, f'{_FIELD}.base')

    def factors(self, model: Layer, params: Any, base_params: Any) -> WidthFactors:
        """Compares the parameters of a model with the parameters of the base.

        Args:
            model: with the widths that are trained.
            params: its parameters, as `ParameterBox`es of shapes.
            base_params: parameters of the base.

        Raises:
            UserError: the models differ in more than widths, or the axes of some parameters are
                unknown.
        """
        _require_layers(model)
        boxes, base = leaves(params), leaves(base_params)
        if odd := boxes.keys() ^ base.keys():
            raise UserError(
                f'{_FIELD}.base: only widths may differ, but {names(min(odd))[0]} is a parameter '
                'of one model alone'
            )
        _require_no_constant_scale(model, boxes, base)
        found = {path: _factor(path, box, base[path]) for path, box in boxes.items()}
        for layer in components(model):
            if isinstance(layer, Embedding):
                path = _table_of(layer, model)
                if path not in boxes or _is_in_stack(layer):
                    raise UserError(
                        f'{_FIELD}: {layer.sym_path} (Embedding) has no table of its own among the '
                        'parameters: call it in `forward` of the model, outside of a Stack'
                    )
                found[path] = _table_factor(layer, boxes[path], base[path])
        if isinstance(model, TransformerLm) and model.head is None:
            if model.final_norm is None:
                raise UserError(
                    f'{_FIELD}: logits of a shared table need the factor of a norm before them: '
                    'set task.model.final_norm, or give the model a head'
                )
            final = {path: found[path] for path in found if path[0] == 'final_norm'}
            path = _table_of(model.embedding, model)
            found |= _final_norm_factors(model.embedding, final, boxes[path], base[path])
        else:
            _require_head(model, boxes)
        orthogonal = {
            path: [
                _rounded(_orthogonal_rate(path, box, base[path], each)) for each in (False, True)
            ]
            for path, box in boxes.items()
            if box.matrix_axes is not None
        }
        factors = {path: Factor(*map(_rounded, factor)) for path, factor in found.items()}
        return WidthFactors(factors, orthogonal)


def _factor(path: Path, box: ParameterBox, base: ParameterBox) -> Factor:
    """The factor of a parameter by its shape, its initializer and its logical axes."""
    shape, base_shape = box.value.shape, base.value.shape
    if len(shape) != len(base_shape):
        raise UserError(f'{_FIELD}.base: only widths may differ, not the axes of {names(path)[0]}')
    attention = _attention_factor(path, box, base)
    if box.num_inputs is None or base.num_inputs is None or box.std is None or base.std is None:
        # Vectors grow in one axis; depthwise kernels in heads and features, elementwise.
        grown = {name for name, n, m in zip(box.names, shape, base_shape, strict=True) if n != m}
        if len(grown) > 1 and not grown <= {'heads', 'kv'}:
            raise UserError(
                f'{_FIELD}: {names(path)[0]} has an initializer with an unknown number of inputs; '
                'use a layer of trainer.layers'
            )
        # A normalization multiplies by 1 + scale.
        is_scale = path[-2:] == ('query_norm', 'scale')
        return Factor(rate=attention, shift=attention - 1 if is_scale else 0.0)
    inputs = box.num_inputs / base.num_inputs
    std = base.std / math.sqrt(inputs)
    is_hidden = {'heads', 'latent'} & {*box.names}
    is_output = math.prod(shape) / math.prod(base_shape) == inputs and not is_hidden
    if is_output and inputs != 1:
        std /= math.sqrt(inputs)
    return Factor(init=std / box.std * attention, rate=attention / inputs)


def _orthogonal_rate(path: Path, box: ParameterBox, base: ParameterBox, per_head: bool) -> float:
    """The factor of the learning rate of a matrix with orthogonal updates of Adam's size.

    The largest singular value of an update grows with the root of the longer side of the matrix.
    It must grow with the root of outputs by inputs (Yang et al. 2023, A Spectral Condition). The
    results of heads are summed where heads are inputs.
    """
    whole = box.matrix_axes
    assert whole is not None
    axes = whole.of_head() if per_head else whole
    (inputs, outputs), (base_inputs, base_outputs) = (
        [math.prod(each.value.shape[axis] for axis in side) for side in (axes.inputs, axes.outputs)]
        for each in (box, base)
    )
    wanted = math.sqrt(outputs / base_outputs * base_inputs / inputs)
    own = math.sqrt(max(inputs, outputs) / max(base_inputs, base_outputs))
    summed = math.prod(
        box.value.shape[axis] / base.value.shape[axis]
        for axis in whole.inputs
        if axis not in axes.inputs
    )
    return wanted / own / summed * _attention_factor(path, box, base)


def _attention_factor(path: Path, box: ParameterBox, base: ParameterBox) -> float:
    """The factor of queries: logits are divided by the size of heads, not by its root."""
    if path[-1] == 'qkv' and box.value.shape[-1] != base.value.shape[-1]:
        raise UserError(
            f'{_FIELD}: {names(path)[0]} has queries beside keys, but those of larger heads have '
            'another factor: set combine_qkv=False, or give head_dim one value'
        )
    if not _is_query(path, box):
        return 1.0
    return math.sqrt(base.value.shape[-1] / box.value.shape[-1])


def _is_query(path: Path, box: ParameterBox) -> bool:
    if path[-2:-1] == ('query_norm',):
        return True
    return path[-1] in _QUERIES and tuple(box.names[-2:]) == ('heads', 'kv')


def _require_no_constant_scale(
    model: Layer, boxes: Mapping[Path, ParameterBox], base: Mapping[Path, ParameterBox]
) -> None:
    """Raises UserError if heads grow, and a layer multiplies logits by one number at all widths."""
    grows = any(
        box.value.shape[-1] != base[path].value.shape[-1]
        for path, box in boxes.items()
        if _is_query(path, box)
    )
    for layer in components(model) if grows else ():
        if layer.sym_getattr('softmax_scale', None) is not None:
            raise UserError(
                f'{_FIELD}: {layer.sym_path}.softmax_scale is the same at all widths, but heads '
                'are larger than in the base: leave it out, or give head_dim one value'
            )


def _require_layers(model: Layer) -> None:
    """Raises UserError for modules of flax, whose axes of inputs are unknown."""
    for layer in components(model):
        if isinstance(layer, FlaxAdapter):
            raise UserError(
                f'{_FIELD}: {layer.sym_path} ({type(layer).__name__}) is a module of flax, whose '
                'axes of inputs are unknown: use a layer of trainer.layers, or Layer.param'
            )


def _require_head(model: Layer, boxes: Mapping[Path, ParameterBox]) -> None:
    """Raises UserError unless a kernel makes the outputs: a shared table has no factor for them."""
    for box in boxes.values():
        names = {box.names[axis] for axis in box.out_axes or ()} if box.in_axes else set()
        if box.is_output or {'vocab', 'classes'} & names:
            return
    raise UserError(
        f'{_FIELD}: {model.sym_path or "task.model"} ({type(model).__name__}) has no kernel that '
        "makes its outputs. Give it a head: Linear(…).call('logits', x), or a kernel with the "
        "axes ('embed', 'vocab')"
    )


def _is_in_stack(layer: Layer) -> bool:
    # Repeats and scans store its table elsewhere, or several of them.
    return layer.sym_ancestor(lambda value: isinstance(value, Stack)) is not None


def _table_of(embedding: Embedding, model: Layer) -> Path:
    """The path of the table of an embedding."""
    path: Path = ('table',)
    layer: Any = embedding
    while layer is not model:
        path = (layer.scope_name(), *path)
        layer = layer.sym_ancestor(lambda value: isinstance(value, Layer))
    return path


def _table_factor(embedding: Embedding, table: ParameterBox, base: ParameterBox) -> Factor:
    """The table so that embedded tokens, multiplied or not, do not depend on the width."""
    assert table.std is not None and base.std is not None
    rate = 1 / _multiplier(embedding, table, base)
    return Factor(init=base.std * rate / table.std, rate=rate)


def _final_norm_factors(
    embedding: Embedding, norm: Mapping[Path, Factor], table: ParameterBox, base: ParameterBox
) -> dict[Path, Factor]:
    """The scale before the logits of the shared table, which sum over the width.

    The norm multiplies by 1 + scale: its scale begins at the factor - 1.
    """
    growth = table.value.shape[-1] / base.value.shape[-1]
    factor = _multiplier(embedding, table, base) / growth
    shifts = {path: factor - 1 if path[-1] == 'scale' else 0.0 for path in norm}
    return {path: Factor(rate=factor, shift=shift) for path, shift in shifts.items()}


def _multiplier(embedding: Embedding, table: ParameterBox, base: ParameterBox) -> float:
    growth = table.value.shape[-1] / base.value.shape[-1]
    return math.sqrt(growth) if embedding.scale_sqrt_depth else 1.0


def _rounded(factor: float) -> float:
    """The factor without a rounding error next to 0 or 1, which change nothing."""
    return next((x for x in (0.0, 1.0) if abs(factor - x) < _SAME), factor)


def _scaled(box: ParameterBox, factor: Factor) -> ParameterBox:
    value: jax.Array = box.value
    if factor.init != 1:
        value = value * factor.init
    if factor.shift:
        value = value + factor.shift
    return box.replace(value=value)
