"""Adapters as `peft` stores them: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from trainer.layers.lora import LoRA
from trainer.pretrained.family import Family
from trainer.pretrained.mapping import mapped
from trainer.pretrained.tensor_files import read_json
from trainer.runtime.data_paths import data_path
from trainer.symbolic.errors import UserError
from trainer.symbolic.extras import needed
from trainer.warm_start_rules import Operation, TensorRule

CONFIG, MODEL = 'adapter_config.json', 'adapter_model'

_OF_OUTPUTS = 'from_heads', 'split_inputs'
_OF_INPUTS = 'same', 'split_inputs'  # Tensors with their inputs first, as those of GPT-2.
_PREFIX = 'base_model.model.'
_EMPTY = (
    'alora_invocation_tokens', 'alpha_pattern', 'exclude_modules', 'layer_replication',
    'layers_pattern', 'layers_to_transform', 'lora_bias', 'megatron_config', 'modules_to_save',
    'rank_pattern', 'target_parameters', 'trainable_token_indices', 'use_bdlora', 'use_dora',
    'use_qalora',
)  # fmt: skip
"""Fields of the file that change the adapters in ways that are not read here."""


def adapter_rules(rules: Sequence[TensorRule]) -> list[TensorRule]:
    r"""The tensors of adapters, from the rules of kernels.

    Example:
        >>> kernel = TensorRule(r'layers_(\d+)\.query', r'h.\1.q.weight', 'to_heads')
        >>> for rule in adapter_rules([kernel]):
        ...     print(rule.tensor_of('layers_3.query_lora_b'), rule.operation)
        None transpose
        base_model.model.h.3.q.lora_B.weight to_heads
        None split_heads
    """
    found = []
    for rule in rules:
        if rule.tensor.endswith('.weight') and '*' not in rule.tensor and rule.parts == 1:
            module = _PREFIX + rule.tensor.removesuffix('.weight')
            sides: tuple[tuple[str, Operation], ...] = (
                ('a', 'from_heads' if rule.operation in _OF_OUTPUTS else 'transpose'),
                ('b', 'to_heads' if rule.operation == 'to_heads' else 'transpose'),
            )
            for side, operation in sides:
                pattern = f'(?:{rule.pattern})_lora_{side}'
                tensor = f'{module}.lora_{side.upper()}.weight'
                found.append(TensorRule(pattern, tensor, operation))
            flat: Operation = 'split_heads' if rule.operation == 'to_heads' else 'same'
            pattern = f'(?:{rule.pattern})_lora_magnitude'
            found.append(TensorRule(pattern, f'{module}.lora_magnitude_vector', flat))
    return found


def require_same(directory: str, lora: LoRA | None, where: str, model: str) -> None:
    """Raises UserError unless an adapter of `peft` computes as the adapters of a run.

    Args:
        model: the directory of the frozen model. The log says if the adapter names another one.
    """
    file = data_path(directory) / CONFIG
    if not file.exists():
        raise UserError(f'{where}: {directory} has no {CONFIG}: name a directory that peft saved')
    config = read_json(file)
    if config.get('peft_type') != 'LORA':
        raise UserError(f'{where}: {file}: peft_type must be LORA, not {config.get("peft_type")!r}')
    for name in _EMPTY:
        if config.get(name):
            raise UserError(f'{where}: {file}: {name} is {config[name]!r}, which is not read')
    if config.get('bias', 'none') != 'none':
        raise UserError(f"{where}: {file}: bias must be 'none', not {config['bias']!r}")
    trained_on = config.get('base_model_name_or_path')
    if isinstance(trained_on, str) and Path(trained_on).name != Path(model).name:
        logging.warning(
            '%s: %s was trained on %r, and the run has %s: its results are right for the same '
            'model alone',
            *(where, directory, trained_on, model),
        )
    if lora is None:
        raise UserError(f'{where}: the run has no adapters: set task.adapters=LoRA(…)')
    rank, alpha = config.get('r'), config.get('lora_alpha')
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or rank < 1:
        raise UserError(f'{where}: {file}: r and lora_alpha must be numbers')
    if rank != lora.rank:
        raise UserError(f'{where}: {file} has r={rank}, and task.adapters.rank is {lora.rank}')
    scale = alpha / (math.sqrt(rank) if config.get('use_rslora') else rank)
    if lora.dora or not math.isclose(scale, lora.scale()):
        raise UserError(
            f'{where}: {file} multiplies adapters by {scale:g} without dora (r, lora_alpha, '
            f'use_rslora, use_dora), and task.adapters by {lora.scale():g} '
            f'{"with" if lora.dora else "without"} dora (rank, alpha, rslora, dora)'
        )


def write_adapter(
    out: Path, lora: LoRA, arrays: Mapping[str, np.ndarray], family: Family, base: str | None
) -> None:
    """Writes the files of an adapter into a directory that exists.

    Args:
        arrays: of adapters by name, layer by layer; norms in place of their differences.
        base: the directory of the frozen model, for the file; None where it is unknown.

    Raises:
        UserError: the architecture has no tensor for a kernel with an adapter.
    """
    with needed('huggingface', 'trainer.convert'):
        from safetensors.numpy import save_file
    tensors: dict[str, np.ndarray] = {}
    rules = adapter_rules(family.rules)
    for name, array in arrays.items():
        to = mapped(rules, name, array.shape)
        if to is None or to.tensor_shape is None:
            raise UserError(
                f'task.adapters: {family.architecture} has no module for {name}, which peft could '
                'adapt: leave its kernel out of targets, or merge the adapters by --to=hf'
            )
        tensor = np.empty(to.tensor_shape, np.float32)
        to.view(tensor)[...] = array
        tensors[to.names[0]] = tensor
    save_file(tensors, out / f'{MODEL}.safetensors', metadata={'format': 'pt'})
    modules = {name.removeprefix(_PREFIX).rpartition('.lora_')[0] for name in tensors}
    causal = family.architecture.endswith(('ForCausalLM', 'LMHeadModel'))
    config = {
        'base_model_name_or_path': base,
        'bias': 'none',
        'fan_in_fan_out': any(rule.operation in _OF_INPUTS for rule in _kernels(family, arrays)),
        'inference_mode': True,
        'lora_alpha': lora.numerator,
        'lora_dropout': lora.dropout or 0.0,
        'peft_type': 'LORA',
        'r': lora.rank,
        'target_modules': sorted(modules),
        'task_type': 'CAUSAL_LM' if causal else None,
        'use_dora': lora.dora,
        'use_rslora': lora.rslora,
    }
    (out / CONFIG).write_text(json.dumps(config, indent=2) + '\n')


def _kernels(family: Family, arrays: Mapping[str, Any]) -> Iterator[TensorRule]:
    """The rules of the kernels that have adapters."""
    names = {name.removesuffix('_lora_a') for name in arrays if name.endswith('_lora_a')}
    for name in names:
        yield next(rule for rule in family.rules if rule.tensor_of(name) is not None)
