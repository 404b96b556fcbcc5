import json
from collections.abc import Sequence

import numpy as np
from etils import epath

from trainer.decoding.examples import DecodedExample, decoded_examples
from trainer.experiment import Experiment
from trainer.loop.evaluate import one_ahead, read_together
from trainer.program.program import Program
from trainer.program.step_functions import Values
from trainer.runtime import processes
from trainer.runtime.directory import write_text
from trainer.runtime.throughput import Throughput
from trainer.state import TrainState
from trainer.symbolic.errors import UserError, prefixed
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
        numbered = enumerate(read_together(data, f'decode_inputs.{name}'))
        outputs = (
            decode_step(
                state.variables,
                program.put(batch),
                values,
                random_key,
                program.replicated(np.int32(number)),
            )
            for number, batch in numbered
        )
        examples: list[DecodedExample] = []
        for output in one_ahead(program, outputs):
            throughput.count()
            with prefixed(f'decode_inputs.{name}'):
                examples += decoded_examples(task.decoder, data, output, first=1 + len(examples))
        if not examples:
            raise UserError(f'decode_inputs.{name}: no label has a weight, so all are padding')
        with throughput.paused():
            measured = None
            if processes.is_first():
                _write(job_log_dir / OUTPUTS / name / f'step_{step:09d}.jsonl', examples)
                measured = task.process_decode_out(data, examples)
            measured = processes.broadcast(measured)
        metrics |= {f'decode_{name}/{metric}': value for metric, value in measured.items()}
    rates = {f'decode_{name}': rate for name, rate in throughput.rates().items()}
    return metrics | processes.broadcast(rates)


def _write(path: epath.Path, examples: Sequence[DecodedExample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(example.to_json(), ensure_ascii=False) for example in examples)
    write_text(path, ''.join(line + '\n' for line in lines))
