"""Rules of a warm start, as fields of an experiment: arrays that a fresh run loads."""

import re
from typing import Literal

from trainer.learner.paths import check_patterns
from trainer.symbolic.component import Component

FILE = 'warm_start.json'
"""File in the directory of a run: the source of each array of its warm start."""


class LoadRule(Component):
    r"""Selects arrays of the run to load, and maps their names to those in the source.

    Each layer has a name, such as `stack.layers_0.feed_forward.up`, even if the run or the source
    scans layers.

    Attributes:
        pattern: a regular expression for full names of parameters and other variables of layers,
            such as running means.
        source: the name in the source, with references to groups of the pattern: `\1`, `\g<name>`;
            `\g<0>` is the full name.

    Example:
        >>> LoadRule(r'stack\.layers_(\d+)\.(.*)', r'encoder.layers_\1.\2').name_of(
        ...     'stack.layers_7.scale'
        ... )
        'encoder.layers_7.scale'
    """

    pattern: str = '.*'
    source: str = r'\g<0>'

    def check(self) -> None:
        check_patterns([self.pattern], 'pattern')
        try:
            re.compile(self.pattern).sub(self.source, '')
        except (re.error, IndexError) as error:
            raise ValueError(
                f'source: {self.source!r} does not go with the pattern {self.pattern!r}: {error}'
            ) from error

    def name_of(self, name: str) -> str | None:
        """Maps the name of an array to its name in the source; None if it does not match."""
        matched = re.fullmatch(self.pattern, name)
        return None if matched is None else matched.expand(self.source)


class WarmStart(Component):
    """Arrays that a fresh run loads from one checkpoint. Others are initialized randomly.

    The source must contain the arrays that a rule matches, in the same shape as in the run. If
    several rules match, the first one counts, across sources.

    Attributes:
        checkpoint: the path of a `checkpoints` directory, for the newest, or of a step in there.
        rules: the arrays to load; the default is all, by the same name.
        ignore: regular expressions for full names of arrays that are not loaded from here.
        load_optimizer: also load the optimizer state of the loaded parameters, and the counters of
            the optimizer.
        load_ema: also load the averages of the loaded parameters. Otherwise they begin at the
            parameters.
        load_step: continue the step count of the source, which the schedule of the learning rate
            and `num_train_steps` use, and its resource counts. The data start again in any case.
    """

    checkpoint: str
    rules: list[LoadRule] = [LoadRule()]
    ignore: list[str] = []
    load_optimizer: bool = False
    load_ema: bool = False
    load_step: bool = False

    def check(self) -> None:
        if not self.rules:
            raise ValueError('rules must not be empty; leave them out to load everything')
        check_patterns(self.ignore, 'ignore')

    def is_ignored(self, name: str) -> bool:
        """True if an array of the run is not loaded from here."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignore)


Operation = Literal[
    'same',
    'minus_one',
    'transpose',
    'to_heads',
    'from_heads',
    'split_heads',
    'split_inputs',
    'patches',
    'row',
]
"""From a tensor to an array of a layer; `trainer.pretrained.operations` has them all."""


class TensorRule(Component):
    r"""Maps arrays of a run to tensors of a directory, in both directions.

    Attributes:
        pattern: a regular expression for full names of parameters, layer by layer, such as
            `stack.layers_0.attention.query`.
        tensor: the name of the tensor, with references to groups of the pattern. `*` stands for
            the number of an expert: these tensors are the first axis of the array.
        operation: makes the array from the tensor. 'minus_one' is for scales, which norms store as
            scale - 1. 'to_heads' is for kernels of queries, keys and values, [heads * H, D] ->
            [D, heads, H], and 'split_heads' for their biases. 'from_heads' is for kernels of
            outputs, [D, heads * H] -> [heads, H, D]. Kernels that are stored as here take
            'split_heads' and 'split_inputs'. 'patches' is for kernels of images, [D, C, P, P] ->
            [P, P, C, D], and 'row' drops axes of size 1 before the others.
        part: the array is this part of the tensor, from 0, along its last axis.
        parts: number of equal parts.

    Example:
        >>> rule = TensorRule(r'layers_(\d+)\.up', r'h.\1.mlp.weight', 'transpose')
        >>> rule.tensor_of('layers_7.up'), rule.tensor_of('layers_7.down')
        ('h.7.mlp.weight', None)
    """

    pattern: str
    tensor: str
    operation: Operation = 'same'
    part: int = 0
    parts: int = 1

    def check(self) -> None:
        LoadRule(self.pattern, self.tensor)
        if not 0 <= self.part < self.parts:
            raise ValueError(f'part must lie between 0 and {self.parts - 1}: {self.part}')

    def tensor_of(self, name: str) -> str | None:
        """Maps the name of an array to that of its tensor; None if it does not match."""
        matched = re.fullmatch(self.pattern, name)
        return None if matched is None else matched.expand(self.tensor)


class Pretrained(Component):
    """Weights of a Hugging Face directory that a fresh run loads: `config.json`, safetensors files.

    All arrays must be in the directory, in shapes that fit, and the run must use all tensors of it.
    `python -m trainer.convert` writes an experiment whose model fits.

    Attributes:
        directory: path of the directory.
        rules: the tensors of arrays; the first that matches counts. None for those of the
            architecture that `config.json` names.
        ignore: regular expressions for full names of arrays that are not loaded from here.
        unused: regular expressions for names of tensors that the run does not use.
        adapter: path of a directory that `peft` saved, with LoRA adapters of this model; it must
            compute as `task.adapters` does. None begins with new ones.
        allow_changes: the model may compute otherwise than `config.json` says, as with other
            rotary positions. With `rules`, `ignore` or `unused` it may anyway.
    """

    directory: str
    rules: list[TensorRule] | None = None
    ignore: list[str] = []
    unused: list[str] = []
    adapter: str | None = None
    allow_changes: bool = False

    def check(self) -> None:
        if self.rules is not None and not self.rules:
            raise ValueError('rules must not be empty; leave them out for those of config.json')
        check_patterns(self.ignore, 'ignore')
        check_patterns(self.unused, 'unused')

    @property
    def has_all_weights(self) -> bool:
        """True if the model is that of `config.json`, with all of its weights."""
        return self.rules is None and not self.ignore and not self.unused


class Inheritance(Component):
    """A parent model whose weights a fresh run begins with, also if its architecture differs.

    `trainer.warm_start.inheritance` describes layers of other widths, and new ones.
    The optimizer and the data start again, at step 0.

    Attributes:
        checkpoint: the path of a `checkpoints` directory, for the newest, or of a step in there.
        base: the source of the frozen parameters, where the parent has adapters alone. A parent
            with all parameters replaces it.
    """

    checkpoint: str
    base: str | list[WarmStart | Pretrained] | Pretrained | None = None


Starts = str | list[WarmStart | Pretrained] | Inheritance | Pretrained | None


def listed(starts: Starts) -> list[WarmStart | Pretrained]:
    """The sources of `train.init_from_checkpoint`, in order; a parent first.

    Example:
        >>> [each.checkpoint for each in listed(Inheritance('parent', base='model'))]
        ['parent', 'model']
    """
    if isinstance(starts, str):
        return [WarmStart(starts)]
    if isinstance(starts, Inheritance):
        return [WarmStart(starts.checkpoint), *listed(starts.base)]
    if isinstance(starts, Pretrained):
        return [starts]
    return list(starts or [])
