"""Decoding over decode sets: what a model writes, and how good it is."""

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from trainer.decoding.base import DecodeOutput
from trainer.decoding.examples import DecodedExample, decoded_examples
from trainer.experiment import Experiment
from trainer.inputs.base import Batch
from trainer.loop.evaluate import read_together
from trainer.program.program import Program, Values
from trainer.runtime import processes
from trainer.runtime.directory import write_text
from trainer.runtime.throughput import Speed
from trainer.state import TrainState
from trainer.tasks.tokens import TokenTask

OUTPUTS = 'decode_out'
"""The name of the directory of what was written, in that of a run."""


def decode(
    experiment: Experiment,
    program: Program,
    state: TrainState,
    values: Values,
    job_log_dir: epath.Path,
) -> dict[str, float]:
    """Decodes each decode set, and writes the texts down.

    The texts go to `decode_out/<name>/step_<step>.jsonl`, an example a line: its number, the
    prompt, the target, and the texts with their ids, log-probability and score.

    Returns:
        `decode_<name>/<metric>` of each set, as `TokenTask.process_decode_out` has them, and
        `decode_steps_per_second`: batches of all sets together, reading included, compiling not.
        The same in each process.
    """
    if not experiment.decode_inputs:
        return {}
    task, metrics, speed = experiment.task, dict[str, float](), Speed()
    assert isinstance(task, TokenTask) and task.decoder is not None
    step, random_key = int(state.step), program.random_key(experiment.train.random_seed)
    for name, data in experiment.decode_inputs.items():
        with speed.paused():
            decode_step = program.decode_step(data.padded_spec())
        run = functools.partial(
            _decode_batch, program, decode_step, state.variables, values, random_key
        )
        batches = read_together(data, f'decode_inputs.{name}')
        examples: list[DecodedExample] = []
        for output in _one_ahead(run, batches, waits=program.max_in_flight == 0):
            speed.count()
            examples += decoded_examples(task.decoder, data, output, first=1 + len(examples))
        with speed.paused():
            measured = None
            if processes.is_first():
                _write(job_log_dir / OUTPUTS / name / f'step_{step:09d}.jsonl', examples)
                measured = task.process_decode_out(data, examples)
            measured = processes.broadcast(measured)
        metrics |= {f'decode_{name}/{metric}': value for metric, value in measured.items()}
    rates = {f'decode_{name}': rate for name, rate in speed.rates().items()}
    return metrics | processes.broadcast(rates)


def _decode_batch(
    program: Program,
    decode_step: Callable[..., DecodeOutput],
    variables: Any,
    values: Values,
    random_key: jax.Array,
    number: int,
    batch: Batch,
) -> DecodeOutput:
    number_on_devices = program.replicated(np.int32(number))
    return decode_step(variables, program.put(batch), values, random_key, number_on_devices)


def _one_ahead(
    run: Callable[[int, Batch], DecodeOutput], batches: Iterator[Batch], waits: bool
) -> Iterator[DecodeOutput]:
    """What is made of each batch, on the host, while the device is at work on the next one."""
    ahead = None
    for number, batch in enumerate(batches):
        output = run(number, batch)
        if waits:
            jax.block_until_ready(output)
        if ahead is not None:
            yield jax.device_get(ahead)
        ahead = output
    if ahead is not None:
        yield jax.device_get(ahead)


def _write(path: epath.Path, examples: Sequence[DecodedExample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(example.to_json(), ensure_ascii=False) for example in examples)
    write_text(path, ''.join(line + '\n' for line in lines))
