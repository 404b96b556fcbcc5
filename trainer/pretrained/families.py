"""All families of pretrained models."""

from trainer.layers.base import Layer
from trainer.pretrained import gemma, llama
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError, nearest

FAMILIES = {each.architecture: each for each in (*llama.FAMILIES, *gemma.FAMILIES)}


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


def model_of(directory: str) -> Layer:
    """The model that the `config.json` of a directory describes.

    Raises:
        UserError: the file cannot be read, or has a field whose effect is unknown here.
    """
    config = ModelConfig(directory)
    model = family_of(config).model(config)
    config.finish()
    return model
