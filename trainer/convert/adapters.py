"""Runs of adapters: their frozen parameters, merged models, and adapters for `peft`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from trainer.checkpoints.checkpoint import newest_checkpoint
from trainer.checkpoints.checksums import checksums
from trainer.checkpoints.reader import CheckpointReader
from trainer.convert.new_directory import new_directory
from trainer.layers.base import PARAMS
from trainer.layers.lora import LoRA, axes_of, is_adapter, merged, norm_of
from trainer.pretrained.families import config_of
from trainer.pretrained.peft import write_adapter
from trainer.symbolic.errors import UserError
from trainer.task import Task
from trainer.warm_start.layered import layered
from trainer.warm_start.pretrained_reader import PretrainedReader
from trainer.warm_start_rules import Pretrained, WarmStart

Start = WarmStart | Pretrained


class AdaptedReader:
    """Reads a run of adapters as if its checkpoint had the merged parameters.

    Attributes:
        shapes: of the merged parameters.
    """

    def __init__(self, lora: LoRA, starts: Sequence[Start], reader: CheckpointReader) -> None:
        """Finds the frozen parameters.

        Args:
            starts: the values of `train.init_from_checkpoint` of the run.

        Raises:
            UserError: they are not there any more, or the run began without a source.
        """
        if lora.quantized is not None:
            raise UserError(
                f'task.adapters.quantized: kernels in {lora.quantized} are not merged: write the '
                'adapters by --to=peft without dora, and merge them into the model there'
            )
        self._lora, self._reader, self._frozen = lora, reader, reader.frozen
        self.shapes = {name: tuple(shape) for name, (shape, _, _) in self._frozen.items()}
        self._sources = [self._source(each) for each in starts]
        for name in self.shapes:
            if not any(name in source.shapes for source in self._sources):
                raise UserError(
                    f'train.init_from_checkpoint: it has no {name.removeprefix("params.")}, and '
                    'the checkpoint has adapters alone'
                )

    def _source(self, start: Start) -> CheckpointReader | PretrainedReader:
        if isinstance(start, Pretrained):
            leaves = {
                name: jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))
                for name, (shape, dtype, _) in self._frozen.items()
            }
            plain = start.clone(deep=True).rebind(adapter=None, raise_on_no_change=False)
            return PretrainedReader(plain, leaves)
        found = newest_checkpoint(start.checkpoint)
        if found is None:
            raise UserError(f'train.init_from_checkpoint: there is no {start.checkpoint} any more')
        return CheckpointReader(found)

    def frozen(self, name: str, sharding: Any) -> jax.Array:
        """Loads a frozen parameter; raises UserError if it has changed since the run began."""
        source = next(each for each in self._sources if name in each.shapes)
        array = source.load({name: sharding})[name].astype(self._frozen[name][1])
        if checksums({name: array})[name] != self._frozen[name][2]:
            raise UserError(
                f'train.init_from_checkpoint: {name.removeprefix("params.")} there has changed '
                'since the run began'
            )
        return array

    def load(self, shardings: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Loads merged parameters by name, with given shardings."""
        return {name: self._merged(name, sharding) for name, sharding in shardings.items()}

    def _merged(self, name: str, sharding: Any) -> jax.Array:
        base, kernel = self.frozen(name, sharding), name.removeprefix(f'{PARAMS}.')
        parts = {each: f'{part_of(self._reader)}.{kernel}_lora_{each}' for each in ('a', 'b')}
        if parts['a'] not in self._reader.shapes:
            return base
        if self._lora.dora:
            parts['magnitude'] = parts['a'].removesuffix('a') + 'magnitude'
        loaded = self._reader.load(dict.fromkeys(parts.values(), sharding))
        a, b = loaded[parts['a']], loaded[parts['b']]
        magnitude = loaded[parts['magnitude']] if self._lora.dora else None
        return merged(axes_of(base, a, b), base, a, b, magnitude, self._lora.scale())


def part_of(reader: CheckpointReader | AdaptedReader) -> str:
    """The part of a state that evaluation uses: averages where the run keeps some."""
    has_averages = any(name.startswith('ema_params.') for name in reader.shapes)
    return 'ema_params' if has_averages else PARAMS


def reader_of(
    task: Task, starts: Sequence[Start], checkpoint: epath.Path
) -> CheckpointReader | AdaptedReader:
    """Reads the parameters of a run, merged if it has adapters."""
    reader = CheckpointReader(checkpoint)
    if task.adapters is None or not reader.frozen:
        return reader
    return AdaptedReader(task.adapters, starts, reader)


def write_peft(
    task: Task, starts: Sequence[Start], checkpoint: epath.Path, out: Path, base: str | None
) -> str:
    """Writes the adapters of a run as a directory that `peft` loads; returns the architecture.

    Raises:
        UserError: the run has no adapters, or no architecture computes like its model.
    """
    lora = task.adapters
    if lora is None:
        raise UserError('--to=peft: the run has no task.adapters; --to=hf writes its model')
    family, _ = config_of(task.model)
    reader = CheckpointReader(checkpoint)
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    part = f'{part_of(reader)}.'
    names = [name for name in reader.shapes if name.startswith(part) and is_adapter(name)]
    arrays = {
        name.removeprefix(part): x for name, x in reader.load(dict.fromkeys(names, one)).items()
    }
    if lora.dora:
        source = AdaptedReader(lora, starts, reader)
        for name in [each for each in arrays if each.endswith('_lora_magnitude')]:
            kernel = name.removesuffix('_lora_magnitude')
            base_kernel = source.frozen(f'{PARAMS}.{kernel}', one)
            axes = axes_of(base_kernel, arrays[f'{kernel}_lora_a'], arrays[f'{kernel}_lora_b'])
            arrays[name] = arrays[name] + norm_of(base_kernel, axes[1])
    each: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        stored = layered({name: tuple(array.shape)})[name]
        for index, layer in zip(np.ndindex(*stored.lengths), stored.names, strict=True):
            each[layer] = np.asarray(array[index])
    with new_directory(out) as partial:
        write_adapter(partial, lora, each, family, base)
    return family.architecture
