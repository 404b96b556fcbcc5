"""Evaluation over evaluation sets."""

from collections.abc import Iterator

import jax

from trainer import processes
from trainer.experiment import EVAL_TRAIN, Experiment
from trainer.inputs.base import Batch, EndOfData, Input
from trainer.inputs.evaluation import eval_batches
from trainer.inputs.peek import Peekable
from trainer.metrics import Totals
from trainer.program import Program, Values
from trainer.speed import Speed
from trainer.state import TrainState


def evaluate(
    experiment: Experiment, program: Program, state: TrainState, values: Values
) -> dict[str, float]:
    """The metrics of each evaluation set, whole unless its input says otherwise.

    They are called `<name>/<metric>`. With them `eval_steps_per_second`: batches of all sets
    together, reading included, compiling not.
    """
    metrics: dict[str, float] = {}
    speed = Speed()
    for name, data in experiment.eval_inputs.items():
        with speed.paused():
            eval_step = program.eval_step(data.padded_spec())
        totals, ahead = Totals(), None
        for batch in _read_together(data, name):
            of_batch = eval_step(state.variables, program.put(batch), values)
            speed.count()
            if program.max_in_flight == 0:
                jax.block_until_ready(of_batch)
            if ahead is not None:  # The device is one batch ahead of the host.
                totals.add(jax.device_get(ahead))
            ahead = of_batch
        if ahead is not None:
            totals.add(jax.device_get(ahead))
        metrics |= {f'{name}/{metric}': value for metric, value in totals.values().items()}
    return metrics | {f'eval_{name}': rate for name, rate in speed.rates().items()}


def evaluate_next(
    experiment: Experiment, data: Peekable, program: Program, state: TrainState, values: Values
) -> dict[str, float]:
    """The metrics of the next training batch, as an evaluation has them: without dropout.

    They are called `eval_train/<metric>`. The batch is trained on as if nothing had been. Where
    there is none any more, there are no metrics.
    """
    try:
        batch = data.peek_padded()
    except EndOfData:
        batch = None
    if processes.agree(batch is None) or batch is None:
        return {}
    eval_step = program.eval_step(experiment.train_input.padded_spec())
    totals = Totals()
    totals.add(jax.device_get(eval_step(state.variables, program.put(batch), values)))
    return {f'{EVAL_TRAIN}/{metric}': value for metric, value in totals.values().items()}


def _read_together(data: Input, name: str) -> Iterator[Batch]:
    """The batches of an evaluation, while the other processes read as many.

    Raises:
        RuntimeError: one of them has fewer.
    """
    for batch in eval_batches(data):
        if processes.agree(False):
            raise RuntimeError(
                f'eval_inputs.{name}: other processes have fewer batches; all must have as many'
            )
        yield batch
    processes.agree(True)
