"""The tensors of an array, by the rules of a family."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.pretrained.operations import Shape, as_array, offset, tensor_shape
from trainer.warm_start_rules import Operation, TensorRule


class Mapped(NamedTuple):
    """The tensors of one layer of an array: one, or one for each expert along the first axis.

    Attributes:
        names: of the tensors.
        tensor_shape: the shape of each; None if the operation cannot make an array of this shape.
        shape: the shape that each has in the array.
        part: the part of the last axis of a tensor, and the number of parts.
    """

    names: list[str]
    operation: Operation
    tensor_shape: Shape | None
    shape: Shape
    is_of_experts: bool
    part: tuple[int, int] = (0, 1)

    def view(self, tensor: np.ndarray) -> np.ndarray:
        """A tensor, as the array has it, without the offset of its numbers."""
        number, parts = self.part
        if parts > 1:
            size = tensor.shape[-1] // parts
            tensor = tensor[..., number * size : (number + 1) * size]
        return as_array(self.operation, tensor, self.shape)

    @property
    def offset(self) -> np.float32:
        """Added to the numbers of a tensor for the array."""
        return np.float32(offset(self.operation))


def mapped(rules: Sequence[TensorRule], name: str, shape: Shape) -> Mapped | None:
    """Maps an array of a layer to tensors, by the first rule that matches; None without one."""
    for rule in rules:
        if (found := rule.tensor_of(name)) is not None:
            is_of_experts = '*' in found
            names = [found.replace('*', str(each)) for each in range(shape[0])]
            names = names if is_of_experts else [found]
            shape = shape[1:] if is_of_experts else shape
            there = tensor_shape(rule.operation, shape)
            if there is not None and rule.parts > 1:
                there = (*there[:-1], there[-1] * rule.parts)
            part = rule.part, rule.parts
            return Mapped(names, rule.operation, there, shape, is_of_experts, part)
    return None
