"""Families of pretrained models: a `config.json` <-> a model, tensors <-> its arrays."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trainer.layers.attention import Attention
from trainer.layers.base import Layer
from trainer.pretrained.model_config import ModelConfig
from trainer.symbolic.component import components
from trainer.warm_start_rules import TensorRule


def _ids(model: Layer) -> tuple[Any, ...]:
    """Token ids of one row, longer than all windows."""
    windows = [each.window for each in components(model) if isinstance(each, Attention)]
    length = 2 * max((each for each in windows if each is not None), default=8)
    return (jax.ShapeDtypeStruct((1, length), jnp.int32),)


@dataclasses.dataclass(frozen=True)
class Family:
    """The models of one architecture.

    Attributes:
        architecture: a class of transformers, such as 'LlamaForCausalLM'.
        model_type: the name of its fields there, such as 'llama'.
        rules: the tensors of all arrays.
        model: makes the model that a `config.json` describes.
        config: the way back: the fields for a model of this family, but for those that all have.
            A model that `model` makes otherwise of them is none.
        unused: regular expressions for names of tensors that are no weights, or copies.
        renamed: former names of tensors: regular expressions, with the names of today.
        inputs: shapes of inputs of a model, for a comparison with another one.
        sizes: fields that a model does not have, from the shapes of its arrays.
    """

    architecture: str
    model_type: str
    rules: tuple[TensorRule, ...]
    model: Callable[[ModelConfig], Layer]
    config: Callable[[Any], Mapping[str, Any]]
    unused: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    inputs: Callable[[Layer], tuple[Any, ...]] = _ids
    sizes: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]] = lambda shapes: {}

    def present_name(self, name: str) -> str:
        """The name of a tensor today."""
        for pattern, present in self.renamed:
            if (matched := re.fullmatch(pattern, name)) is not None:
                name = matched.expand(present)
        return name
