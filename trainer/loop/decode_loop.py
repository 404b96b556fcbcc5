"""Decoding of the decode sets: the outputs of a model, and their metrics."""

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
from trainer.runtime.throughput import Throughput
from trainer.state import TrainState
from trainer.tasks.tokens import TokenTask

OUTPUTS = 'decode_out'
"""Directory of the decoded texts, in the directory of a run."""


def decode(
    experiment: Experiment,
    program: Program,
    state: TrainState,
    values: Values,
    job_log_dir: epath.Path,
) -> dict[str, float]:
    """Decodes each decode set, and writes the texts.

    The texts go to `decode_out/<name>/step_<step>.jsonl`, one example per line: its number, the
    prompt, the target, and the texts with their ids, log-probability and score.

    Returns:
        `decode_<name>/<metric>` of each set, computed by `TokenTask.process_decode_out`, and
        `decode_steps_per_second`: batches of all sets together, reading included, compilation
        excluded. The same in each process.
    """
    if not experiment.decode_inputs:
        return {}
    task, metrics, throughput = experiment.task, dict[str, float](), Throughput()
    assert isinstance(task, TokenTask) and task.decoder is not None
    step, random_key = int(state.step), program.random_key(experiment.train.random_seed)
    for name, data in experiment.decode_inputs.items():
        with throughput.paused():
            decode_step = program.decode_step(data.padded_spec())
        run = functools.partial(
            _decode_batch, program, decode_step, state.variables, values, random_key
        )
        batches = read_together(data, f'decode_inputs.{name}')
        examples: list[DecodedExample] = []
        for output in _one_ahead(run, batches, waits=program.max_in_flight == 0):
            throughput.count()
            examples += decoded_examples(task.decoder, data, output, first=1 + len(examples))
        with throughput.paused():
            measured = None
            if processes.is_first():
                _write(job_log_dir / OUTPUTS / name / f'step_{step:09d}.jsonl', examples)
                measured = task.process_decode_out(data, examples)
            measured = processes.broadcast(measured)
        metrics |= {f'decode_{name}/{metric}': value for metric, value in measured.items()}
    rates = {f'decode_{name}': rate for name, rate in throughput.rates().items()}
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
    """Yields the output of each batch on the host, while the device works on the next one."""
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
