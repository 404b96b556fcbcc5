"""Families of pretrained models: a `config.json` <-> a model, tensors <-> its arrays."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from trainer.layers.base import Layer
from trainer.pretrained.model_config import ModelConfig
from trainer.warm_start_rules import TensorRule


@dataclasses.dataclass(frozen=True)
class Family:
    """The models of one architecture.

    Attributes:
        architecture: a class of transformers, such as 'LlamaForCausalLM'.
        rules: the tensors of all arrays.
        model: makes the model that a `config.json` describes.
        config: the way back: the fields for a model of this family, but for those that all have.
            A model that `model` makes otherwise of them is none.
        unused: regular expressions for names of tensors that are no weights, or copies.
        renamed: former names of tensors: regular expressions, with the names of today.
    """

    architecture: str
    rules: tuple[TensorRule, ...]
    model: Callable[[ModelConfig], Layer]
    config: Callable[[Any], Mapping[str, Any]]
    unused: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    def present_name(self, name: str) -> str:
        """The name of a tensor today."""
        for pattern, present in self.renamed:
            if (matched := re.fullmatch(pattern, name)) is not None:
                name = matched.expand(present)
        return name
