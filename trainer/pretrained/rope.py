"""Rotary positions of a `config.json`: `rope_parameters`, formerly `rope_theta`, `rope_scaling`."""

from collections.abc import Mapping
from typing import Any

from trainer.layers.attention_position import Position
from trainer.layers.rotary import Rotary
from trainer.layers.rotary_scaling import LinearScaling, LlamaScaling, RotaryScaling, YarnScaling
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError

_FIELDS = {
    'linear': (LinearScaling, {'factor': 'factor'}),
    'llama3': (
        LlamaScaling,
        {
            'factor': 'factor',
            'low_freq_factor': 'low',
            'high_freq_factor': 'high',
            'original_max_position_embeddings': 'original_length',
        },
    ),
    'yarn': (
        YarnScaling,
        {
            'factor': 'factor',
            'original_max_position_embeddings': 'original_length',
            'beta_slow': 'low',
            'beta_fast': 'high',
            'attention_factor': 'attention_factor',
        },
    ),
}
"""Scalings by `rope_type`, with the names of their fields there and here."""


def rope_of(config: ModelConfig) -> Rotary:
    """The rotary positions of a model with one kind of layers."""
    found = dict(config.get('rope_parameters', dict, {}))
    theta, scaling = config.optional('rope_theta', float), config.get('rope_scaling', dict, {})
    found |= scaling | ({} if theta is None else {'rope_theta': theta})
    if (fraction := config.optional('partial_rotary_factor', float)) is not None:
        found['partial_rotary_factor'] = fraction
    return rotary(config, found)


def rotary(config: ModelConfig, parameters: Mapping[str, Any]) -> Rotary:
    """The rotary positions of `rope_parameters`; raises UserError."""
    left = dict(parameters)
    kind = str(left.pop('rope_type', left.pop('type', 'default')))
    left.pop('type', None)
    wavelength, fraction = left.pop('rope_theta', 10_000.0), left.pop('partial_rotary_factor', 1.0)
    where = f'{config.file}: rope_parameters'
    scaling = None
    if kind != 'default':
        if kind not in _FIELDS:
            known = ', '.join(['default', *_FIELDS])
            raise UserError(f'{where}: rope_type {kind!r} is not supported; there are {known}')
        scaling = _scaling(where, kind, left)
    elif left.keys() <= {'factor'}:  # Older files have it without an effect.
        left.clear()
    if left:
        raise UserError(f'{where}: {sorted(left)} of rope_type {kind!r} are not supported')
    try:
        return Rotary(float(wavelength), float(fraction), scaling)
    except (TypeError, ValueError) as error:
        raise UserError(f'{where}: {error}') from error


def _scaling(where: str, kind: str, left: dict[str, Any]) -> RotaryScaling:
    made_of, names = _FIELDS[kind]
    given = {names[name]: left.pop(name) for name in [*names] if left.get(name) is not None}
    for name in names:
        left.pop(name, None)
    for name, value in given.items():
        if isinstance(value, int) and name != 'original_length':
            given[name] = float(value)
    try:
        made: RotaryScaling = made_of(**given)
    except (TypeError, ValueError) as error:
        raise UserError(f'{where}: {error}') from error
    return made


def rope_parameters(position: Position) -> dict[str, Any]:
    """The way back: `rope_parameters` of positions, {} where they are not rotary."""
    if position == 'rotary':
        position = Rotary()
    if not isinstance(position, Rotary):
        return {}
    found: dict[str, Any] = {'rope_type': 'default', 'rope_theta': position.wavelength}
    if position.fraction != 1:
        found['partial_rotary_factor'] = position.fraction
    for kind, (made_of, names) in _FIELDS.items():
        if isinstance(position.scaling, made_of):
            fields = {there: position.scaling.sym_getattr(here) for there, here in names.items()}
            found |= {there: value for there, value in fields.items() if value is not None}
            found['rope_type'] = kind
    return found
