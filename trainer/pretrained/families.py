"""All families of pretrained models."""

from trainer.layers.base import Layer
from trainer.pretrained import bert, gemma, gpt2, llama, vit
from trainer.pretrained.family import Family
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.errors import UserError, nearest

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
    config = ModelConfig(directory)
    family = FAMILIES.get(architecture or '') or family_of(config)
    model = family.model(config)
    config.finish()
    return model
