"""All families of pretrained models."""

import contextlib
from typing import Any

from trainer.layers.base import Layer
from trainer.pretrained import bert, gemma, gpt2, llama, vit
from trainer.pretrained.family import Family
from trainer.pretrained.likeness import computation, differing_fields
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError, in_short, nearest

_ALL = *llama.FAMILIES, *gemma.FAMILIES, *gpt2.FAMILIES, *bert.FAMILIES, *vit.FAMILIES
FAMILIES = {each.architecture: each for each in _ALL}


def family_of(config: ModelConfig) -> Family:
    """The family of a `config.json`; raises UserError if its architecture is unknown."""
    found = FAMILIES.get(config.architecture)
    if found is None:
        hint = nearest(config.architecture, FAMILIES)
        raise UserError(
            f'{config.file}: architectures names {config.architecture}, which is not known. '
            f'{hint}{" " if hint else ""}There are {", ".join(FAMILIES)}'
        )
    return found


def model_of(directory: str, architecture: str | None = None) -> Layer:
    """The model that the `config.json` of a directory describes.

    Args:
        architecture: another one with the same fields, such as 'BertForSequenceClassification'
            for a masked language model; None for that of the file.

    Raises:
        UserError: the file cannot be read, or has a field whose effect is unknown here.
    """
    config = ModelConfig.of(directory)
    return described(FAMILIES.get(architecture or '') or family_of(config), config)


def described(family: Family, config: ModelConfig) -> Layer:
    """The model of a `config.json`; raises UserError, also where its values do not fit together."""
    try:
        model = family.model(config)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UserError(f'{config.file}: {in_short(error)}') from error
    config.finish()
    return model


def require_like(model: Layer, directory: str) -> None:
    """Raises UserError unless a model computes as the `config.json` of a directory says.

    A wrong epsilon or base of rotary positions hardly shows in a loss, but in all logits.
    """
    like = model_of(directory)
    found = list(differing_fields(model, like, 'task.model'))
    if not found:
        return
    family = family_of(ModelConfig.of(directory))
    with contextlib.suppress(TypeError, ValueError, UserError):  # It takes other inputs.
        one, other = (computation(each, *family.inputs(like)) for each in (model, like))
        if one == other:
            return
    raise UserError(
        '\n'.join(
            [
                f'task.model computes otherwise than the config.json of {directory} says. Take its '
                'values, or set allow_changes=True to train another model from these weights:',
                *(f'  {each}' for each in found),
            ]
        )
    )


def config_of(model: Layer) -> tuple[Family, dict[str, Any]]:
    """The family of a model, and the fields of a `config.json` that describes it.

    Raises:
        UserError: no architecture computes the same.
    """
    faults: dict[str, list[str]] = {}
    known: dict[Any, Any] = {}
    for family in FAMILIES.values():
        name = family.architecture
        try:
            fields = dict(family.config(model))
            like = family.model(ModelConfig(fields | {'architectures': [name]}))
        except (AttributeError, LookupError, TypeError):  # Other layers.
            continue
        except UserError as error:
            faults[name] = [str(error)]
            continue
        if found := list(differing_fields(model, like, 'task.model')):
            inputs = family.inputs(model)
            if inputs not in known:
                known[inputs] = computation(model, *inputs)
            if computation(like, *inputs) != known[inputs]:
                faults[name] = found
                continue
        return family, fields
    if not faults:
        raise UserError(
            f'task.model: no architecture has the layers of this {type(model).__name__}. There are '
            f'{", ".join(FAMILIES)}'
        )
    near = min(faults, key=lambda each: len(faults[each]))
    lines = [f'  {each}' for each in faults[near]]
    which = f'The nearest is {near}, which differs in some of:'
    raise UserError('\n'.join([f'task.model: no architecture computes the same. {which}', *lines]))
